"""What tests share that is no fixture: named and counted skips, digests of trees, read-only mounts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = ROOT / "tests/projects"

CHECK_SAXPY = (
    "import ctypes, saxpy.lib._rocmbuild_loader as l;"
    "lib = ctypes.CDLL(l.__file__.replace('_rocmbuild_loader.py', 'saxpy_host.so'));"
    "x = (ctypes.c_float * 3)(1, 2, 3); t = ctypes.c_float(); lib.sum(3, x, ctypes.byref(t)); print(t.value)"
)
"""Python that computes with the host library of the sample project `saxpy`, whose answer is 12.0."""


def require(what: str) -> NoReturn:
    """A tool is missing: a named skip for a developer, a failure on CI, which installs everything."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must install {what}", pytrace=False)
    pytest.skip(f"needs {what}")


def digest_tree(folder: Path) -> str:
    """One digest of all names, modes and bytes below a folder."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        state.update(f"{path.relative_to(folder)}\0{info.st_mode:o}\0".encode("utf-8", "surrogateescape"))
        state.update(os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b"")
    return state.hexdigest()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder on a read-only mount, which stops root too; shows first that a write fails."""
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
        undo = ["chmod", "-R", "u+w", str(folder)]
    else:
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        undo = ["umount", "-l", str(folder)]
    try:
        with pytest.raises(OSError):
            (folder / "written").write_text("x")
        yield
    finally:
        subprocess.run(undo, check=True)


@functools.cache
def toolchain_missing() -> str:
    """Why there is no toolchain, or nothing."""
    from rocmbuild.errors import RocmbuildError
    from rocmbuild.toolchain.discover import find_toolchain

    try:
        find_toolchain(spec=None, environ=os.environ)
    except RocmbuildError as err:
        return str(err)
    return ""


@functools.cache
def torch_sdk_missing() -> str:
    """Why there is no torch SDK, or nothing."""
    from rocmbuild.errors import RocmbuildError
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk

    try:
        find_torch_sdk()
    except RocmbuildError as err:
        return str(err)
    return ""


needs_toolchain = pytest.mark.usefixtures("_toolchain_here")
needs_torch_sdk = pytest.mark.usefixtures("_torch_sdk_here")
needs_torch_here = pytest.mark.usefixtures("_torch_here")
