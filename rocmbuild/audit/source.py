"""Bounded random access to bytes: a file, a member of a wheel, a buffer, or a window of one of them.

Every read names what is read; one that reaches past the end is an InputError with the file and the
offset, so that no length in a file is believed before it is checked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rocmbuild.errors import InputError, printable

__all__ = ["Data", "from_bytes", "open_file"]

_CHUNK = 1 << 16


class Data:
    """size bytes at random access. Offsets are relative to the window; messages give them in the whole file.

    base: the window's offset in the whole. read: takes an offset in the whole and a size that was checked.
    """

    __slots__ = ("_read", "base", "name", "size")

    def __init__(self, name: str, size: int, read: Callable[[int, int], bytes], base: int = 0) -> None:
        self.name = name
        self.size = size
        self._read = read
        self.base = base

    def place(self, offset: int = 0) -> str:
        """File and offset, for messages."""
        return f"{printable(self.name, limit=1000)}: offset 0x{max(0, self.base + offset):x}"

    def error(self, offset: int, message: str) -> InputError:
        """An error of one line that names file and offset; the caller raises it."""
        return InputError(f"{self.place(offset)}: {printable(message, limit=2000)}")

    def check(self, offset: int, size: int, what: str) -> None:
        """Raise InputError unless offset..offset+size lies inside."""
        if offset < 0 or size < 0 or offset + size > self.size:
            there = max(0, self.size - max(0, offset))
            raise self.error(offset, f"{what} wants {size} bytes, {there} are there (truncated file or lying size)")

    def read(self, offset: int, size: int, what: str) -> bytes:
        """Exactly size bytes."""
        self.check(offset, size, what)
        data = self._read(self.base + offset, size)
        if len(data) != size:
            raise self.error(offset, f"{what}: {len(data)} of {size} bytes could be read")
        return data

    def window(self, offset: int, size: int, what: str) -> Data:
        """A part as Data of its own, sharing the bytes."""
        self.check(offset, size, what)
        return Data(self.name, size, self._read, self.base + offset)

    def held(self, what: str) -> Data:
        """The same bytes, read into memory once; messages name the same places."""
        raw, base = self.read(0, self.size, what), self.base
        return Data(self.name, self.size, lambda offset, size: raw[offset - base : offset - base + size], base)

    def skip_zeros(self, offset: int) -> int:
        """The offset of the first byte from offset on that is not zero, or size."""
        while offset < self.size:
            chunk = self.read(offset, min(_CHUNK, self.size - offset), "padding")
            rest = chunk.lstrip(b"\0")
            if rest:
                return offset + len(chunk) - len(rest)
            offset += len(chunk)
        return self.size


def from_bytes(name: str, data: bytes) -> Data:
    """A buffer as Data."""
    return Data(name, len(data), lambda offset, size: data[offset : offset + size])


@contextmanager
def open_file(path: Path) -> Iterator[Data]:
    """A regular file as Data, for the length of the block."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{printable(str(path), limit=1000)}: not a regular file")
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as err:  # ValueError: a null byte in the path
        why = err.strerror if isinstance(err, OSError) else err
        raise InputError(f"{printable(str(path), limit=1000)}: cannot be read ({why})") from err
    try:
        yield Data(str(path), os.fstat(handle).st_size, lambda offset, size: os.pread(handle, size, offset))
    finally:
        os.close(handle)
