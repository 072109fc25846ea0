"""Whether a build would change nothing, told without a compiler, a toolchain's probe, an audit or torch.

After a build, what it read is written down: the configuration, the environment, the project's files, the tools, the
headers outside the project. A later hook that finds all of it unchanged gives the wheel that was made then. Whatever is
not sure counts as changed, and then the whole build runs, which is incremental itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rocmbuild import __version__, console
from rocmbuild.build.project import PASSING_PREFIXES, PASSING_VARIABLES, project_files
from rocmbuild.config import Config
from rocmbuild.errors import RocmbuildError
from rocmbuild.locks import Lock
from rocmbuild.paths import data_dir, write_atomic

__all__ = ["forget", "remember", "unchanged"]

_FORMAT = 1
_IGNORED_NAMES = """
PYTHONNOUSERSITE PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED VIRTUAL_ENV_PROMPT MAX_JOBS
PS1 COLORTERM LESSOPEN LESSCLOSE HOSTNAME LOGNAME MAIL
"""
_IGNORED = PASSING_VARIABLES.union(_IGNORED_NAMES.split())
"""Variables that decide nothing in a build but which programs are found, and that is asked anew."""
_IGNORED_PREFIXES = (*PASSING_PREFIXES, "UV_", "GITHUB_", "RUNNER_")
_RACE = 2 * 10**9  # ns: a file that is younger than this when it is looked at may change once more without a trace


def _state(config: Config, hook: str) -> Path:
    return config.build_dir / "fresh" / f"{hook}.json"


def _key(config: Config, environ: Mapping[str, str]) -> str:
    """Digest of all that decides without being a file of the project: settings, variables, this package, setuptools."""
    fields = {field.name: repr(getattr(config, field.name)) for field in dataclasses.fields(config)}
    for name in ("jobs", "verbose", "warnings", "sources", "overridden", "settings"):
        del fields[name]
    env = {
        name: value
        for name, value in environ.items()
        if name not in _IGNORED and not name.startswith(_IGNORED_PREFIXES)
    }
    parts = [_FORMAT, __version__, sys.version, _setuptools(), sorted(fields.items()), sorted(env.items())]
    return hashlib.sha256(json.dumps(parts).encode() + _own()).hexdigest()


def _own() -> bytes:
    """This package's bytes: an isolated build has them at another place each time."""
    state = hashlib.sha256()
    for folder, folders, names in os.walk(Path(__file__).parent):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            state.update(name.encode() + b"\0" + (Path(folder) / name).read_bytes())
    return state.digest()


def _setuptools() -> str:
    """The name of setuptools' dist-info folder: its version, without the import of importlib.metadata."""
    spec = find_spec("setuptools")
    if spec is None or spec.origin is None:
        return ""
    return ",".join(sorted(path.name for path in Path(spec.origin).parent.parent.glob("setuptools-*.dist-info")))


def _stat(path: str) -> list[int] | None:
    try:
        info = os.stat(path)  # noqa: PTH116 (thousands of headers)
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_mode]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _programs(config: Config, environ: Mapping[str, str]) -> list[str | None]:
    """Where PATH finds what it is asked for: the C++ compiler, nvcc, the compiler cache."""
    path = environ.get("PATH")
    names = [environ.get("CXX", "").strip() or "g++", "c++", "clang++"]
    if "cuda" in config.platforms:
        names.append("nvcc")
    return [shutil.which(name, path=path) for name in names]


def _files(config: Config) -> dict[str, Path]:
    return {
        path.relative_to(config.project).as_posix(): path for path in project_files(config.project, config.build_dir)
    }


def remember(
    config: Config,
    hook: str,
    environ: Mapping[str, str],
    wheel: Path,
    *,
    managed: bool,
    read: Iterable[str],
    began: int,
) -> None:
    """Write down what a build that has just made this wheel of the build folder depends on.

    managed: whether toolchain and torch SDK are of rocmbuild's own store; those found elsewhere are searched for in too
    many places, so that nothing is remembered. read: absolute paths of tools and headers outside the project. began:
    when the build began to read the project (ns since the epoch): after a change since then nothing is remembered.
    """
    if not managed:
        forget(config, hook)
        return
    files = {}
    for name, path in _files(config).items():
        stat = _stat(str(path))
        if stat is None or max(stat[1], stat[2]) >= began:
            forget(config, hook)
            return
        files[name] = [stat, _digest(path)]
    watched = [str(data_dir() / name) for name in ("toolchains", "toolchains/.chosen", "torch-sdk")]
    value = {
        "key": _key(config, environ),
        "wheel": wheel.name,
        "digest": _digest(wheel),
        "time": time.time_ns(),
        "programs": _programs(config, environ),
        "files": files,
        "watched": {path: _stat(path) for path in sorted({*watched, *read})},
    }
    write_atomic(_state(config, hook), json.dumps(value).encode())


def forget(config: Config, hook: str) -> None:
    """Let the next build look at everything."""
    _state(config, hook).unlink(missing_ok=True)


def unchanged(config: Config, hook: str, out: Path, environ: Mapping[str, str]) -> str | None:
    """The name of the wheel, put into `out`, where nothing has changed since it was made; else None."""
    try:
        lock = Lock.attempt(config.build_dir / ".lock", create=False)
    except OSError:
        return None
    if lock is None:
        return None
    with lock:
        try:
            known = json.loads(_state(config, hook).read_bytes())
            wheel = config.build_dir / "wheel" / str(known["wheel"])
            data = wheel.read_bytes() if _same(config, environ, known) else b""
            if not data or hashlib.sha256(data).hexdigest() != known["digest"]:
                return None
            write_atomic(out / wheel.name, data)
        except (OSError, ValueError, KeyError, TypeError, RocmbuildError):
            return None
    for warning in config.warnings:
        console.warn(warning)
    console.note(f"rocmbuild: nothing has changed since {wheel.name} was made")
    return wheel.name


def _same(config: Config, environ: Mapping[str, str], known: Mapping[str, Any]) -> bool:
    tests: list[Callable[[], bool]] = [
        lambda: known["key"] == _key(config, environ),
        lambda: known["programs"] == _programs(config, environ),
        lambda: all(_stat(path) == stat for path, stat in known["watched"].items()),
        lambda: _same_files(_files(config), known),
    ]
    return all(test() for test in tests)


def _same_files(files: Mapping[str, Path], known: Mapping[str, Any]) -> bool:
    """Whether the files are those that were there, byte for byte; read where their times do not vouch for them."""
    if set(files) != set(known["files"]):
        return False
    for name, path in files.items():
        stat, digest = known["files"][name]
        now = _stat(str(path))
        if now is None or now[4] != stat[4]:
            return False
        if (now != stat or max(now[1], now[2]) > known["time"] - _RACE) and _digest(path) != digest:
            return False
    return True
