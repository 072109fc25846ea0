"""The little of ELF that an audit needs, read with every length checked (System V gABI, 64-bit little-endian).

Not pyelftools: an audit meets hostile and truncated files, whose faults must come out as one error
with file and offset, and it reads thousands of symbols where speed counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rocmbuild.audit.source import Data

__all__ = [
    "EM_AMDGPU",
    "EM_X86_64",
    "MAGIC",
    "PT_LOAD",
    "STB_WEAK",
    "Elf",
    "Section",
    "Segment",
    "Symbol",
    "is_elf64",
    "read_elf",
]

MAGIC = b"\x7fELF"
EM_X86_64 = 62
EM_AMDGPU = 224
SHT_NOBITS = 8
SHT_NOTE = 7
PT_LOAD = 1
PT_NOTE = 4
DT_NEEDED = 1
DT_SONAME = 14
STB_WEAK = 2
_WHOLE = 1 << 22  # string tables up to 4 MiB are read at once
_PAGE = 1 << 16
_PAGES = 16
_MAX_NAME = 1 << 20
_MAX_SECTIONS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section header; its fields as in Elf64_Shdr."""

    name: str
    type: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A program header."""

    type: int
    offset: int
    address: int
    file_size: int


class Symbol(NamedTuple):  # not a dataclass: a library has tens of thousands, and these are made three times faster
    """A symbol; section 0 is undefined."""

    name: str
    section: int
    binding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Elf:
    """An ELF file's headers, and what they lead to on request."""

    data: Data = field(repr=False)
    type: int
    machine: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]
    segments: tuple[Segment, ...]

    def section(self, name: str) -> Section | None:
        """The first section of that name."""
        return next((section for section in self.sections if section.name == name), None)

    def contents(self, section: Section) -> Data:
        """A section's bytes."""
        if section.type == SHT_NOBITS:
            return self.data.window(0, 0, section.name)
        return self.data.window(section.offset, section.size, f"section {section.name or '(no name)'}")

    def notes(self) -> Iterator[tuple[bytes, int, bytes]]:
        """(owner, type, description) of every note: from the segments, else from the sections."""
        areas = [
            self.data.window(s.offset, s.file_size, "note segment") for s in self.segments if s.type == PT_NOTE
        ] or [self.contents(s) for s in self.sections if s.type == SHT_NOTE]
        if sum(area.size for area in areas) > self.data.size:
            raise self.data.error(0, "the notes overlap: together they are larger than the file")
        for area in areas:
            offset = 0
            while offset + 12 <= area.size:
                owner_size, size, kind = struct.unpack("<III", area.read(offset, 12, "note header"))
                owner = area.read(offset + 12, owner_size, "note owner")
                start = offset + 12 + _up(owner_size, 4)
                yield owner.rstrip(b"\0"), kind, area.read(start, size, "note description")
                offset = start + _up(size, 4)

    def symbols(self, table: str) -> Iterator[Symbol]:
        """The symbols of ".dynsym" or ".symtab"; nothing where the file has no such table."""
        section = self.section(table)
        if section is None:
            return
        names = self._strings(section)
        for name, info, _other, index, _value, _size in self._entries(section):
            yield Symbol(name=names(name), section=index, binding=info >> 4)

    def values(self, table: str, size: int) -> Iterator[tuple[bytes, int]]:
        """(name, value) of the defined symbols of a size, quickly: the whole string table is read."""
        section = self.section(table)
        if section is None:
            return
        strings = self._strings(section).whole()
        for name, _info, _other, index, value, length in self._entries(section):
            if length == size and index:
                end = strings.find(b"\0", name)
                if end < 0:
                    raise self.data.error(0, f"a name at 0x{name:x} lies outside the string table or has no end")
                yield strings[name:end], value

    def _entries(self, section: Section) -> Iterator[tuple[int, ...]]:
        """The entries of a symbol table: name, info, other, section, value, size."""
        entries = self.contents(section)
        step = 24 * 4096
        for offset in range(0, entries.size - entries.size % 24, step):
            block = entries.read(offset, min(step, entries.size - entries.size % 24 - offset), "symbols")
            yield from struct.iter_unpack("<IBBHQQ", block)

    def dynamic(self) -> Iterator[tuple[int, str]]:
        """(tag, string) of the DT_NEEDED and DT_SONAME entries of .dynamic."""
        section = self.section(".dynamic")
        if section is None or section.type == SHT_NOBITS:
            return
        entries = self.contents(section)
        names = self._strings(section)
        for tag, value in struct.iter_unpack("<QQ", entries.read(0, entries.size - entries.size % 16, ".dynamic")):
            if tag == 0:
                return
            if tag in (DT_NEEDED, DT_SONAME):
                yield tag, names(value)

    def _strings(self, section: Section) -> _Strings:
        if section.link >= len(self.sections):
            raise self.data.error(0, f"section {section.name} names string table {section.link}, which is not there")
        return _Strings(self.contents(self.sections[section.link]))


