"""The package under test, built once and imported as users import it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from native import NativeLibrary
from on_device import DEVICE_VARIABLE, DeviceLibrary, OnDevice
from packages import PACKAGE_VARIABLE, build_package, csrc_folder


@pytest.fixture(scope="session")
def build(_torch_sdk_here: None) -> Callable[..., Path]:
    """build_package itself, for tests that need a library of their own."""
    return build_package


@pytest.fixture(scope="session")
def package(request: pytest.FixtureRequest) -> Path:
    """The folder that holds the package under test."""
    given = os.environ.get(PACKAGE_VARIABLE)
    return Path(given) if given else request.getfixturevalue("build")(csrc_folder())


@pytest.fixture(scope="session")
def kernels(package: Path) -> ModuleType:
    """The package `gguf_kernels`, imported as a user would."""
    sys.path.insert(0, str(package))
    module = importlib.import_module("gguf_kernels")
    assert Path(module.__file__ or "").is_relative_to(package)
    device = os.environ.get(DEVICE_VARIABLE)
    return cast(ModuleType, OnDevice(module, device)) if device else module


@pytest.fixture(scope="session")
def library(package: Path) -> Path:
    """Path of the host library."""
    return package / "gguf_kernels" / "lib" / "gguf_host.so"


@pytest.fixture(scope="session")
def bare(kernels: ModuleType, library: Path) -> NativeLibrary:
    """The launch functions themselves. `kernels` loads torch, whose symbols the library wants."""
    device = os.environ.get(DEVICE_VARIABLE, "cpu")
    if device == "cpu":
        return NativeLibrary(library)
    import torch

    return DeviceLibrary(library.with_name(f"gguf_{'rocm' if torch.version.hip else 'cuda'}.so"), device)


@pytest.fixture
def _host_only() -> None:
    """For tests whose buffers end at pages of the host, or that trace the operators and would trace OnDevice."""
    if os.environ.get(DEVICE_VARIABLE, "cpu") != "cpu":
        pytest.skip("for the host's memory or tracing; other tests cover the device's")
