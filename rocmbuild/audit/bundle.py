"""Clang offload bundles: a fat binary's or a loose file's, plain or compressed, one after the other.

Layouts (LLVM, clang/docs/ClangOffloadBundler.rst and OffloadBundle.cpp; all little-endian):

plain       "__CLANG_OFFLOAD_BUNDLE__", u64 number of entries; per entry u64 offset (from the bundle's
            start), u64 size, u64 length of the id, id.
compressed  "CCOB", u16 version, u16 method (0 zlib, 1 zstd); version 2: u32 total size (this header
            included), u32 uncompressed size; version 3: the same as u64; version 1: u32 uncompressed
            size only; then 8 bytes of the MD5 of the uncompressed bundle, then the compressed plain bundle.

Bundles follow each other with zero bytes between them, for alignment. The walk goes by the sizes in the
headers; anything but zeros or a bundle's magic where one bundle has ended is an error.

Memory: a compressed bundle is never whole in memory beside the decompressor's own window; its entries are handed out
one by one as they come out of it.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Generic, Literal, TypeVar, cast

from rocmbuild.audit.source import Data

if TYPE_CHECKING:
    import zstandard

__all__ = ["COMPRESSED_MAGIC", "PLAIN_MAGIC", "Bundle", "Entry", "Walked", "is_bundle", "walk"]

T = TypeVar("T")

PLAIN_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
_MAX_BUNDLE = 1 << 33  # 8 GiB: no bundle of device code comes near
_ZLIB_RATIO = 1032  # deflate's most
_ZSTD_RATIO = 1 << 15  # a block of 4 bytes gives 128 KiB at most
_STEP = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One part of a bundle. data is for the visit of a walk only.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked(Generic[T]):
    """A bundle and what was made of its entries, in the order of bundle.entries; None for empty ones and the host's."""

    bundle: Bundle
    results: tuple[T | None, ...]


def walk(data: Data, visit: Callable[[Entry], T]) -> Iterator[Walked[T]]:
    """The bundles in a section or file, in order, with what visit makes of each device entry that is not empty.

    visit is called in the order in which the entries lie, and may read an entry's data until it returns. While one
    entry is visited, a second thread reads the next one: at most two are in memory.
    """
    results: dict[int, T] = {}
    for index, part in _ahead(_parts(data)):
        if isinstance(part, Bundle):
            yield Walked(bundle=part, results=tuple(map(results.get, range(len(part.entries)))))
            results = {}
        else:
            results[index] = visit(part)
        del part


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made by a second thread while the one before it is in use."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item
            del item


Part = tuple[int, "Entry | Bundle"]


def _parts(data: Data) -> Iterator[Part]:
    """What is in a section or file: the device entries of a bundle, with their bytes and their place, then the bundle.

    Bundles are in order, their entries in the order of offsets; the place of a bundle is 0.
    """
    offset = 0
    while offset < data.size:
        rest = data.window(offset, data.size - offset, "bundle")
        magic = rest.read(0, min(rest.size, len(PLAIN_MAGIC)), "bundle magic")
        if magic == PLAIN_MAGIC:
            entries, size = _plain(rest)
            yield from _held(entries)
            bundle = Bundle(
                offset=offset,
                size=size,
                version=0,
                compression="none",
                uncompressed_size=size,
                digest_ok=None,
                entries=entries,
            )
            yield 0, bundle
        elif magic.startswith(COMPRESSED_MAGIC):
            size = yield from _compressed(rest, offset)
        else:
            wanted = f"{PLAIN_MAGIC.decode()} or {COMPRESSED_MAGIC.decode()}"
            raise rest.error(0, f"no offload bundle begins here: found {magic[:8].hex(' ')}, wanted {wanted}")
        offset = data.skip_zeros(offset + size)


def _held(entries: tuple[Entry, ...]) -> Iterator[Part]:
    """The device entries that are not empty, in the order of offsets, their bytes in memory."""
    order = [i for i in range(len(entries)) if entries[i].size and entries[i].kind != "host"]
    for index in sorted(order, key=lambda i: entries[i].offset):
        entry = entries[index]
        yield index, replace(entry, data=entry.data.held(f"bundle entry {entry.id}"))


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


def _compressed(data: Data, offset: int) -> Generator[Part, None, int]:
    """The parts of the compressed bundle at the start of data; returns its size."""
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
    payload = _Payload(data, header, total - header)
    stream = (_Zstd if method else _Zlib)(data, header, payload, uncompressed)
    plain = _Forward(data, header, stream, uncompressed)
    inner = Data(f"{data.place()}, uncompressed", uncompressed, plain.read)
    magic = inner.read(0, min(uncompressed, len(PLAIN_MAGIC)), "bundle magic")
    if magic != PLAIN_MAGIC:
        raise inner.error(0, f"no plain bundle in the compressed one: found {magic[:8].hex(' ')}")
    entries, _ = _plain(inner)
    yield from _held(entries)
    plain.finish()
    left = total - header - payload.used
    if version == 1:
        total -= left
    elif left:
        raise data.error(total - left, f"{left} bytes follow the compressed data in the bundle")
    yield (
        0,
        Bundle(
            offset=offset,
            size=total,
            version=version,
            compression="zstd" if method else "zlib",
            uncompressed_size=uncompressed,
            digest_ok=plain.digest.digest()[:8] == digest,
            entries=tuple(replace(entry, data=_GONE) for entry in entries),
        ),
    )
    return total


