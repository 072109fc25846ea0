"""The engine behind HIPify, and the one subprocess that runs it."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild import process
from rocmbuild.errors import EnvironmentFailure, InputError, joined
from rocmbuild.staging import worker

__all__ = ["EngineIdentity", "HipifiedFile", "hipify", "identify"]

_INSTALL = "install the torch SDK component with `rocmbuild toolchain install torch-sdk`"
_TABLES = "cuda_to_hip_mappings.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """What decides an engine's result. digest: over its Python files, so that a patched one is another one."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HipifiedFile:
    """One file's outcome. status: converted | unchanged | copied. shift: lines added before its first."""

    source: str
    output: str
    status: str
    launches: int
    replaced: int
    shift: int
    problems: tuple[worker.Problem, ...]
    includes: tuple[worker.Include, ...]


def identify(folder: Path) -> EngineIdentity:
    """Identify the engine in a `hipify` folder without running it. InputError where there is none."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".py")
        contents = {path.name: path.read_bytes() for path in files}
    except OSError as err:
        raise EnvironmentFailure(
            f"the hipify engine {folder} cannot be read ({err.strerror})",
            hint=_INSTALL,
        ) from err
    if _TABLES not in contents:
        raise EnvironmentFailure(
            f"{folder} holds no hipify engine: {_TABLES} is missing",
            hint=_INSTALL,
        )
    version = re.search(rb"""__version__\s*=\s*['"]([^'"]+)""", contents.get("version.py", b""))
    whole = hashlib.sha256()
    for name, data in contents.items():
        whole.update(f"{name}\n{len(data)}\n".encode() + data)
    return EngineIdentity(
        name="torch.utils.hipify",
        version=version.group(1).decode("ascii", "replace") if version else "unknown",
        digest=whole.hexdigest(),
    )


@functools.cache
def worker_digest() -> str:
    """The digest of the code that converts; part of every stage's key."""
    return hashlib.sha256(Path(worker.__file__).read_bytes()).hexdigest()


def hipify(
    source: Path,
    target: Path,
    *,
    engine: Path,
    outputs: Mapping[str, str],
    convert: Sequence[str],
    include_dirs: Sequence[str],
) -> list[HipifiedFile]:
    """Fill target with the HIP twin of the tree in source, in one subprocess; source is only read.

    outputs: where each file of source goes. convert: those that are source text; the rest is copied.
    Every file's status is checked: one that could not be converted, for whatever reason, is an error that
    names it and the reason, all of them at once.
    """
    job = {
        "parent": os.getpid(),
        "source": str(source),
        "target": str(target),
        "engine": str(engine),
        "outputs": dict(outputs),
        "convert": list(convert),
        "include_dirs": list(include_dirs),
    }
    environment = {name: value for name, value in os.environ.items() if name != "IS_FBCODE"}  # it changes the tables
    argv = [sys.executable, "-I", "-S", "-B", worker.__file__]
    ran = process.run(argv, what="HIPify", env=environment, stdin=json.dumps(job), error=EnvironmentFailure)
    try:
        result: dict[str, Any] = json.loads(ran.stdout)
    except ValueError as err:
        raise EnvironmentFailure(f"HIPify ended without a result\n{ran.stderr}") from err
    if "engine" in result:
        raise EnvironmentFailure(f"the hipify engine {engine} cannot be loaded ({result['engine']})", hint=_INSTALL)
    entries: list[dict[str, Any]] = result["files"]
    failed = [entry for entry in entries if entry["status"] not in ("converted", "unchanged", "copied")]
    if failed:
        message = joined([f"{entry['source']!r} was not converted: {entry['reason']}" for entry in failed])
        if all("errno" in entry for entry in failed):
            space = any(entry["errno"] in (errno.ENOSPC, errno.EDQUOT) for entry in failed)
            hint = "free some space" if space else "see that the cache folder can be written"
            raise EnvironmentFailure(message, hint=f"{hint}, or set ROCMBUILD_CACHE_DIR to another folder")
        raise InputError(message, hint="see that the file is source text that a compiler can read")
    done = {entry["source"]: entry for entry in entries}
    if missing := sorted(outputs.keys() - done.keys()):
        raise EnvironmentFailure(f"HIPify skipped {', '.join(map(repr, missing))}")
    return [
        HipifiedFile(
            source=name,
            output=output,
            status=done[name]["status"],
            launches=done[name]["launches"],
            replaced=done[name]["replaced"],
            shift=done[name]["shift"],
            problems=tuple(worker.Problem(**problem) for problem in done[name]["problems"]),
            includes=tuple(worker.Include(**include) for include in done[name]["includes"]),
        )
        for name, output in outputs.items()
    ]
