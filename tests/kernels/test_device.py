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


_Three = tuple[float, float, float]
LLAMA_CPP: dict[tuple[str, int], tuple[_Three | None, _Three]] = {
    ("mul_mat_vec Q4_0", 1): ((16.5, 16.5, 17.0), (81.4, 29.8, 84.2)),
    ("mul_mat_vec Q8_0", 1): ((24.0, 24.0, 24.0), (101.9, 37.1, 100.8)),
    ("mul_mat_vec Q4_K", 1): ((38.5, 38.5, 39.0), (52.8, 52.8, 109.0)),
    ("mul_mat_vec Q5_K", 1): ((45.5, 45.5, 46.0), (60.0, 60.0, 116.5)),
    ("mul_mat_vec Q6_K", 1): ((47.0, 47.0, 47.0), (72.1, 60.8, 133.5)),
    ("mul_mat_vec Q2_K", 1): ((40.0, 40.0, 40.0), (53.9, 53.8, 107.5)),
    ("mul_mat_vec Q3_K", 1): ((48.0, 48.0, 48.0), (62.8, 62.8, 62.8)),
    ("mul_mat_vec IQ4_NL", 1): ((26.5, 27.0, 27.0), (91.9, 40.6, 95.8)),
    ("mul_mat_vec IQ4_XS", 1): ((23.0, 23.0, 22.8), (36.5, 36.5, 83.5)),
    ("mul_mat_vec IQ2_XXS", 1): ((41.5, 41.5, 41.8), (54.4, 54.4, 54.8)),
    ("mul_mat_vec IQ3_S", 1): ((53.2, 53.2, 53.5), (66.6, 66.5, 66.9)),
    ("mul_mat_vec MXFP4", 1): ((34.5, 34.5, 34.5), (48.1, 48.0, 47.9)),
    ("mul_mat_vec NVFP4", 1): ((35.0, 35.0, 35.0), (49.0, 49.0, 49.1)),
    ("mul_mat_vec Q4_K", 4): ((87.0, 87.0, 88.0), (108.5, 108.5, 108.8)),
    ("mul_mat_vec Q8_0", 4): ((59.0, 59.0, 59.0), (79.0, 78.9, 78.1)),
    ("mul_mat_vec MXFP4", 4): ((56.0, 56.0, 56.0), (76.2, 76.2, 75.6)),
    ("moe_vec MXFP4", 1): (None, (48.9, 48.8, 48.5)),
    ("moe_gate_up MXFP4", 1): (None, (45.2, 45.1, 44.6)),
    ("moe_vec Q4_K", 1): (None, (53.5, 53.5, 114.0)),
    ("moe_gate_up Q4_K", 1): (None, (46.6, 46.5, 91.2)),
}
"""Wave instructions per 256 weights, waits not counted, of llama.cpp's decode kernels as the package freetoken 0.2.1
carries them, compiled by clang 22: of the inner loop, and of all of it at 2,048 columns, each on gfx1100, gfx1151 and
gfx1201. By the kernel that does the same here, and vectors; what is routed is for one token."""


def test_fewer_instructions_than_llama_cpps() -> None:
    """In the loop and in all, for every row and target that the table has; tables of nibbles are looked up by bytes."""
    build((KERNELS / "pyproject.toml").read_text(), "dist", "all")
    objdump = find_toolchain(spec=None, environ=os.environ).objdump
    assert objdump is not None
    counts = kernel_tool("loop_counts")
    for number, target in enumerate(("gfx1100", "gfx1151", "gfx1201")):
        loops, executed = {}, {}
        for code in sorted((device_folder() / "build" / "obj").rglob(f"unit_*.{target}.co")):
            text = counts.disassemble(code, objdump)
            loops |= {(loop.kernel, loop.vectors): loop for loop in counts.loops_of(text)}
            for cols in (2048, 6144):
                for one in counts.executed_of(text, cols, LLAMA_CPP):
                    executed[one.kernel, one.vectors, cols] = one
        assert {kernel.split()[1] for kernel, _ in loops} == set(formats_of(KERNELS / "csrc"))
        for key, (loop_alone, whole) in LLAMA_CPP.items():
            what = (key, target)
            assert loop_alone is None or loops[key].per_256 < loop_alone[number], what
            short, long = executed[(*key, 2048)], executed[(*key, 6144)]
            assert short.per_256 < whole[number], what
            # No part of a loop lies elsewhere, behind a branch that the count of the loop alone would miss.
            slope = (long.instructions - short.instructions) * 256 / (4096 * short.rows)
            assert slope == pytest.approx(loops[key].per_256), what
        for name in ("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"):
            loop = loops[f"mul_mat_vec {name}", 1]
            assert loop.lookups >= loop.dots
