"""The content-addressed store: an entry is a folder that appears whole, with a manifest of digests.

Layout: `<root>/<key>/manifest.json` beside the entry's trees, `<root>/.locks/<key>.lock`, and, while an
entry is being made, `<root>/.new-<key>-*`. An entry is read without a lock: it is checked whole, by content,
each time. Locks are the operating system's and end with the process that holds them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmbuild import console
from rocmbuild.errors import EnvironmentFailure

__all__ = ["Entry", "Store", "digest"]

_MANIFEST = "manifest.json"


def digest(data: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A whole, checked entry. files: path below the entry -> digest. facts: what its maker wrote down."""

    root: Path
    files: Mapping[str, str] = field(repr=False)
    facts: Mapping[str, Any] = field(repr=False)


class _Broken(Exception):
    """An entry that must not be used; the text says why."""


def _listing(root: str) -> Iterator[str]:
    """Relative paths of everything below root that is not a folder."""
    stack = [""]
    while stack:
        folder = stack.pop()
        with os.scandir(os.path.join(root, folder) if folder else root) as scan:
            for entry in scan:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    stack.append(path)
                else:
                    yield path


def _read(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        return file.read()


@contextlib.contextmanager
def _environment(root: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that names the folder."""
    try:
        yield
    except OSError as err:
        where = f"{root}" if err.filename is None else f"{err.filename}"
        hint = "free some space there" if err.errno in (errno.ENOSPC, errno.EDQUOT) else "make the folder writable"
        raise EnvironmentFailure(
            f"the cache {root} cannot be written: {where}: {err.strerror}",
            hint=f"{hint}, or set ROCMBUILD_CACHE_DIR to another folder",
        ) from err


class Store:
    """Entries of one kind below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, key: str) -> Entry | None:
        """The entry, checked by content, or None where there is none. Raises nothing else than _Broken."""
        root = os.path.join(self.root, key)
        try:
            text = _read(os.path.join(root, _MANIFEST))
        except FileNotFoundError:
            if os.path.lexists(root):
                raise _Broken("its manifest is missing") from None
            return None
        except OSError as err:
            raise _Broken(f"its manifest cannot be read ({err.strerror})") from err
        stated, _, body = text.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != stated:
            raise _Broken("its manifest was changed")
        manifest = json.loads(body)
        files: dict[str, list[Any]] = manifest["files"]
        try:
            present = set(_listing(root)) - {_MANIFEST}
            if extra := sorted(present - files.keys()):
                raise _Broken(f"{extra[0]!r} does not belong to it")
            for path, (size, wanted) in files.items():
                data = _read(os.path.join(root, path))
                if len(data) != size or hashlib.sha256(data).hexdigest() != wanted:
                    raise _Broken(f"{path!r} was changed")
        except FileNotFoundError as err:
            raise _Broken(f"{os.path.relpath(err.filename, root)!r} is missing") from err
        except OSError as err:
            raise _Broken(f"{os.path.relpath(err.filename, root)!r} cannot be read ({err.strerror})") from err
        return Entry(
            root=Path(root), files={path: wanted for path, (_, wanted) in files.items()}, facts=manifest["facts"]
        )

    def get(self, key: str, make: Callable[[Path], Mapping[str, Any]], *, what: str) -> Entry:
        """The entry of this key; made, once among all processes, where there is none or a damaged one.

        make(folder) fills a private folder and returns the facts to keep. Errors of make pass through and
        leave nothing. Raises EnvironmentFailure where the cache cannot be written.
        """
        try:
            entry = self.load(key)
        except _Broken:
            entry = None  # told below, by the process that holds the lock
        if entry is not None:
            return entry
        from filelock import FileLock  # only what makes an entry needs the lock

        with _environment(self.root):
            (self.root / ".locks").mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.root / ".locks" / f"{key}.lock")
            lock.acquire()
        try:
            try:
                entry = self.load(key)
            except _Broken as err:
                console.note(f"rocmbuild: {what} {key[:12]} in the cache was damaged ({err}); it is made again")
                with _environment(self.root):
                    trash = tempfile.mkdtemp(prefix=f".new-{key}-", dir=self.root)
                    os.rename(self.root / key, os.path.join(trash, "damaged"))
            if entry is None:
                self._sweep(key)
                entry = self._make(key, make)
            return entry
        finally:
            lock.release()

    def _make(self, key: str, make: Callable[[Path], Mapping[str, Any]]) -> Entry:
        with _environment(self.root):
            folder = Path(tempfile.mkdtemp(prefix=f".new-{key}-", dir=self.root))
        try:
            with _environment(self.root):
                facts = make(folder)
                files = {}
                for path in sorted(_listing(str(folder))):
                    data = (folder / path).read_bytes()
                    files[path] = (len(data), digest(data))
                body = json.dumps({"facts": facts, "files": files}, sort_keys=True).encode("ascii")
                (folder / _MANIFEST).write_bytes(digest(body).encode() + b"\n" + body)
                folder.chmod(0o755)
                os.rename(folder, self.root / key)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        kept = json.loads(body)["facts"]  # as a later load gives them
        return Entry(root=self.root / key, files={path: wanted for path, (_, wanted) in files.items()}, facts=kept)

    def _sweep(self, key: str) -> None:
        """Remove what killed processes left: unfinished entries whose lock nobody holds. `key` is locked by us."""
        from filelock import FileLock, Timeout

        with os.scandir(self.root) as scan:
            left = [entry.name for entry in scan if entry.name.startswith(".new-")]
        for name in left:
            owner = name[len(".new-") :].rsplit("-", 1)[0]
            if owner == key:
                shutil.rmtree(self.root / name, ignore_errors=True)
                continue
            lock = FileLock(self.root / ".locks" / f"{owner}.lock")
            with contextlib.suppress(Timeout, OSError), lock.acquire(timeout=0):
                shutil.rmtree(self.root / name, ignore_errors=True)
