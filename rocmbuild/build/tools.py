"""The build tool and the interpreter, found without importing what a build imports."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

__all__ = ["base_interpreter", "find_ninja", "find_program"]


def find_program(name: str, path: str | None) -> Path | None:
    """A program beside this interpreter, where packages put theirs, or on path (PATH's value)."""
    beside = Path(sys.executable).parent / name
    if beside.is_file() and os.access(beside, os.X_OK):
        return beside
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def base_interpreter() -> str:
    """The interpreter that an environment is made from: that of an isolated build is gone after it."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def find_ninja() -> Path | None:
    """ninja of this environment, of the package `ninja`, or on PATH."""
    found = find_program("ninja", "")
    if found:
        return found
    spec = find_spec("ninja")
    if spec and spec.origin:
        packaged = Path(spec.origin).parent / "data" / "bin" / "ninja"
        if packaged.is_file():
            return packaged
    return find_program("ninja", None)
