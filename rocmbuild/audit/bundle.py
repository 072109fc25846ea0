"""Clang offload bundles: a fat binary's or a loose file's, plain or compressed, one after the other.

Layouts (LLVM, clang/docs/ClangOffloadBundler.rst and OffloadBundle.cpp; all little-endian):

plain       "__CLANG_OFFLOAD_BUNDLE__", u64 number of entries; per entry u64 offset (from the bundle's
            start), u64 size, u64 length of the id, id.
compressed  "CCOB", u16 version, u16 method (0 zlib, 1 zstd); version 2: u32 total size (this header
            included), u32 uncompressed size; version 3: the same as u64; version 1: u32 uncompressed
            size only; then 8 bytes of the MD5 of the uncompressed bundle, then the compressed plain bundle.

Bundles follow each other with zero bytes between them, for alignment. The walk goes by the sizes in the
headers; anything but zeros or a bundle's magic where one bundle has ended is an error.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rocmbuild.audit.source import Data, from_bytes

__all__ = ["COMPRESSED_MAGIC", "PLAIN_MAGIC", "Bundle", "Entry", "is_bundle", "walk"]

PLAIN_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
_MAX_BUNDLE = 1 << 33  # 8 GiB: no bundle of device code comes near
_ZLIB_RATIO = 1032  # deflate's most
_ZSTD_RATIO = 1 << 15  # a block of 4 bytes gives 128 KiB at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One part of a bundle.

    id: as written ("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+"). kind: its first word ("host", "hip",
    "hipv4", "openmp"). target: the processor with its features, "" for the host.
    """

    id: str
    kind: str
    target: str
    offset: int
    size: int
    data: Data = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle. offset and size: where it lies in the data walked; version 0 is the plain format.

    digest_ok: whether the uncompressed bytes have the digest of the header; None where there is none.
    """

    offset: int
    size: int
    version: int
    compression: Literal["none", "zlib", "zstd"]
    uncompressed_size: int
    digest_ok: bool | None
    entries: tuple[Entry, ...]


def is_bundle(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a bundle."""
    return head.startswith((PLAIN_MAGIC, COMPRESSED_MAGIC))


def walk(data: Data) -> Iterator[Bundle]:
    """The bundles in a section or file, in order; a compressed one is in memory until the next is asked for."""
    offset = 0
    while offset < data.size:
        rest = data.window(offset, data.size - offset, "bundle")
        magic = rest.read(0, min(rest.size, len(PLAIN_MAGIC)), "bundle magic")
        if magic == PLAIN_MAGIC:
            entries, size = _plain(rest)
            yield Bundle(
                offset=offset,
                size=size,
                version=0,
                compression="none",
                uncompressed_size=size,
                digest_ok=None,
                entries=entries,
            )
        elif magic.startswith(COMPRESSED_MAGIC):
            bundle = _compressed(rest, offset)
            size = bundle.size
            yield bundle
            del bundle
        else:
            wanted = f"{PLAIN_MAGIC.decode()} or {COMPRESSED_MAGIC.decode()}"
            raise rest.error(0, f"no offload bundle begins here: found {magic[:8].hex(' ')}, wanted {wanted}")
        offset = data.skip_zeros(offset + size)


def _plain(data: Data) -> tuple[tuple[Entry, ...], int]:
    """The entries of the plain bundle at the start of data, and its size."""
    start = len(PLAIN_MAGIC)
    (number,) = struct.unpack("<Q", data.read(start, 8, "number of bundle entries"))
    position = start + 8
    if number * 24 > data.size - position:
        raise data.error(start, f"a bundle of {number} entries does not fit into {data.size} bytes")
    entries = []
    for index in range(number):
        what = f"bundle entry {index + 1} of {number}"
        offset, size, length = struct.unpack("<QQQ", data.read(position, 24, what))
        raw = data.read(position + 24, length, f"id of {what}")
        try:
            name = raw.decode("ascii")
        except UnicodeDecodeError:
            raise data.error(position + 24, f"{what} has an id that is not ASCII: {raw[:40]!r}") from None
        position += 24 + length
        kind, _, rest = name.partition("-")
        at = max(rest.find("-gfx"), rest.find("-amdgcnspirv"))
        window = data.window(offset, size, f"{what} ({name})")
        target = "" if kind == "host" else rest[at + 1 :] if at >= 0 else rest
        entries.append(Entry(id=name, kind=kind, target=target, offset=offset, size=size, data=window))
    end = position
    for entry in sorted((e for e in entries if e.size), key=lambda e: e.offset):
        if entry.offset < end:
            raise data.error(entry.offset, f"bundle entry {entry.id} overlaps what lies before it (up to 0x{end:x})")
        end = entry.offset + entry.size
    return tuple(entries), end


