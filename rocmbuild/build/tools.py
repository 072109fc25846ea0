"""The build tool, found without importing what a build imports."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

__all__ = ["find_ninja"]


def find_ninja() -> Path | None:
    """ninja of this environment, of the package `ninja`, or on PATH."""
    beside = Path(sys.executable).parent / "ninja"
    if beside.is_file() and os.access(beside, os.X_OK):
        return beside
    spec = find_spec("ninja")
    if spec and spec.origin:
        packaged = Path(spec.origin).parent / "data" / "bin" / "ninja"
        if packaged.is_file():
            return packaged
    found = shutil.which("ninja")
    return Path(found) if found else None
