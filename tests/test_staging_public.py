"""The checks over large public CUDA trees, as their packages ship them. Nothing of theirs is kept in this repository.

What the findings are, and which of them are false, stands beside each tree; a change of the checks that finds more or
less there is to be looked at. pip fetches the packages; without an index the tests are skipped by name (fail on CI).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import digest_tree, needs_torch_sdk, require

from rocmbuild.staging.stage import Stage, make_stage
from rocmbuild.toolchain.torch_sdk import find_torch_sdk

pytestmark = [needs_torch_sdk, pytest.mark.slow]


@dataclass(frozen=True)
class Sdk:
    version: str
    hipify: Path


def fetched(package: str, folder: Path, *, sdist: bool) -> Path:
    """An unpacked package. Its metadata is made by its own setup.py where it is an sdist, without building anything."""
    kind = ["--no-binary=:all:", "--no-build-isolation"] if sdist else ["--only-binary=:all:", "--python-version=3.11"]
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "-d", folder, package],
        capture_output=True, text=True, check=False, env={**os.environ, "DS_BUILD_OPS": "0"},
    )  # fmt: skip
    archives = [path for path in folder.iterdir() if path.suffix in (".gz", ".whl")] if folder.is_dir() else []
    if ran.returncode or not archives:
        require(f"the package {package}, through pip: {ran.stderr.strip()[-200:]}")
    if archives[0].suffix == ".whl":
        with zipfile.ZipFile(archives[0]) as wheel:
            wheel.extractall(folder / "tree")
        return folder / "tree"
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder / "tree", filter="data") if sys.version_info >= (3, 12) else archive.extractall(
            folder / "tree"
        )
    [tree] = (folder / "tree").iterdir()
    return tree


def check(tree: Path, globs: list[str], include_dirs: list[str], defines: dict[str, str] | None = None) -> Stage:
    found = find_torch_sdk()
    before = digest_tree(tree)
    stage = make_stage(
        tree,
        globs=globs,
        include_dirs=include_dirs,
        engine=Sdk(found.version, found.hipify),
        hip_version="7.2.4",
        hipify_engine="torch",
        defines=defines,
        cache=tree.parent / "cache",
        strict=False,
    )
    assert digest_tree(tree) == before
    return stage


def rules(stage: Stage) -> Counter[str]:
    return Counter(finding.rule for finding in stage.findings)


def test_deepspeed(tmp_path: Path) -> None:
    """167 files. All findings are true: CUTLASS and cuFile are NVIDIA's alone, and ROCm 7 refuses the masks."""
    tree = fetched("deepspeed==0.19.8", tmp_path, sdist=True)
    stage = check(tree, ["csrc/**/*.cu", "csrc/**/*.cpp"], ["csrc/includes", "csrc/transformer/inference/includes"])
    assert len(stage.files) == 167
    assert sum(file.launches for file in stage.files) == 129
    found = rules(stage)
    assert set(found) == {"cuda-include", "leftover", "shuffle-mask"}
    assert {finding.path.split("/")[1] for finding in stage.findings if finding.rule == "leftover"} == {"gds"}
    headers = [finding.message for finding in stage.findings if finding.rule == "cuda-include"]
    assert all(re.search(r"cutlass/|cute/|cufile\.h", message) for message in headers)
    assert 7 <= found["shuffle-mask"] <= 12


def test_the_kernels_of_llama_cpp(tmp_path: Path) -> None:
    """92 files of ggml-cuda with FreeToken's, which compile for AMD as they are. Two findings, both false.

    Both stand in branches that macros of neither the build nor the tree guard, and that count as live. Without the
    macros that their build gives there are many more: hence a configuration's defines reach the checks.
    """
    tree = fetched("freetoken==0.2.1", tmp_path, sdist=False)
    base = "freetoken/kernel/csrc"
    folders = [base, f"{base}/include", f"{base}/ggml", f"{base}/ggml/ggml-cuda"]
    defines = {"FREETOKEN_USE_ROCM": "1", "GGML_USE_HIP": "1"}
    stage = check(tree, [f"{base}/**/*.cu"], folders, defines)
    assert len(stage.files) == 92
    assert sum(file.launches for file in stage.files) == 51
    assert sum(rules(stage).values()) <= 2
    assert sum(rules(check(tree, [f"{base}/**/*.cu"], folders)).values()) > sum(rules(stage).values())
