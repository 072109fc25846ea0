"""The AMDGPU metadata note: a map in MessagePack with a row for each kernel (AMDGPUUsage, "Code Object Metadata").

A library has tens of thousands of kernels whose rows are mostly descriptions of arguments, and those repeat; the same
kernels come again for each target, often with the very same row. So the maps are walked here, value by value, and what
is byte for byte the same as before is not decoded again. That is safe: no encoding of a value is the beginning of
another one's, so bytes that begin with a value seen before are that value.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any

__all__ = ["NamelessKernel", "NoKernelList", "RowMemory", "read_note"]

_SMALL_ARGUMENTS = 1 << 13
_VARIANTS = 6


class NoKernelList(ValueError):
    """The note is no map with a list of kernels."""


class NamelessKernel(ValueError):
    """A kernel's row without its name. index: its place in the list."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


class RowMemory:
    """Rows of the code objects before, by their place in the list; at most 8 MiB of them."""

    __slots__ = ("_room", "_rows")

    def __init__(self) -> None:
        self._room = 1 << 23
        self._rows: list[list[tuple[bytes, dict[Any, Any]]]] = []

    def find(self, index: int, note: bytes, at: int) -> tuple[int, dict[Any, Any]] | None:
        """(length, row) where the row at a place is one that was there before."""
        if index < len(self._rows):
            rows = self._rows[index]
            for number, (raw, row) in enumerate(rows):
                if note.startswith(raw, at):
                    if number:
                        rows.insert(0, rows.pop(number))
                    return len(raw), row
        return None

    def keep(self, index: int, raw: bytes, row: dict[Any, Any]) -> None:
        """Remember a row."""
        if self._room < len(raw):
            return
        if index == len(self._rows):
            self._rows.append([])
        if index < len(self._rows):
            rows = self._rows[index]
            self._room -= len(raw)
            rows.insert(0, (raw, row))
            if len(rows) > _VARIANTS:
                self._room += len(rows.pop()[0])


def read_note(note: bytes, keys: Collection[str], memory: RowMemory | None = None) -> tuple[str, list[dict[Any, Any]]]:
    """(amdhsa.target, rows) of a note: of each kernel the values of keys, and ".args" as "kind size" texts.

    memory: of notes that were read before with the same keys; rows that are the same are the same objects.

    Raises NoKernelList, NamelessKernel, and ValueError, TypeError, IndexError or msgpack's own errors for damage. One
    row's tree is in memory at a time.
    """
    walker = _Walker(note, frozenset(keys))
    target = ""
    memory = memory or RowMemory()
    rows: list[dict[Any, Any]] = []
    for _ in range(walker.length(walker.reader.read_map_header)):
        key = walker.reader.unpack()
        if not isinstance(key, str):
            raise TypeError(f"a key is {key!r:.40}, not a name")
        if key == "amdhsa.target":
            said = walker.reader.unpack()
            target = said if isinstance(said, str) else ""
        elif key == "amdhsa.kernels":
            number = walker.length(walker.reader.read_array_header)
            at = walker.reader.tell()
            for index in range(number):
                known = memory.find(index, note, at)
                if known:
                    at += known[0]
                    rows.append(known[1])
                    continue
                start = at
                walker.go(at)
                row = walker.row()
                at = walker.reader.tell()
                for name in (".name", ".symbol"):  # at once: rows without them would be many and small
                    if not isinstance(row.get(name), str):
                        raise NamelessKernel(index, f"{name} is {row.get(name)!r:.40}, wanted a name")
                rows.append(row)
                memory.keep(index, note[start:at], row)
            walker.go(at)
        else:
            walker.reader.skip()
    left = len(note) - walker.reader.tell()
    if left:
        raise ValueError(f"{left} bytes follow")
    return target, rows


class _Walker:
    """A place in a note. keys: those of a row that are wanted."""

    def __init__(self, note: bytes, keys: frozenset[str]) -> None:
        import msgpack  # for code objects only

        self.note = note
        self.keys = keys
        self.known: list[tuple[bytes, tuple[str, ...]]] = []
        self.reader = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=max(1, len(note)))
        self.reader.feed(note)

    def go(self, at: int) -> None:
        """Go forward to a place."""
        if at > len(self.note):
            raise IndexError("the end comes too early")
        self.reader.read_bytes(at - self.reader.tell())

    def length(self, read: Callable[[], int]) -> int:
        """The number of items of the map or list that begins here, by one of the reader's methods."""
        try:
            return read()
        except ValueError as err:
            at = self.reader.tell()
            if self.note[at : at + 1] == b"\xc1":  # begins nothing
                raise
            raise NoKernelList from err

    def row(self) -> dict[Any, Any]:
        """One kernel's map: what is wanted of it."""
        row: dict[Any, Any] = {".args": ()}
        keys, unpack, skip = self.keys, self.reader.unpack, self.reader.skip
        for _ in range(self.length(self.reader.read_map_header)):
            key = unpack()
            if key in keys:
                row[key] = unpack()
            elif key == ".args":
                row[key] = self.arguments()
            elif isinstance(key, str):
                skip()
            else:
                raise TypeError(f"a key is {key!r:.40}, not a name")
        return row

    def arguments(self) -> tuple[str, ...]:
        """The value here as "kind size" of each argument that the source has."""
        start = self.reader.tell()
        for index, (raw, found) in enumerate(self.known):
            if self.note.startswith(raw, start):
                self.reader.read_bytes(len(raw))
                if index:
                    self.known.insert(0, self.known.pop(index))
                return found
        self.reader.skip()
        raw = self.note[start : self.reader.tell()]
        found = _small_arguments(raw) if len(raw) <= _SMALL_ARGUMENTS else _arguments(raw)
        self.known.insert(0, (raw, found))
        del self.known[32:]
        return found


@functools.lru_cache(maxsize=512)
def _small_arguments(raw: bytes) -> tuple[str, ...]:
    return _arguments(raw)


def _arguments(raw: bytes) -> tuple[str, ...]:
    """ "kind size" of each argument; those that the compiler adds ("hidden_...") are left out."""
    import msgpack

    found = msgpack.unpackb(raw, raw=False, strict_map_key=False)
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    texts = [f"{row.get('.value_kind', '?')!s:.80} {row.get('.size', '?')!s:.20}" for row in rows]
    return tuple(sys.intern(text) for text in texts if not text.startswith("hidden_"))
