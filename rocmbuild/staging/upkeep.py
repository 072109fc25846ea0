"""The user's cache: what is in it, whether it is whole, and its removal. What a running build uses is never removed.

A stage is read at once and held in memory, so that its entry can go at any time; an entry being made and a build folder
are in use while their lock is held. The folder is that of paths.cache_dir, of which this knows `stages`, `builds` and
`probes`; whatever else lies there is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.locks import Lock
from rocmbuild.paths import write_atomic
from rocmbuild.staging.cache import KEY, Damaged, Store

__all__ = ["Item", "Kept", "Pruned", "age", "clear", "items", "mark_build", "prune", "size", "verify"]

_PROJECT = "project.json"
_TRASH = ".trash-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing in the cache.

    kind: "stage", "tables" (of an engine of HIPify), "build" (a build folder), "probe" (an answer of a tool), "debris"
    (of processes that were killed, and of older layouts). bytes: on the disk. used: seconds since the epoch. note: why
    it is kept or can go: "in use", "project gone", "editable"; else empty. project: of a build folder, where known.
    """

    kind: str
    name: str
    path: Path
    bytes: int
    used: float
    note: str = ""
    project: str = ""

    def to_json(self) -> dict[str, Any]:
        """As `cache list --json` gives it."""
        return {
            "kind": self.kind,
            "name": self.name,
            "path": str(self.path),
            "bytes": self.bytes,
            "used": int(self.used),
            "note": self.note,
            "project": self.project,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An item that was to go and stays, and why."""

    item: Item
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a removal did. left: bytes of all that is still in the cache."""

    removed: tuple[Item, ...]
    kept: tuple[Kept, ...]
    left: int


def size(text: str) -> int:
    """Bytes of a size as people write it: 500M, 2G, 1.5g, 4096. Units are powers of 1024. InputError for other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise InputError(f"{text!r}: not a size", hint="write it as 500M or 2G")
    return int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


def age(text: str) -> float:
    """Seconds of an age as people write it: 90m, 12h, 30d, 4w. InputError for other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if not match:
        raise InputError(f"{text!r}: not an age", hint="write it as 12h, 30d or 4w")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[match[2]]


def mark_build(build_dir: Path, project: Path, *, editable: bool) -> None:
    """Note in a build folder whose it is, and that an editable install loads its libraries from there."""
    path = build_dir / _PROJECT
    known = _marked(build_dir)
    facts = {"project": str(project), "editable": editable or known.get("editable", False)}
    if known != facts:
        write_atomic(path, json.dumps(facts).encode() + b"\n")


def _marked(build_dir: Path) -> dict[str, Any]:
    try:
        facts = json.loads((build_dir / _PROJECT).read_bytes())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def items(cache: Path) -> list[Item]:
    """All that is in the cache, by kind and name."""
    found = [*_stages(cache / "stages"), *_builds(cache / "builds"), *_probes(cache / "probes")]
    return sorted(found, key=lambda item: (item.kind, item.name))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as scan:
            return sorted(scan, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as err:
        raise EnvironmentFailure(f"the cache {folder} cannot be listed: {err.strerror}") from err


def _weigh(path: str) -> tuple[int, float]:
    """Bytes on the disk of a file or a tree, each file once, and the newest change among them."""
    seen: dict[tuple[int, int], int] = {}
    newest = 0.0
    stack = [path]
    while stack:
        place = stack.pop()
        with contextlib.suppress(OSError):
            state = os.lstat(place)
            seen[state.st_dev, state.st_ino] = state.st_blocks * 512
            newest = max(newest, state.st_mtime)
            if os.path.isdir(place) and not os.path.islink(place):
                stack += [entry.path for entry in os.scandir(place)]
    return sum(seen.values()), newest


def _item(entry: os.DirEntry[str], kind: str, *, note: str = "", project: str = "") -> Item:
    weight, used = _weigh(entry.path)
    return Item(kind=kind, name=entry.name, path=Path(entry.path), bytes=weight, used=used, note=note, project=project)


def _stages(folder: Path) -> Iterator[Item]:
    for entry in _entries(folder):
        if KEY.match(entry.name):
            if not entry.is_file(follow_symlinks=False):
                yield _item(entry, "debris")  # of a layout before this one
                continue
            try:
                with open(entry.path, "rb") as file:
                    head = file.read(76)
            except OSError:
                head = b""
            yield _item(entry, "tables" if head[65:].startswith(b'{"engine"') else "stage")
        elif entry.name.startswith(_TRASH):
            yield _item(entry, "debris")
        elif entry.name.startswith(".new-"):
            owner = entry.name[len(".new-") :].rsplit("-", 1)[0]
            yield _item(entry, "debris", note="in use" if _held(Store(folder).lock_of(owner)) else "")
    for entry in _entries(folder / ".last"):
        with contextlib.suppress(OSError):
            key = Path(entry.path).read_text("ascii", "replace")
            if entry.name.startswith(".") or not (KEY.match(key) and (folder / key).exists()):
                yield _item(entry, "debris")


def _held(lock: Path) -> bool:
    """Whether a lock is held now."""
    if not lock.exists():
        return False
    try:
        mine = Lock.attempt(lock, create=False)
    except OSError:
        return False  # on a read-only cache nobody can hold one
    if mine is None:
        return lock.exists()
    mine.release()
    return False


def _builds(folder: Path) -> Iterator[Item]:
    for entry in _entries(folder):
        if entry.name.startswith(_TRASH):
            yield _item(entry, "debris")
        elif entry.is_dir(follow_symlinks=False):
            facts = _marked(Path(entry.path))
            project = str(facts.get("project", ""))
            if _held(Path(entry.path) / ".lock"):
                note = "in use"
            elif project and not os.path.isdir(project):
                note = "project gone"
            else:
                note = "editable" if facts.get("editable") else ""
            yield _item(entry, "build", note=note, project=project)


def _probes(folder: Path) -> Iterator[Item]:
    for entry in _entries(folder):
        if entry.is_file(follow_symlinks=False):
            yield _item(entry, "probe")


def verify(cache: Path) -> list[tuple[Item, str]]:
    """Every entry of the store of stages that is not what its digest says, and why."""
    store = Store(cache / "stages")
    faults = []
    for item in items(cache):
        if item.kind in ("stage", "tables"):
            try:
                store.load(item.name)
            except Damaged as err:
                faults.append((item, str(err)))
    return faults


def prune(
    cache: Path,
    *,
    max_size: int | None = None,
    older_than: float | None = None,
    editable: bool = False,
    now: float | None = None,
) -> Pruned:
    """Remove debris and build folders whose project is gone; then what was not used for long; then, the longest unused
    first, as much as is needed to keep to a size.

    max_size: in bytes. older_than: in seconds. editable: build folders that editable installs load from may go too.
    A last use that lies in the future, since the clock was set back, counts as now.
    """
    present = time.time() if now is None else now
    found = [replace(item, used=min(item.used, present)) for item in items(cache)]
    wanted = [item for item in found if item.kind == "debris" or item.note == "project gone"]
    others = sorted((item for item in found if item not in wanted), key=lambda item: item.used)
    if older_than is not None:
        wanted += [item for item in others if present - item.used > older_than]
        others = [item for item in others if present - item.used <= older_than]
    removed, kept = _remove(wanted, editable=editable)
    _remove_locks(cache)
    if max_size is not None:
        total = sum(item.bytes for item in found) - sum(item.bytes for item in removed)
        for item in others:
            if total <= max_size:
                break
            gone, stays = _remove([item], editable=editable)
            removed += gone
            kept += stays
            total -= sum(one.bytes for one in gone)
        _remove([item for item in items(cache) if item.kind == "debris"], editable=editable)  # names of what went
    return Pruned(removed=tuple(removed), kept=tuple(kept), left=sum(item.bytes for item in items(cache)))


def clear(cache: Path, *, editable: bool = False) -> Pruned:
    """Remove all that no running build uses. editable: as for prune."""
    removed, kept = _remove(items(cache), editable=editable)
    _remove_locks(cache)
    _remove([item for item in items(cache) if item.kind == "debris"], editable=editable)
    return Pruned(removed=tuple(removed), kept=tuple(kept), left=sum(item.bytes for item in items(cache)))


def _remove_locks(cache: Path) -> None:
    """Remove the files of locks that nobody holds. Whoever waits for one notices (rocmbuild.locks)."""
    for entry in _entries(cache / "stages" / ".locks"):
        with contextlib.suppress(OSError):
            lock = Lock.attempt(Path(entry.path), create=False)
            if lock:
                lock.remove()


def _remove(wanted: Iterable[Item], *, editable: bool) -> tuple[list[Item], list[Kept]]:
    removed: list[Item] = []
    kept: list[Kept] = []
    for item in wanted:
        reason = "an editable install loads from it" if item.note == "editable" and not editable else _remove_one(item)
        if not reason:
            removed.append(item)
        elif item.kind != "debris":
            kept.append(Kept(item=item, reason=reason))
    return removed, kept


def _remove_one(item: Item) -> str:
    """Remove an item; why it stays, or "" where it is gone."""
    lock = None
    try:
        if item.kind == "build":
            lock = Lock.attempt(item.path / ".lock", create=True)
        elif item.name.startswith(".new-"):
            owner = item.name[len(".new-") :].rsplit("-", 1)[0]
            lock = Lock.attempt(Store(item.path.parent).lock_of(owner))
        else:
            _delete(item.path)
            return ""
        if lock is None:
            return "in use" if item.path.exists() else ""
        _delete(item.path)
        if item.kind != "build":
            lock.remove()
    except FileNotFoundError:
        return ""
    except OSError as err:
        return f"{err.filename or item.path}: {err.strerror}"
    finally:
        if lock:
            lock.release()
    return ""


def _delete(path: Path) -> None:
    """A file, or a folder that goes out of sight at once, so that nobody finds half of it."""
    if path.is_dir() and not path.is_symlink():
        trash = Path(tempfile.mkdtemp(prefix=_TRASH, dir=path.parent))
        path.rename(trash / "folder")
        shutil.rmtree(trash)
    else:
        path.unlink(missing_ok=True)