def _compressed(data: Data, offset: int) -> Bundle:
    """The compressed bundle at the start of data, with its entries in memory."""
    version, method = struct.unpack("<HH", data.read(4, 4, "compressed bundle header"))
    if version == 1:
        (uncompressed,) = struct.unpack("<I", data.read(8, 4, "compressed bundle sizes"))
        total, header = 0, 12
    elif version == 2:
        total, uncompressed = struct.unpack("<II", data.read(8, 8, "compressed bundle sizes"))
        header = 16
    elif version == 3:
        total, uncompressed = struct.unpack("<QQ", data.read(8, 16, "compressed bundle sizes"))
        header = 24
    else:
        raise data.error(4, f"compressed bundle format {version} is not known (1, 2 and 3 are)")
    digest = data.read(header, 8, "compressed bundle digest")
    header += 8
    if method not in (0, 1):
        raise data.error(6, f"compression method {method} is not known (0 zlib, 1 zstd)")
    if version == 1:
        total = header + _zstd_frame_size(data, header) if method else data.size
    if total < header:
        raise data.error(8, f"a compressed bundle of {total} bytes is smaller than its header ({header})")
    data.check(0, total, "compressed bundle")
    ratio = _ZSTD_RATIO if method else _ZLIB_RATIO
    if uncompressed > min(_MAX_BUNDLE, (total - header) * ratio + 64):
        raise data.error(8, f"{total - header} compressed bytes cannot give the {uncompressed} that the header claims")
    payload = data.read(header, total - header, "compressed bundle")
    if method:
        plain = _unzstd(data, header, payload, uncompressed)
    else:
        plain, used = _unzlib(data, header, payload, uncompressed)
        if version == 1:
            total = header + used
        elif used != len(payload):
            raise data.error(header + used, f"{len(payload) - used} bytes follow the compressed data in the bundle")
    del payload
    if len(plain) != uncompressed:
        raise data.error(8, f"the bundle gave {len(plain)} bytes, its header claims {uncompressed}")
    good = hashlib.md5(plain, usedforsecurity=False).digest()[:8] == digest
    inner = from_bytes(f"{data.place()}, uncompressed", plain)
    if plain[: len(PLAIN_MAGIC)] != PLAIN_MAGIC:
        raise inner.error(0, f"no plain bundle in the compressed one: found {plain[:8].hex(' ')}")
    entries, _ = _plain(inner)
    return Bundle(
        offset=offset,
        size=total,
        version=version,
        compression="zstd" if method else "zlib",
        uncompressed_size=uncompressed,
        digest_ok=good,
        entries=entries,
    )


def _unzlib(data: Data, at: int, payload: bytes, size: int) -> tuple[bytes, int]:
    """At most size bytes, and how much of payload they took."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(payload, size + 1)
    except zlib.error as err:
        raise data.error(at, f"the zlib data are damaged ({err})") from None
    except MemoryError:
        raise data.error(at, f"no memory for a bundle of {size} bytes") from None
    if len(plain) > size:
        raise data.error(at, f"the zlib data give more than the {size} bytes that the header claims")
    if not stream.eof:
        raise data.error(at, "the zlib data end too early")
    return plain, len(payload) - len(stream.unused_data)


def _unzstd(data: Data, at: int, payload: bytes, size: int) -> bytes:
    """Exactly one zstd frame, written straight into a buffer of size bytes: no second window in memory."""
    import zstandard  # heavy, and wanted for compressed bundles only

    try:
        known = zstandard.get_frame_parameters(payload).content_size
        if known not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            raise data.error(at, f"the zstd frame holds {known} bytes, the bundle's header claims {size}")
        # A frame that names no size is given one byte more, so that a longer one is told from a whole one.
        room = 0 if known == size else size + 1
        return bytes(zstandard.ZstdDecompressor().decompress(payload, max_output_size=room, allow_extra_data=False))
    except zstandard.ZstdError as err:
        raise data.error(at, f"the zstd data are damaged or give more than {size} bytes ({err})") from None
    except MemoryError:
        raise data.error(at, f"no memory for a bundle of {size} bytes") from None


def _zstd_frame_size(data: Data, at: int) -> int:
    """The length of the zstd frame at `at` (RFC 8878), for the bundle version that does not say it."""
    magic, descriptor = struct.unpack("<IB", data.read(at, 5, "zstd frame header"))
    if magic != 0xFD2FB528:
        raise data.error(at, f"not a zstd frame (magic {magic:08x})")
    single = descriptor >> 5 & 1
    size = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3] + ((1 if single else 0), 2, 4, 8)[descriptor >> 6]
    last = False
    while not last:
        header = int.from_bytes(data.read(at + size, 3, "zstd block header"), "little")
        last = bool(header & 1)
        kind, length = header >> 1 & 3, header >> 3
        if kind == 3:
            raise data.error(at + size, "a zstd block of the reserved type")
        size += 3 + (1 if kind == 1 else length)
        data.check(at, size, "zstd frame")
    return size + (4 if descriptor & 4 else 0)