def _gone(_offset: int, _size: int) -> bytes:
    raise RuntimeError("an entry of a compressed bundle is read after its visit")


_GONE = Data("", 0, _gone)


class _Payload:
    """The compressed bytes, piece by piece. used: how many of them were needed."""

    def __init__(self, data: Data, start: int, size: int) -> None:
        self._data = data
        self._start = start
        self._size = size
        self.used = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most size of them and never more than a step."""
        size = min(self._size - self.used, _STEP, size if size >= 0 else _STEP)
        piece = self._data.read(self._start + self.used, size, "compressed bundle")
        self.used += size
        return piece


class _Zlib:
    """The uncompressed bytes of a zlib stream."""

    def __init__(self, data: Data, at: int, payload: _Payload, size: int) -> None:
        self._data, self._at, self._payload, self._size = data, at, payload, size
        self._stream = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """At least one byte and at most size of them, b"" at the end."""
        stream = self._stream
        while not stream.eof:
            piece = stream.unconsumed_tail or self._payload.read()
            try:
                found = stream.decompress(piece, size)
            except zlib.error as err:
                raise self._data.error(self._at, f"the zlib data are damaged ({err})") from None
            if stream.eof:
                self._payload.used -= len(stream.unused_data)
            if found:
                return found
            if not piece:
                raise self._data.error(self._at, "the zlib data end too early")
        return b""


class _Zstd:
    """The uncompressed bytes of a zstd frame; its window is all that the decompressor keeps of them."""

    def __init__(self, data: Data, at: int, payload: _Payload, size: int) -> None:
        import zstandard  # heavy, and wanted for compressed bundles only

        self._data, self._at = data, at
        self._error: type[zstandard.ZstdError] = zstandard.ZstdError
        head = data.read(at, min(18, data.size - at), "zstd frame header")
        try:
            frame = zstandard.get_frame_parameters(head)
            if frame.content_size not in (size, zstandard.CONTENTSIZE_UNKNOWN):
                raise data.error(
                    at, f"the zstd frame holds {frame.content_size} bytes, the bundle's header claims {size}"
                )
            if frame.window_size > max(1 << 27, 2 * size):
                raise data.error(at, f"the zstd frame wants a window of {frame.window_size} bytes for {size}")
            machine = zstandard.ZstdDecompressor(max_window_size=max(1 << 10, min(frame.window_size, 1 << 31)))
        except zstandard.ZstdError as err:
            raise data.error(at, f"the zstd data are damaged ({err})") from None
        # across frames: what follows the frame is then damage, not left alone
        self._stream = machine.stream_reader(cast(IO[bytes], payload), read_size=_STEP, read_across_frames=True)

    def read(self, size: int) -> bytes:
        """At least one byte and at most size of them, b"" at the end."""
        try:
            return bytes(self._stream.read(size))
        except self._error as err:
            raise self._data.error(self._at, f"the zstd data are damaged ({err})") from None


class _Forward:
    """Uncompressed bytes, read forward only and hashed on the way; exactly as many as the bundle's header claims."""

    def __init__(self, data: Data, at: int, stream: _Zlib | _Zstd, size: int) -> None:
        self._data, self._at, self._stream, self._size = data, at, stream, size
        self._position = 0
        self.digest = hashlib.md5(usedforsecurity=False)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly size bytes at an offset that no read has passed."""
        if offset < self._position:
            raise RuntimeError(f"a read at {offset} after one up to {self._position}")
        while self._position < offset:
            self._next(min(offset - self._position, _STEP))
        first = self._next(size) if size else b""
        if len(first) == size:
            return first
        pieces = [first]
        missing = size - len(first)
        while missing:
            pieces.append(self._next(missing))
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def finish(self) -> None:
        """Read to the end, which must be where the header puts it."""
        while self._position < self._size:
            self._next(min(self._size - self._position, _STEP))
        if self._stream.read(1):
            raise self._data.error(self._at, f"the data give more than the {self._size} bytes that the header claims")

    def _next(self, size: int) -> bytes:
        try:
            piece = self._stream.read(size)
        except MemoryError:
            raise self._data.error(self._at, f"no memory for {size} bytes of a bundle") from None
        if not piece:
            raise self._data.error(8, f"the bundle gave {self._position} bytes, its header claims {self._size}")
        self._position += len(piece)
        self.digest.update(piece)
        return piece


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
