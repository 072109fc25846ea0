"""The content-addressed store: an entry is one file that appears whole, checked whole by content at each use.

Layout: `<root>/<key>` is an entry: the SHA-256 of all that follows in hexadecimal, a line of JSON, then bytes.
`<root>/.locks/<key>.lock` is held while it is made, `<root>/.new-<key>-*` is what has been written of it so far.
`<root>/.last/<name>` holds the key of the entry that was last used under a name. An entry is read at once and without a
lock, so that nothing of the cache is in use after that. Locks are the operating system's and end with their holder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmbuild import console
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.locks import Lock
from rocmbuild.paths import write_atomic

__all__ = ["KEY", "Damaged", "Entry", "Made", "Store"]

KEY = re.compile(r"[0-9a-f]{64}\Z")
"""The name of an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What an entry is made of: facts, which are JSON, in the order of their keys, and bytes.

    fresh: what was made anew for it; it is not kept.
    """

    facts: Mapping[str, Any]
    blobs: Sequence[bytes | memoryview]
    fresh: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A whole, checked entry. fresh: what was made anew for it just now."""

    path: Path
    facts: Mapping[str, Any] = field(repr=False)
    data: memoryview = field(repr=False)
    fresh: Sequence[str] = ()


class Damaged(Exception):
    """An entry that must not be used; the text says why."""


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


def _read(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        return file.read()


class Store:
    """Entries of one kind below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, key: str) -> Entry | None:
        """The entry, checked by content, or None where there is none. Raises Damaged, and nothing else."""
        path = os.path.join(self.root, key)
        try:
            whole = _read(path)
        except FileNotFoundError:
            return None
        except OSError as err:
            raise Damaged(f"it cannot be read: {err.strerror}") from err
        if whole[64:65] != b"\n":
            raise Damaged("it is cut short or is no stage")
        view = memoryview(whole)  # no copies: it can be large
        if hashlib.sha256(view[65:]).hexdigest().encode() != whole[:64]:
            raise Damaged("its content differs from its digest")
        end = whole.index(b"\n", 65)
        return Entry(path=Path(path), facts=json.loads(whole[65:end]), data=view[end + 1 :])

    def get(self, key: str, make: Callable[[], Made], *, what: str) -> Entry:
        """The entry of this key; made, once among all processes, where there is none or a damaged one.

        make gives its facts and bytes. Errors of make pass through and leave nothing. Raises EnvironmentFailure where
        the cache cannot be written.
        """
        try:
            entry = self.load(key)
        except Damaged:
            entry = None  # told below, by the process that holds the lock
        if entry is not None:
            with contextlib.suppress(OSError):
                os.utime(entry.path)  # when it was last used, for `cache prune` alone
            return entry
        with _environment(self.root):
            lock = Lock.acquire(self.lock_of(key))
        try:
            try:
                entry = self.load(key)
            except Damaged as err:
                console.note(f"rocmbuild: {what} {key[:12]} in the cache was damaged ({err}); it is made again")
            if entry is None:
                self.sweep(mine=key)
                entry = self._make(key, make)
            return entry
        finally:
            lock.release()

    def lock_of(self, key: str) -> Path:
        """The lock under which an entry is made."""
        return self.root / ".locks" / f"{key}.lock"

    def keep(self, key: str, made: Made) -> None:
        """Write an entry that is of use and not needed: nothing is said where it cannot be written."""
        with contextlib.suppress(EnvironmentFailure):
            self._make(key, lambda: made)

    def _make(self, key: str, make: Callable[[], Made]) -> Entry:
        with _environment(self.root):
            handle, name = tempfile.mkstemp(prefix=f".new-{key}-", dir=self.root)
        try:
            with os.fdopen(handle, "wb") as file:
                made = make()
                head = json.dumps(made.facts).encode("ascii") + b"\n"
                data = b"".join(made.blobs)
                whole = hashlib.sha256(head)
                whole.update(data)
                with _environment(self.root):
                    file.write(whole.hexdigest().encode() + b"\n" + head)
                    file.write(data)
                    file.flush()
            with _environment(self.root):
                os.chmod(name, 0o644)
                path = self.root / key
                if path.is_dir() and not path.is_symlink():  # of an older layout, or put there by somebody
                    os.rename(path, tempfile.mkdtemp(prefix=f".new-{key}-", dir=self.root))
                os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        return Entry(path=path, facts=made.facts, data=memoryview(data), fresh=tuple(made.fresh))

    def sweep(self, *, mine: str = "") -> list[str]:
        """Remove what killed processes left: unfinished entries whose lock nobody else holds. mine: locked by us."""
        import shutil  # rarely needed

        removed = []
        try:
            with os.scandir(self.root) as scan:
                left = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan]
        except FileNotFoundError:
            return []
        for name, folder in left:
            if not name.startswith(".new-"):
                continue
            owner = name[len(".new-") :].rsplit("-", 1)[0]
            lock = None
            if owner != mine and (lock := Lock.attempt(self.lock_of(owner))) is None:
                continue
            with contextlib.suppress(OSError):
                path = os.path.join(self.root, name)
                shutil.rmtree(path) if folder else os.unlink(path)
                removed.append(name)
            if lock:
                lock.release()
        return removed

    def last(self, names: Sequence[str]) -> Entry | None:
        """The entry last used under the first name that has a whole one: a hint, never trusted for more."""
        for key in self._last_keys(names):
            try:
                if entry := self.load(key):
                    return entry
            except (ValueError, Damaged):
                continue
        return None

    def last_size(self, names: Sequence[str]) -> int:
        """The bytes of that entry, unread; 0 where there is none."""
        for key in self._last_keys(names):
            with contextlib.suppress(OSError):
                return os.stat(os.path.join(self.root, key)).st_size
        return 0

    def _last_keys(self, names: Sequence[str]) -> Iterator[str]:
        for name in names:
            with contextlib.suppress(OSError):
                key = _read(os.path.join(self.root, ".last", name)).decode("ascii", "replace")
                if KEY.match(key):
                    yield key

    def remember(self, names: Sequence[str], key: str) -> None:
        """Note that an entry was used under these names. A cache that cannot be written stays as it is."""
        for name in names:
            path = self.root / ".last" / name
            with contextlib.suppress(OSError):
                if not path.is_file() or path.read_bytes() != key.encode():
                    write_atomic(path, key.encode())
