"""Engines of HIPify. hipify_torch is on no package index: its stand-in is made here, with its layout and its tables."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import needs_torch_sdk

from rocmbuild.config import HIPIFY_ENGINES
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.staging import hipify
from rocmbuild.staging.stage import Stage, make_stage
from rocmbuild.toolchain.torch_sdk import find_torch_sdk


@dataclass(frozen=True)
class Sdk:
    version: str
    hipify: Path


VERSION_1 = """
from .constants import *
CUDA_TO_HIP_MAPPINGS = [
    {"cudaError_t": ("hipError_t", CONV_TYPE, API_RUNTIME), "cudaOnlyHere": ("hipOnlyHere", API_RUNTIME)},
    {"cudaCaffe": ("hipCaffe", API_CAFFE2)},
    {"cuda_runtime.h": ("hip/hip_runtime.h", CONV_INCLUDE, API_RUNTIME)},
]
"""
VERSION_2 = 'CUDA_TO_HIP_MAPPINGS = [{"cudaError_t": "hipError_t", "cudaOnlyHere": "hipOnlyHere2"}]\n'


def stand_in(site: Path, *, newer: bool = False) -> Path:
    package = site / "hipify_torch"
    (package / "v2").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('nobody imports the package')\n")
    (package / "constants.py").write_text(
        "CONV_TYPE = 1\nCONV_INCLUDE = 2\nAPI_RUNTIME = 3\nAPI_CAFFE2 = 4\nAPI_SPECIAL = 5\n"
    )
    (package / "cuda_to_hip_mappings.py").write_text(VERSION_1)
    (package / "hipify_python.py").write_text("def hipify(**options): raise RuntimeError('nor calls its driver')\n")
    if newer:
        (package / "v2" / "cuda_to_hip_mappings.py").write_text(VERSION_2)
    (site / "hipify_torch-1.4.dist-info").mkdir()
    return package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path, "", str(tmp_path / "site")])
    return tmp_path / "site"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.cu").write_text("#include <cuda_runtime.h>\ncudaError_t e = cudaOnlyHere();\n")
    return tmp_path / "p"


def stage_of(project: Path, wanted: str = "auto") -> Stage:
    found = find_torch_sdk()
    return make_stage(
        project,
        globs=["a.cu"],
        engine=Sdk(found.version, found.hipify),
        hip_version="7.2.4",
        hipify_engine=wanted,
        cache=project.parent / "cache",
        strict=False,
    )


def test_the_configuration_knows_the_engines() -> None:
    assert HIPIFY_ENGINES == hipify.ENGINES


@needs_torch_sdk
def test_torchs_own_is_the_default(project: Path, site: Path) -> None:
    stage = stage_of(project)
    assert stage.engine.name == "torch.utils.hipify"
    assert stage.engine.version[0].isdigit()
    assert [finding.rule for finding in stage.findings] == ["leftover"]


@needs_torch_sdk
@pytest.mark.parametrize("newer", [False, True])
def test_hipify_torch_serves_where_it_is_installed(project: Path, site: Path, newer: bool) -> None:
    before = stage_of(project)
    package = stand_in(site, newer=newer)
    stage = stage_of(project)
    assert (stage.engine.name, stage.engine.version) == ("hipify_torch", "1.4")
    assert stage.key != before.key
    name = "hipOnlyHere2" if newer else "hipOnlyHere"
    assert f"hipError_t e = {name}();" in stage.tree("hip")["a.hip"].decode()
    assert stage.files[0].replaced == (2 if newer else 3)
    assert stage.report()["engine"]["name"] == "hipify_torch"
    # by name; and torch's own by name although the other is there
    assert stage_of(project, "hipify_torch").key == stage.key
    assert stage_of(project, "torch").key == before.key
    # another table is another engine
    with (package / "v2" / "cuda_to_hip_mappings.py" if newer else package / "cuda_to_hip_mappings.py").open("a") as f:
        f.write("# patched\n")
    assert stage_of(project).key != stage.key


@needs_torch_sdk
def test_hipify_torch_asked_for_by_name_must_be_there(project: Path, site: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"hipify_torch is wanted .* not installed") as caught:
        stage_of(project, "hipify_torch")
    assert "hipify-engine" in caught.value.hint
    with pytest.raises(ValueError):
        stage_of(project, "other")


def test_a_package_of_another_name_or_without_tables_is_none(tmp_path: Path) -> None:
    (tmp_path / "hipify_torch").mkdir()
    (tmp_path / "hipify_torch" / "__init__.py").touch()
    found = hipify.find_engine("auto", Path("/torch"), path=[str(tmp_path), str(tmp_path / "gone"), ""])
    assert (found.name, found.folder) == ("torch.utils.hipify", Path("/torch"))
