"""The Python side of a project: setuptools run on a copy, so that the checkout is never written to."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocmbuild import process
from rocmbuild.errors import CheckError, InputError

__all__ = [
    "PASSING_PREFIXES",
    "PASSING_VARIABLES",
    "copy_project",
    "digest",
    "input_times",
    "project_files",
    "python_side",
    "run_hook",
]

PASSING_VARIABLES = frozenset(
    (
        "PATH",
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "TMPDIR",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "TERM",
        "COLUMNS",
        "LINES",
        "LS_COLORS",
    )
)
PASSING_PREFIXES = ("PIP_", "PEP517_", "PYTEST_", "SSH_", "XDG_", "_PYPROJECT")
"""Variables that differ from build to build and that no wheel is made of."""
_SKIPPED_FOLDERS = re.compile(
    r"^(\.git|\.hg|\.svn|\.venv|venv|\.nox|\.tox|__pycache__|\.mypy_cache|\.pytest_cache|\.ruff_cache|build|dist|"
    r"node_modules|.*\.egg-info|.*\.dist-info)$"
)
_SKIPPED_FILES = re.compile(r".*\.(pyc|pyo)$")


def _files(folder: Path, below: Path, excluded: Path) -> Iterator[Path]:
    """Files of a project that can matter to its Python package, symbolic links followed inside the project only."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError as err:
        raise InputError(f"{folder}: cannot be read ({err.strerror})", hint="correct its permissions") from err
    for entry in entries:
        path = Path(entry.path)
        if entry.is_symlink() and not path.resolve().is_relative_to(below):
            continue
        if entry.is_dir():
            if not _SKIPPED_FOLDERS.match(entry.name) and path.resolve() != excluded:
                yield from _files(path, below, excluded)
        elif entry.is_file() and not _SKIPPED_FILES.match(entry.name):
            yield path


def project_files(project: Path, excluded: Path) -> list[Path]:
    """The files that copy_project copies."""
    return list(_files(project, project, excluded.resolve()))


def input_times(project: Path, excluded: Path) -> dict[str, list[int | None]]:
    """[size, time in ns] of the files of a project that a build can depend on, and the time of folders of such alone.

    Python modules are none, setup.py is; a folder that holds one changes its time when Python is run.
    """
    times: dict[str, list[int | None]] = {}
    folders: dict[Path, bool] = {}
    for path in _files(project, project, excluded.resolve()):
        module = path.suffix == ".py"
        folders[path.parent] = folders.get(path.parent, False) or module
        if not module or path.name == "setup.py":
            info = path.stat()
            times[str(path)] = [info.st_size, info.st_mtime_ns]
    for folder, modules in folders.items():
        if not modules and folder != project:
            times[str(folder)] = [None, folder.stat().st_mtime_ns]
    return times


def copy_project(project: Path, copy: Path, *, excluded: Path, manifest: Sequence[str] = ()) -> None:
    """Make `copy` equal to the project: files that differ are written, files that are gone are removed.

    excluded: the build folder, which may lie inside the project. manifest: files that an sdist must hold
    beside those that setuptools finds; they are added to MANIFEST.in of the copy.
    """
    project = project.resolve()
    wanted: dict[str, bytes] = {}
    for path in _files(project, project, excluded.resolve()):
        try:
            wanted[path.relative_to(project).as_posix()] = path.read_bytes()
        except PermissionError as err:
            raise InputError(f"{path}: cannot be read ({err.strerror})", hint="correct its permissions") from err
    if manifest:
        lines = [f"include {name}" for name in manifest]
        wanted["MANIFEST.in"] = wanted.get("MANIFEST.in", b"") + ("\n" + "\n".join(lines) + "\n").encode()
    for path in sorted(copy.rglob("*"), reverse=True):
        relative = path.relative_to(copy).as_posix()
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif relative not in wanted:
            path.unlink()
    for relative, data in wanted.items():
        target = copy / relative
        if target.is_file() and target.read_bytes() == data:
            continue
        if target.is_dir():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if os.access(project / relative, os.X_OK) else 0o644)


def python_side(project: Path, build_dir: Path) -> Path:
    """The copy in the build folder that setuptools runs in, made equal to the project."""
    copy = build_dir / "py"
    copy_project(project, copy, excluded=build_dir)
    return copy


def digest(copy: Path, asked: str) -> str:
    """A digest of a text and of a copy's files: their names, whether they can be run, their bytes."""
    state = hashlib.sha256(asked.encode("utf-8", "surrogateescape"))
    for path in sorted(copy.rglob("*")):
        if path.is_file():
            state.update(f"{path.relative_to(copy)}\0{path.stat().st_mode & 0o111}\0".encode())
            state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()


_HOOK = """
import os, sys
from setuptools import build_meta
hook, out, result = sys.argv[1:4]
sys.argv = ["setup.py"]
name = getattr(build_meta, hook)(out, None)
with open(result, "w", encoding="utf-8") as file:
    file.write(name)
"""


def run_hook(hook: str, copy: Path, out: Path, *, work: Path, env: dict[str, str]) -> str:
    """Run one of setuptools' PEP 517 hooks in the copy and return what it made: a name inside `out`.

    A process of its own: setuptools works in the current folder and keeps state. Raises CheckError with
    setuptools' last lines.
    """
    out.mkdir(parents=True, exist_ok=True)
    result = work / "hook-result"
    result.unlink(missing_ok=True)
    path = os.pathsep.join([word for word in sys.path if word and word != str(copy)])
    done = process.run(
        [sys.executable, "-c", _HOOK, hook, str(out), str(result)],
        what=f"setuptools {hook}",
        cwd=copy,
        env={**env, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    if done.returncode != 0 or not result.exists():
        lines = done.output.splitlines()
        raise CheckError(
            f"setuptools could not make the package (hook {hook}):\n" + "\n".join(lines[-12:]),
            hint="correct [project] and [tool.setuptools] in pyproject.toml",
        )
    return result.read_text(encoding="utf-8")
