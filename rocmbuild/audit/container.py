"""LLVM's offload containers, which clang's newer driver puts into objects (section .llvm.offloading).

Layout, version 1 (LLVM, llvm/Object/OffloadBinary.h; all little-endian): the bytes 10 ff 10 ad, u32 version, u64 size
of the container, u64 offset and u64 size of the entry; the entry: u16 kind of image (1 object, 2 bitcode, ...), u16
kind of offloading (4 HIP), u32 flags, u64 offset and u64 number of strings (pairs of u64 offsets: key and value, zero
terminated), u64 offset and u64 size of the image. Offsets are from the container's start.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from rocmbuild.audit.source import Data

__all__ = ["Image", "images"]

MAGIC = b"\x10\xff\x10\xad"
_MAX_STRINGS = 64
_MAX_STRING = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image. target: the processor with its features ("arch"), "" where the container names none."""

    target: str
    triple: str
    data: Data = field(repr=False, compare=False)


def images(data: Data) -> Iterator[Image]:
    """The images in a section, in order. InputError names what is wrong with it."""
    offset = 0
    while offset < data.size:
        if data.read(offset, min(4, data.size - offset), "offload container magic") != MAGIC:
            raise data.error(offset, "no offload container begins here")
        version, size, at, length = struct.unpack("<IQQQ", data.read(offset + 4, 28, "offload container header"))
        if version != 1:
            raise data.error(offset + 4, f"offload container format {version} is not known (1 is)")
        if size < 72 or length < 40:
            raise data.error(offset + 8, f"an offload container of {size} bytes with an entry of {length} is too small")
        part = data.window(offset, size, "offload container")
        _kind, _user, _flags, strings, number, start, image = struct.unpack(
            "<HHIQQQQ", part.read(at, 40, "offload container entry")
        )
        if number > _MAX_STRINGS:
            raise part.error(at, f"{number} strings in an offload container are not plausible")
        texts = {}
        for index in range(number):
            key, value = struct.unpack("<QQ", part.read(strings + 16 * index, 16, "offload container string"))
            texts[_text(part, key)] = _text(part, value)
        yield Image(
            target=texts.get("arch", ""),
            triple=texts.get("triple", ""),
            data=part.window(start, image, "image of an offload container"),
        )
        offset = data.skip_zeros(offset + size)


def _text(data: Data, at: int) -> str:
    raw = data.read(at, min(_MAX_STRING, max(0, data.size - at)), "offload container string").split(b"\0", 1)
    if len(raw) < 2:
        raise data.error(at, "a string of an offload container has no end")
    return raw[0].decode("utf-8", "backslashreplace")
