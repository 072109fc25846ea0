"""The managed store: folders that appear whole or not at all, each with a manifest of digests.

A store is a folder (`data_dir()/toolchains`, `torch-sdk`, `runtimes`); an entry is a folder in it with `manifest.json`
(what it is, small enough to read at every start), `files.sha256` (one line per file, as `sha256sum -c` reads it) and
the files. All writing happens under one lock per store, in `.work` beside the entries, and ends in a rename. A killed
install leaves only `.work`, which the next one wipes, and `.downloads`, from which it goes on.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild.console import note
from rocmbuild.errors import EnvironmentFailure, InputError

__all__ = [
    "Entry",
    "digest_of",
    "downloads",
    "entries",
    "locked",
    "publish",
    "read_entry",
    "remove",
    "system_errors",
    "verify",
    "work",
]

FORMAT = 1
MANIFEST = "manifest.json"
FILES = "files.sha256"
_WORK = ".work"
_DOWNLOADS = ".downloads"
_LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SPACE = "free some space, or set ROCMBUILD_DATA_DIR to a folder on another disk"
_ELSEWHERE = "set ROCMBUILD_DATA_DIR to a folder that can be written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One published folder. facts: what its installer wrote down. digest: SHA-256 of `files.sha256` and the links."""

    name: str
    folder: Path
    kind: str
    digest: str
    facts: Mapping[str, Any]


@contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Turn a failing file operation (no space, read-only, no permission) into one clear error."""
    try:
        yield
    except OSError as err:
        where = err.filename if err.filename is not None else "a file"
        reason = err.strerror or type(err).__name__
        if isinstance(err, shutil.Error) and err.args and err.args[0]:  # what copytree collects: source, target, why
            _, where, reason = err.args[0][0]
        hint = _SPACE if _no_space(err) else _ELSEWHERE if err.errno in (errno.EROFS, errno.EACCES) else ""
        raise EnvironmentFailure(f"{what}: {where}: {reason}", hint=hint) from err
    except EnvironmentFailure as err:
        if err.hint != _SPACE and _no_space(err):
            raise EnvironmentFailure(f"{what}: {err.message}", hint=_SPACE) from err
        raise


@contextmanager
def locked(store: Path, *, what: str) -> Iterator[None]:
    """Hold the store's lock; says so once when another process has it. The system frees it when its holder dies."""
    from filelock import FileLock, Timeout  # cold start: only installs lock

    with system_errors(what):
        store.mkdir(parents=True, exist_ok=True)
        lock = FileLock(store / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            note(f"rocmbuild: {what}: waiting for another process that works on {store}")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def work(store: Path) -> Iterator[Path]:
    """A fresh folder on the store's file system; gone afterwards, whatever happens. Only under the lock."""
    folder = store / _WORK
    _wipe(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        _wipe(folder)


@contextmanager
def downloads(store: Path) -> Iterator[Path]:
    """A folder for what is fetched, which outlives a kill and a broken network: the next install goes on from there.

    It goes when the body ends well, and when the disk is full. Only under the lock.
    """
    folder = store / _DOWNLOADS
    folder.mkdir(exist_ok=True)
    try:
        yield folder
    except (OSError, EnvironmentFailure) as err:
        if _no_space(err) or not any(folder.iterdir()):
            _wipe(folder)
        raise
    _wipe(folder)


def _no_space(err: OSError | EnvironmentFailure) -> bool:
    """Whether the disk is full, said by the system to this process or to a program that it ran."""
    if isinstance(err, OSError) and err.errno in _FULL:
        return True
    text = err.message if isinstance(err, EnvironmentFailure) else str(err)
    return any(os.strerror(code) in text for code in _FULL) or "enough free space" in text


def publish(store: Path, folder: Path, *, name: str, kind: str, facts: Mapping[str, Any]) -> Entry:
    """Write folder's manifest and rename it from `.work` to store/name, over an older one. Only under the lock."""
    links = {}
    lines = []
    for path, relative in _walk(folder):
        if path.is_symlink():
            links[relative] = str(path.readlink())
        else:
            lines.append(f"{sha256_of(path)}  {relative}\n")
    listing = "".join(lines).encode()
    (folder / FILES).write_bytes(listing)
    digest = digest_of(listing, json.dumps(links, sort_keys=True).encode())
    manifest = {"format": FORMAT, "name": name, "kind": kind, "digest": digest, "facts": dict(facts), "links": links}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    folder.chmod(0o755)
    destination = store / name
    if not destination.exists():
        folder.rename(destination)
    elif not _exchange(folder, destination):
        destination.rename(store / _WORK / f".old-{name}")
        folder.rename(destination)
    return Entry(name=name, folder=destination, kind=kind, digest=digest, facts=manifest["facts"])  # type: ignore[arg-type]


def read_entry(folder: Path) -> Entry | None:
    """The entry at folder; None when there is none, or one that this version of rocmbuild cannot read."""
    try:
        value = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict) or value.get("format") != FORMAT or not isinstance(value.get("facts"), dict):
        return None
    return Entry(
        name=folder.name, folder=folder, kind=str(value["kind"]), digest=str(value["digest"]), facts=value["facts"]
    )


def entries(store: Path) -> tuple[Entry, ...]:
    """All entries of a store, by name. A store that does not exist is empty."""
    try:
        folders = sorted(path for path in store.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(entry for entry in map(read_entry, folders) if entry is not None)


def remove(store: Path, name: str) -> None:
    """Take an entry away: first out of sight by a rename, then from the disk. Raises InputError for an unknown name."""
    known = [entry.name for entry in entries(store)]
    if name not in known:
        listed = ", ".join(known) or "none"
        raise InputError(f"{store.name}: nothing is installed under the name {name!r} (installed: {listed})")
    with locked(store, what=f"removing {name}"), system_errors(f"removing {name}"), work(store) as folder:
        (store / name).rename(folder / name)


def verify(entry: Entry) -> tuple[str, ...]:
    """Each difference between an entry and its manifest: one line that starts with the path. () when there is none."""
    faults = []
    listing = (entry.folder / FILES).read_bytes()
    manifest = json.loads((entry.folder / MANIFEST).read_bytes())
    links: dict[str, str] = manifest["links"]
    if digest_of(listing, json.dumps(links, sort_keys=True).encode()) != entry.digest:
        faults.append(f"{FILES}: differs from the digest in {MANIFEST}")
    wanted = {line[66:]: line[:64] for line in listing.decode().splitlines()}
    for path, relative in _walk(entry.folder):
        if relative in (FILES, MANIFEST) or path.parent.name == "__pycache__":  # bytecode: Python's own, beside hipify
            continue
        if path.is_symlink():
            target = links.pop(relative, None)
            if target != str(path.readlink()):
                faults.append(f"{relative}: links to {path.readlink()}, wanted {target or 'no link'}")
        elif relative not in wanted:
            faults.append(f"{relative}: not part of what was installed")
        elif sha256_of(path) != wanted.pop(relative):
            faults.append(f"{relative}: contents changed")
    faults.extend(f"{relative}: missing" for relative in [*wanted, *links])
    return tuple(sorted(faults))


def digest_of(*parts: bytes) -> str:
    """SHA-256 over length-delimited parts, as hexadecimal digits."""
    value = hashlib.sha256()
    for part in parts:
        value.update(len(part).to_bytes(8, "little"))
        value.update(part)
    return value.hexdigest()


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, so that no reader and no kill finds neither; False where the system cannot."""
    import ctypes  # cold start: only when an entry is replaced

    at_cwd, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of <fcntl.h> and <stdio.h>
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return int(call(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange)) == 0


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file and link below folder, by relative path. Links to folders are not entered."""
    found = []
    for root, names, files in os.walk(folder):
        for name in [*files, *(n for n in names if (Path(root) / n).is_symlink())]:
            path = Path(root) / name
            found.append((path.relative_to(folder).as_posix(), path))
    for relative, path in sorted(found):
        yield path, relative


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    value = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value.update(block)
    return value.hexdigest()


def _wipe(folder: Path) -> None:
    """Remove a tree, read-only folders inside it too."""
    if not folder.exists():
        return
    for root, names, _ in os.walk(folder):
        for name in names:
            path = Path(root) / name
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | stat.S_IRWXU)
    shutil.rmtree(folder)
