"""What all tests share: real tools found once a session, and skips that are named and counted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def require(what: str) -> NoReturn:
    """A tool is missing: a named skip for a developer, a failure on CI, which installs everything."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must install {what}", pytrace=False)
    pytest.skip(f"needs {what}")


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
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's own folder."""
    return ROOT
