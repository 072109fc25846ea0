"""What all tests share: real tools found once a session, and skips that are named and counted."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import ROOT, require, toolchain_missing, torch_sdk_missing

if TYPE_CHECKING:
    from rocmbuild.toolchain.model import Toolchain


LONG = ("test_toolchain_debian_roots.py", "test_device.py", "test_wrapped.py", "test_toolchain_archive.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a compiler decides, and no interpreter; begin with the files whose tests take minutes."""
    items.sort(key=lambda item: item.path.name not in LONG)
    for item in items:
        if {"_toolchain_here", "_torch_sdk_here", "toolchain"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("compiles")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine decides a test; user folders stay the real ones unless a test moves them."""
    for name in (
        "FREETOKEN_ROCM_ARCH",
        "PYTORCH_ROCM_ARCH",
        "ROCM_HOME",
        "ROCM_PATH",
        "HIP_PATH",
        "HCC_AMDGPU_TARGET",
        "HIPCC_COMPILE_FLAGS_APPEND",
        "HIPCC_LINK_FLAGS_APPEND",
        "CCC_OVERRIDE_OPTIONS",
        "HSA_OVERRIDE_GFX_VERSION",
        "SOURCE_DATE_EPOCH",
        "ROCMBUILD_LAUNCHER",
        "ROCMBUILD_EDITABLE_REBUILD",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's own folder."""
    return ROOT


@pytest.fixture(scope="session")
def _toolchain_here() -> None:
    if toolchain_missing():
        require("a ROCm toolchain (rocmbuild toolchain install)")


@pytest.fixture(scope="session")
def _torch_sdk_here() -> None:
    if torch_sdk_missing():
        require("the torch SDK (rocmbuild toolchain install torch-sdk)")


@pytest.fixture(scope="session")
def _torch_here() -> None:
    if find_spec("torch") is None:
        require("torch in the environment of the tests")


@pytest.fixture
def math(_toolchain_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A toolchain with the math libraries' headers, which torch's HIP headers include; builds will take it."""
    from rocmbuild.toolchain.discover import candidates

    for candidate in candidates(os.environ):
        if candidate.toolchain and (candidate.toolchain.include / "hipblas/hipblas.h").is_file():
            monkeypatch.setenv("ROCM_HOME", str(candidate.toolchain.prefix))
            return
    require("the math libraries' headers (rocmbuild toolchain install debian --with math)")


@pytest.fixture(scope="session")
def derived_headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where torch's HIP headers are derived once for all tests, also those of other workers: builds lock the place."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "torch-hip"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def warm_cache(
    derived_headers: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The cache of this test and the builds that it starts: empty, but torch's HIP headers need not be derived."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "torch-hip").symlink_to(derived_headers)
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(cache))
    return cache


@pytest.fixture(scope="session")
def toolchain(_toolchain_here: None) -> Toolchain:
    """The toolchain that a build would take."""
    from rocmbuild.toolchain.discover import find_toolchain

    return find_toolchain(spec=None, environ=os.environ)