class _Strings:
    """A string table: whole where it is small, else by pages, of which the last few are kept."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._pages: dict[int, bytes] = {}
        self._size = data.size if data.size <= _WHOLE else _PAGE

    def __call__(self, offset: int) -> str:
        if not self._data.size and offset == 0:
            return ""
        number, start = divmod(offset, self._size) if self._size else (0, 0)
        page = self._page(number)
        end = page.find(b"\0", start)
        if end >= 0 and start < len(page):
            return page[start:end].decode("utf-8", "backslashreplace")
        parts = [page[start:]]
        while end < 0 and number * self._size < self._data.size and len(parts) * self._size <= _MAX_NAME:
            number += 1
            page = self._page(number)
            end = page.find(b"\0")
            parts.append(page if end < 0 else page[:end])
        if end < 0:
            what = f"a name at 0x{offset:x} lies outside the string table ({self._data.size} bytes) or has no end"
            raise self._data.error(0, what)
        return b"".join(parts).decode("utf-8", "backslashreplace")

    def whole(self) -> bytes:
        """All its bytes."""
        return self._data.read(0, self._data.size, "string table")

    def _page(self, number: int) -> bytes:
        if number not in self._pages:
            start = number * self._size
            size = max(0, min(self._size, self._data.size - start))
            if len(self._pages) >= _PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[number] = self._data.read(start, size, "string table") if size else b""
        return self._pages[number]


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def is_elf64(data: Data) -> bool:
    """Whether it is an ELF file of the only kind that carries HIP code: 64-bit, little-endian."""
    return data.size >= 64 and data.read(0, 6, "ELF identification") == MAGIC + b"\x02\x01"


def read_elf(data: Data) -> Elf:
    """Read the headers. InputError where it is no 64-bit little-endian ELF file, or a table lies outside it."""
    if data.size < 64 or data.read(0, 4, "ELF magic") != MAGIC:
        raise data.error(0, "not an ELF file (magic 7f 45 4c 46 and a header of 64 bytes wanted)")
    head = data.read(0, 64, "ELF header")
    if head[4:6] != b"\x02\x01":
        raise data.error(4, "not a 64-bit little-endian ELF file")
    kind, machine, _version, _entry, phoff, shoff, flags, _ehsize, phentsize, phnum, shentsize, shnum, shstrndx = (
        struct.unpack("<HHIQQQIHHHHHH", head[16:64])
    )
    if shoff and shentsize != 64:
        raise data.error(58, f"section headers of {shentsize} bytes (64 wanted)")
    if phnum and phentsize != 56:
        raise data.error(54, f"program headers of {phentsize} bytes (56 wanted)")
    if shoff and (shnum == 0 or shstrndx == 0xFFFF):
        first = struct.unpack("<IIQQQQIIQQ", data.read(shoff, 64, "first section header"))
        shnum = shnum or first[5]
        if shnum > _MAX_SECTIONS:
            raise data.error(shoff, f"{shnum} sections are not plausible (at most {_MAX_SECTIONS})")
        shstrndx = first[6] if shstrndx == 0xFFFF else shstrndx
    segments = tuple(
        Segment(type=p[0], offset=p[2], address=p[3], file_size=p[5])
        for p in struct.iter_unpack("<IIQQQQQQ", data.read(phoff, 56 * phnum, "program headers"))
    )
    rows = list(struct.iter_unpack("<IIQQQQIIQQ", data.read(shoff, 64 * shnum if shoff else 0, "section headers")))
    names: _Strings | None = None
    if rows:
        if shstrndx >= len(rows):
            raise data.error(62, f"section name table {shstrndx} is not there ({len(rows)} sections)")
        row = rows[shstrndx]
        if row[1] != SHT_NOBITS and shstrndx:
            names = _Strings(data.window(row[4], row[5], "section names"))
    sections = tuple(
        Section(
            name=names(row[0]) if names else "",
            type=row[1],
            offset=row[4],
            size=row[5],
            link=row[6],
        )
        for row in rows
    )
    return Elf(
        data=data,
        type=kind,
        machine=machine,
        abi_version=head[8],
        flags=flags,
        sections=sections,
        segments=segments,
    )
