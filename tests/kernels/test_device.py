"""Device code for every declared target: what the audit reads of it, and the instructions that must be in it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from packages import KERNELS, ROOT

from rocmbuild import pipeline
from rocmbuild.config import load_config
from rocmbuild.paths import cache_dir
from rocmbuild.targets import DECLARED
from rocmbuild.toolchain.discover import find_toolchain

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_toolchain_here", "_torch_sdk_here")]


@pytest.fixture(scope="module")
def build_dir() -> Path:
    return cache_dir() / "tests" / "kernels" / f"device-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"


@pytest.fixture(scope="module")
def built(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> pipeline.Built:
    settings = {"platforms": "rocm", "targets": "all", "build-dir": str(build_dir)}
    config = load_config(KERNELS, settings=settings, environ={})
    return pipeline.build_wheel(config, tmp_path_factory.mktemp("dist"), dict(os.environ))


def test_every_target_has_every_kernel_in_32_lanes_without_spills_or_scratch(built: pipeline.Built) -> None:
    assert built.report.emitted == DECLARED
    (library,) = built.report.libraries
    names: dict[str, set[str]] = {}
    for code in library.code_objects:
        for kernel in code.kernels:
            names.setdefault(code.target, set()).add(kernel.name)
            what = f"{kernel.name} for {code.target}"
            assert kernel.wave == 32, what
            assert (kernel.vgpr_spill, kernel.sgpr_spill, kernel.scratch) == (0, 0, 0), what
    assert set(names) == set(DECLARED)
    assert len({frozenset(found) for found in names.values()}) == 1
    assert len(names[DECLARED[0]]) >= 27


def test_integer_products_use_the_dot_instruction(built: pipeline.Built, build_dir: Path) -> None:
    objdump = find_toolchain(spec=None, environ=os.environ).objdump
    assert objdump is not None
    products = 0
    for target in DECLARED:
        codes = sorted((build_dir / "obj").rglob(f"*.{target}.co"))
        assert codes
        for code in codes:
            text = subprocess.run([objdump, "-d", code], capture_output=True, text=True, check=True).stdout
            for name, body in re.findall(r"^[0-9a-f]+ <([^>]+)>:\n(.*?)(?=^[0-9a-f]+ <|\Z)", text, re.M | re.S):
                if "mul_mat_vec" in name or "moe_vec" in name:
                    products += 1
                    assert "v_dot4_i32_iu8" in body, f"{name} for {target}"
    assert products >= 10 * 18
