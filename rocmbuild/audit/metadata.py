"""The AMDGPU metadata note: a map in MessagePack with a row for each kernel (AMDGPUUsage, "Code Object Metadata").

A library has tens of thousands of kernels whose rows are mostly descriptions of arguments, and those repeat; the same
kernels come again for each target, often with the very same row. So the rows are walked here, byte by byte for what a
row really holds (short strings, small numbers), and msgpack takes what is anything else; what is byte for byte the same
as before is not decoded again. That is safe: no encoding of a value is the beginning of another one's, so
bytes that begin with a value seen before are that value.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection
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
    walker = _Walker(note, {key.encode(): key for key in (*keys, ".args")})
    target = ""
    memory = memory or RowMemory()
    rows: list[dict[Any, Any]] = []
    for _ in range(walker.length(0x80, 0xDE)):
        key = walker.value()
        if not isinstance(key, str):
            raise TypeError(f"a key is {key!r:.40}, not a name")
        if key == "amdhsa.target":
            said = walker.value()
            target = said if isinstance(said, str) else ""
        elif key == "amdhsa.kernels":
            for index in range(walker.length(0x90, 0xDC)):
                known = memory.find(index, note, walker.at)
                if known:
                    walker.at += known[0]
                    rows.append(known[1])
                    continue
                start = walker.at
                row = walker.row()
                for name in (".name", ".symbol"):  # at once: rows without them would be many and small
                    if not isinstance(row.get(name), str):
                        raise NamelessKernel(index, f"{name} is {row.get(name)!r:.40}, wanted a name")
                rows.append(row)
                memory.keep(index, note[start : walker.at], row)
        else:
            walker.skip()
    if walker.at != len(note):
        raise ValueError(f"{len(note) - walker.at} bytes follow")
    return target, rows


class _Walker:
    """A place in a note."""

    def __init__(self, note: bytes, keys: dict[bytes, str]) -> None:
        import msgpack  # for code objects only

        self.note = note
        self.at = 0
        self.keys = keys
        self.known: list[tuple[bytes, tuple[str, ...]]] = []
        self.reader = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=max(1, len(note)))
        self.reader.feed(note)

    def length(self, short: int, long: int) -> int:
        """The number of items of the map or list that begins here. short, long: its first bytes (MessagePack)."""
        first = self.note[self.at] if self.at < len(self.note) else long
        if short <= first < short + 16:
            self.at += 1
            return first - short
        if first not in (long, long + 1):
            if first == 0xC1:
                raise ValueError("the byte c1 begins nothing")
            raise NoKernelList
        size = 2 if first == long else 4
        raw = self.note[self.at + 1 : self.at + 1 + size]
        if len(raw) < size:
            raise IndexError("the end comes too early")
        self.at += 1 + size
        return int.from_bytes(raw, "big")

    def value(self) -> Any:
        """Any value, by msgpack."""
        self.reader.read_bytes(self.at - self.reader.tell())
        found = self.reader.unpack()
        self.at = self.reader.tell()
        return found

    def skip(self) -> None:
        """Go past a value."""
        self.reader.read_bytes(self.at - self.reader.tell())
        self.reader.skip()
        self.at = self.reader.tell()

    def row(self) -> dict[str, Any]:
        """One kernel's map: what is wanted of it."""
        row: dict[str, Any] = {".args": ()}
        note, keys = self.note, self.keys
        for _ in range(self.length(0x80, 0xDE)):
            at = self.at
            first = note[at]
            if 0xA0 <= first <= 0xBF:
                self.at = end = at + 1 + (first & 31)
                key = keys.get(note[at + 1 : end])
            else:
                said = self.value()
                if not isinstance(said, str):
                    raise TypeError(f"a key is {said!r:.40}, not a name")
                key = keys.get(said.encode("utf-8", "surrogateescape"))
            if key == ".args":
                row[key] = self.arguments()
                continue
            at = self.at
            first = note[at]
            if first < 0x80:  # a number below 128
                self.at = at + 1
                if key:
                    row[key] = first
            elif 0xA0 <= first <= 0xBF and key is None:
                self.at = at + 1 + (first & 31)
            elif key:
                row[key] = self.value()
            else:
                self.skip()
        if self.at > len(note):
            raise IndexError("the end comes too early")
        return row

    def arguments(self) -> tuple[str, ...]:
        """The value here as "kind size" of each argument that the source has."""
        for index, (raw, found) in enumerate(self.known):
            if self.note.startswith(raw, self.at):
                self.at += len(raw)
                if index:
                    self.known.insert(0, self.known.pop(index))
                return found
        start = self.at
        self.skip()
        raw = self.note[start : self.at]
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
