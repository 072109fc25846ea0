"""Device code for every declared target: every format compiled, and the policy of kernels/pyproject.toml held."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from packages import KERNELS, ROOT, formats_of, kernel_tool

from rocmbuild import pipeline
from rocmbuild.config import load_config
from rocmbuild.errors import CheckError
from rocmbuild.paths import cache_dir
from rocmbuild.targets import DECLARED
from rocmbuild.toolchain.discover import find_toolchain

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_toolchain_here")]

FORMATS_A_UNIT = 6
"""Of a compilation of one format two thirds are the HIP headers, so several formats share one here."""


def device_folder() -> Path:
    """Where all of it is built and kept."""
    return cache_dir() / "tests" / "kernels" / f"device-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"


def build(policy: str, name: str, targets: str) -> pipeline.Built:
    """The device library alone, without torch, in a kept build folder, with the policy for its audit.

    The sources are those of the package, with the files of formats/ joined in units of several.
    """
    place = device_folder()
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / "lock"):
        project = place / "project"
        shutil.rmtree(project, ignore_errors=True)
        shutil.copytree(KERNELS, project, ignore=shutil.ignore_patterns("__pycache__", "binding.cpp", "results"))
        (project / "pyproject.toml").write_text(policy)
        formats = project / "csrc" / "formats"
        listed = formats_of(project / "csrc")
        for begin in range(0, len(listed), FORMATS_A_UNIT):
            files = [formats / f"{each.lower()}.cu" for each in listed[begin : begin + FORMATS_A_UNIT]]
            joined = "\n".join(path.read_text() for path in files)
            for path in files:
                path.unlink()
            (formats / f"unit_{begin // FORMATS_A_UNIT}.cu").write_text(joined)
        settings = {"platforms": "rocm", "targets": targets, "build-dir": str(place / "build")}
        config = load_config(project, settings=settings, environ={})
        (extension,) = config.extensions
        extension = dataclasses.replace(extension, sources=("csrc/**/*.cu",), torch="none")
        return pipeline.build_wheel(
            dataclasses.replace(config, extensions=(extension,)), place / name, dict(os.environ)
        )


def test_every_target_has_every_kernel_as_the_policy_wants_them() -> None:
    """All formats for all ten targets. The build itself judges the policy, and would refuse; so would it any wave64."""
    built = build((KERNELS / "pyproject.toml").read_text(), "dist", "all")
    assert built.report.emitted == DECLARED
    (library,) = built.report.libraries
    names: dict[str, set[str]] = {}
    for code in library.code_objects:
        for kernel in code.kernels:
            names.setdefault(code.target, set()).add(kernel.demangled)
            what = f"{kernel.demangled} for {code.target}"
            assert (kernel.wave, kernel.vgpr_spill, kernel.sgpr_spill, kernel.scratch) == (32, 0, 0, 0), what
    assert set(names) == set(DECLARED)
    assert len({frozenset(found) for found in names.values()}) == 1
    for name in formats_of(KERNELS / "csrc"):
        own = [kernel for kernel in names[DECLARED[0]] if f"gguf::{name}Format" in kernel]
        for kind in ("dequantize", "mul_mat_vec", "moe_vec"):
            assert any(re.search(rf"^(void )?gguf::{kind}\w*<", kernel) for kernel in own), (name, kind)


def test_the_policy_is_not_empty() -> None:
    """What no kernel here can be is refused, rule by rule: the policy is read, and every rule of it meets kernels."""
    text = (KERNELS / "pyproject.toml").read_text()
    rules = load_config(KERNELS, settings={"platforms": "rocm", "targets": "gfx1201"}, environ={}).audit
    assert (rules[0].wave, rules[0].spills, rules[0].scratch) == (32, False, False)
    assert max(rule.min_occupancy or 0 for rule in rules) >= 6
    harder, count = re.subn(r'require = "\w+"', 'require = "v_no_such_instruction"', text)
    numbers = [number for number, rule in enumerate(rules[1:]) if rule.require]  # the first rule is for all kernels
    assert count == len(numbers) >= 1
    with pytest.raises(CheckError) as caught:
        build(harder, "refused", "gfx1201")
    for number in numbers:
        assert f"(tool.rocmbuild.audit.rules[{number}].require)" in caught.value.message


LLAMA_CPP = {
    ("Q4_0", 1): (16.5, 16.5, 17.0),
    ("Q8_0", 1): (24.0, 24.0, 24.0),
    ("Q4_K", 1): (38.5, 38.5, 39.0),
    ("Q5_K", 1): (45.5, 45.5, 46.0),
    ("Q6_K", 1): (47.0, 47.0, 47.0),
    ("Q2_K", 1): (40.0, 40.0, 40.0),
    ("Q3_K", 1): (48.0, 48.0, 48.0),
    ("IQ4_NL", 1): (26.5, 27.0, 27.0),
    ("IQ4_XS", 1): (23.0, 23.0, 22.8),
    ("IQ2_XXS", 1): (41.5, 41.5, 41.8),
    ("IQ3_S", 1): (53.2, 53.2, 53.5),
    ("MXFP4", 1): (34.5, 34.5, 34.5),
    ("NVFP4", 1): (35.0, 35.0, 35.0),
    ("Q4_K", 4): (87.0, 87.0, 88.0),
    ("Q8_0", 4): (59.0, 59.0, 59.0),
    ("MXFP4", 4): (56.0, 56.0, 56.0),
}
"""Instructions of the inner loop per 256 weights, waits not counted, of llama.cpp's decode kernel as the package
freetoken 0.2.1 carries it, compiled by clang 22, for so many vectors: on gfx1100, gfx1151 and gfx1201."""


def test_inner_loops_are_shorter_than_llama_cpps() -> None:
    """Every format and target that the table has; and each format's nibbles are looked up where it has a table."""
    build((KERNELS / "pyproject.toml").read_text(), "dist", "all")
    objdump = find_toolchain(spec=None, environ=os.environ).objdump
    assert objdump is not None
    measure = kernel_tool("loop_counts").measure
    for number, target in enumerate(("gfx1100", "gfx1151", "gfx1201")):
        found = {}
        for code in sorted((device_folder() / "build" / "obj").rglob(f"unit_*.{target}.co")):
            for loop in measure(code, objdump):
                if loop.kernel.startswith("mul_mat_vec "):
                    found[loop.kernel.split()[1], loop.vectors] = loop
        assert {name for name, _ in found} == set(formats_of(KERNELS / "csrc"))
        for key, figures in LLAMA_CPP.items():
            assert found[key].per_256 < figures[number], (key, target)
        for name in ("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"):
            assert found[name, 1].lookups >= found[name, 1].dots
