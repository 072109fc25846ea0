"""Offload bundles: built by hand byte for byte, cut and bent; and those of the real bundler."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

import pytest
import zstandard
from audit_samples import Samples
from hypothesis import given
from hypothesis import strategies as st

from rocmbuild.audit.bundle import COMPRESSED_MAGIC, PLAIN_MAGIC, Bundle, Entry, walk
from rocmbuild.audit.source import Data, from_bytes, open_file
from rocmbuild.errors import InputError
from rocmbuild.toolchain.model import Toolchain

HOST = "host-x86_64-unknown-linux-gnu-"
DEVICE = "hipv4-amdgcn-amd-amdhsa--gfx1201"
OTHER = "hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc-:xnack+"


def plain(parts: list[tuple[str, bytes]], align: int = 64) -> bytes:
    """A plain bundle as the bundler lays it out."""
    header = len(PLAIN_MAGIC) + 8 + sum(24 + len(name) for name, _ in parts)
    at = -(-header // align) * align
    rows, body = b"", b""
    for name, data in parts:
        body += b"\0" * (-len(body) % align)
        rows += struct.pack("<QQQ", at + len(body), len(data), len(name)) + name.encode()
        body += data
    return (PLAIN_MAGIC + struct.pack("<Q", len(parts)) + rows).ljust(at, b"\0") + body


def compressed(content: bytes, version: int, method: int, payload: bytes | None = None, **lies: int) -> bytes:
    """A compressed bundle; lies: total, size in place of the true ones."""
    payload = payload or (zstandard.ZstdCompressor().compress(content) if method else zlib.compress(content))
    header = {1: 20, 2: 24, 3: 32}[version]
    total, size = lies.get("total", header + len(payload)), lies.get("size", len(content))
    sizes = (size,) if version == 1 else (total, size)
    digest = hashlib.md5(content).digest()[:8]
    form = {1: "<HHI", 2: "<HHII", 3: "<HHQQ"}[version]
    return COMPRESSED_MAGIC + struct.pack(form, version, method, *sizes) + digest + payload


def content(entry: Entry) -> bytes:
    return entry.data.read(0, entry.size, "entry")


def read(data: bytes) -> list[Bundle]:
    return [walked.bundle for walked in walk(from_bytes("sample.bin", data), content)]


def contents(data: Data | bytes) -> list[tuple[str, bytes]]:
    found = walk(data if isinstance(data, Data) else from_bytes("sample.bin", data), content)
    return [
        (entry.id, result or b"")
        for walked in found
        for entry, result in zip(walked.bundle.entries, walked.results, strict=True)
    ]


PARTS = [(HOST, b""), (DEVICE, b"first" * 50), (OTHER, b"second")]


def test_a_plain_bundle() -> None:
    (bundle,) = read(plain(PARTS))
    assert (bundle.version, bundle.compression, bundle.digest_ok) == (0, "none", None)
    assert [(e.kind, e.target, e.size) for e in bundle.entries] == [
        ("host", "", 0),
        ("hipv4", "gfx1201", 250),
        ("hipv4", "gfx90a:sramecc-:xnack+", 6),
    ]
    assert contents(plain(PARTS)) == PARTS


@pytest.mark.parametrize("method", [0, 1])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_compressed_formats(version: int, method: int) -> None:
    data = compressed(plain(PARTS), version, method)
    (bundle,) = read(data + b"\0" * 100)
    assert (bundle.version, bundle.compression) == (version, ("zlib", "zstd")[method])
    assert (bundle.size, bundle.uncompressed_size, bundle.digest_ok) == (len(data), len(plain(PARTS)), True)
    assert contents(data + b"\0" * 100) == PARTS


@pytest.mark.parametrize("name", ["hip-amdgcn-amd-amdhsa-gfx906", "hip-amdgcn-amd-amdhsa-unknown-gfx906"])
def test_old_ids(name: str) -> None:
    assert read(plain([(name, b"x")]))[0].entries[0].target == "gfx906"


def test_ids_that_are_not_for_a_processor() -> None:
    entries = read(plain([("hip-spirv64-amd-amdhsa--amdgcnspirv", b"x"), ("openmp-nvptx64-nvidia-cuda", b"y")]))[
        0
    ].entries
    assert [entry.target for entry in entries] == ["amdgcnspirv", "nvptx64-nvidia-cuda"]


def test_generic_targets() -> None:
    name = "hipv4-amdgcn-amd-amdhsa--gfx9-4-generic:xnack+"
    assert read(plain([(name, b"x")]))[0].entries[0].target == "gfx9-4-generic:xnack+"


def test_several_bundles_with_padding() -> None:
    pieces = [plain(PARTS), compressed(plain(PARTS[:2]), 3, 1), compressed(plain(PARTS), 1, 1), plain([(DEVICE, b"z")])]
    data, offsets = b"", []
    for piece in pieces:
        data += b"\0" * (-len(data) % 4096)
        offsets.append(len(data))
        data += piece
    bundles = read(data + b"\0" * 70000)
    assert [bundle.offset for bundle in bundles] == offsets
    assert [bundle.version for bundle in bundles] == [0, 3, 1, 0]


def test_a_magic_inside_the_data_is_no_bundle() -> None:
    """The walk goes by sizes: code that holds both magics changes nothing."""
    decoy = b"\0" * 4096 + plain([("hipv4-amdgcn-amd-amdhsa--gfx942", b"no")]) + COMPRESSED_MAGIC * 3
    bundles = read(plain([(HOST, b""), (DEVICE, decoy)], align=4096))
    assert [(e.target, e.size) for b in bundles for e in b.entries] == [("", 0), ("gfx1201", len(decoy))]


def test_nothing_and_zeros_hold_no_bundle() -> None:
    assert read(b"") == []
    with pytest.raises(InputError, match="no offload bundle begins here"):
        read(b"\0" * 50)


@pytest.mark.parametrize("data", [plain(PARTS), *(compressed(plain(PARTS), v, m) for v in (1, 2, 3) for m in (0, 1))])
def test_every_truncation_is_one_error(data: bytes) -> None:
    for length in range(1, len(data)):
        with pytest.raises(InputError, match=r"sample\.bin.*offset 0x[0-9a-f]+"):
            read(data[:length])


def bent(data: bytes, offset: int, form: str, value: int) -> bytes:
    raw = struct.pack(form, value)
    return data[:offset] + raw + data[offset + len(raw) :]


PLAIN = plain(PARTS)
FIRST = len(PLAIN_MAGIC) + 8
SECOND = FIRST + 24 + len(HOST)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bent(PLAIN, 24, "<Q", 1 << 60), "1152921504606846976 entries does not fit"),
        (bent(PLAIN, 24, "<Q", 9), "bundle entry"),
        (bent(PLAIN, SECOND, "<Q", 1 << 63), "wants 250 bytes, 0 are there"),
        (bent(PLAIN, SECOND + 8, "<Q", 1 << 62), "truncated file or lying size"),
        (bent(PLAIN, SECOND + 16, "<Q", 1 << 61), "id of bundle entry 2"),
        (bent(PLAIN, SECOND, "<Q", 8), "overlaps"),
        (bent(PLAIN, SECOND + 8, "<Q", 257), "overlaps"),
        (bent(PLAIN, FIRST + 24, "<B", 0xE9), "not ASCII"),
        (PLAIN + b"\0\0junk", "no offload bundle begins here: found 6a 75 6e 6b"),
        (compressed(PLAIN, 2, 1, total=10), "smaller than its header"),
        (compressed(PLAIN, 3, 1, total=1 << 40), "wants 1099511627776 bytes"),
        (compressed(PLAIN, 3, 1, size=1 << 62), "cannot give"),
        (compressed(PLAIN, 3, 0, size=1 << 62), "cannot give"),
        (compressed(PLAIN, 3, 1, size=len(PLAIN) - 1), "the bundle's header claims"),
        (compressed(PLAIN, 3, 1, size=len(PLAIN) + 1), "the bundle's header claims"),
        (compressed(PLAIN, 3, 0, size=len(PLAIN) - 1), "truncated file or lying size"),
        (compressed(PLAIN, 3, 0, size=len(PLAIN) + 1), "its header claims"),
        (compressed(PLAIN, 3, 0, payload=zlib.compress(PLAIN) + b"more"), "4 bytes follow"),
        (compressed(PLAIN, 3, 1, payload=zstandard.compress(PLAIN) + b"more"), "damaged"),
        (compressed(PLAIN, 2, 0, payload=b"no zlib at all"), "zlib data are damaged"),
        (compressed(PLAIN, 2, 1, payload=b"no zstd at all " * 30), "zstd data are damaged"),
        (compressed(PLAIN, 1, 1, payload=b"no zstd at all " * 30), "not a zstd frame"),
        (compressed(b"not a bundle" * 9, 3, 1), "no plain bundle in the compressed one"),
        (compressed(compressed(PLAIN, 3, 1), 3, 1), "no plain bundle in the compressed one"),
        (bent(compressed(PLAIN, 3, 1), 4, "<H", 4), "format 4 is not known"),
        (bent(compressed(PLAIN, 3, 1), 6, "<H", 2), "method 2 is not known"),
    ],
)
def test_lying_sizes(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=r"sample\.bin.*offset 0x") as caught:
        read(data)
    assert words in caught.value.message


def test_a_bomb_is_stopped_at_the_size_that_the_header_claims() -> None:
    """Zeros that grow 10,000 times: refused by the frame's own size, and where it names none by the bound."""
    bomb = PLAIN + b"\0" * (1 << 28)
    named = zstandard.ZstdCompressor(level=1).compress(bomb)
    unnamed = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bomb)
    for payload in (named, unnamed):
        with pytest.raises(InputError, match=r"claims 5\d\d|more than the 5\d\d"):
            read(compressed(PLAIN, 3, 1, payload=payload))
    with pytest.raises(InputError, match=r"more than the 5\d\d"):
        read(compressed(PLAIN, 3, 0, payload=zlib.compress(bomb, 1)))


def test_a_frame_without_its_size_is_read() -> None:
    payload = zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN)
    assert contents(compressed(PLAIN, 3, 1, payload=payload)) == PARTS
    for lie in (-2, -1, 1, 2):
        with pytest.raises(InputError, match=r"more than|gave|lying size"):
            read(compressed(PLAIN, 3, 1, payload=payload, size=len(PLAIN) + lie))


def test_a_wrong_digest_is_told() -> None:
    data = bytearray(compressed(PLAIN, 3, 1))
    data[24] ^= 1
    assert read(bytes(data))[0].digest_ok is False


def test_ten_thousand_bundles() -> None:
    data = b"".join(plain([(DEVICE, b"x")]).ljust(256, b"\0") for _ in range(10_000))
    assert sum(1 for _ in walk(from_bytes("many", data), content)) == 10_000


@given(st.binary(max_size=80), st.integers(0, len(PLAIN) - 1), st.sampled_from([0, 1, 2, 3]))
def test_bent_bytes_are_read_or_refused(noise: bytes, at: int, version: int) -> None:
    """Whatever bytes stand anywhere, the walk ends with bundles inside the data or with one InputError."""
    data = compressed(PLAIN, version, 1) if version else PLAIN
    data = data[:at] + noise + data[at + len(noise) :]
    try:
        bundles = read(data)
    except InputError as err:
        assert "sample.bin" in err.message
    else:
        assert all(b.offset + b.size <= len(data) for b in bundles)


def test_reads_stay_inside_a_window(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with open_file(path) as data:
        window = data.window(10, 20, "part").window(5, 10, "part of it")
        assert window.read(0, 10, "all") == bytes(range(15, 25))
        with pytest.raises(InputError, match="offset 0x19: more wants 1 bytes, 0 are there"):
            window.read(10, 1, "more")
        with pytest.raises(InputError):
            window.read(-1, 1, "before")
    short = Data("gone", 10, lambda _offset, _size: b"")
    with pytest.raises(InputError, match="0 of 4 bytes could be read"):
        short.read(0, 4, "magic")


@pytest.mark.parametrize("version", [0, 2, 3])
def test_the_bundlers_own_files(version: int, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each entry is byte for byte the code object that the bundler was given."""
    samples = Samples(tmp_path_factory.mktemp("bundles"), toolchain)
    path = samples.bundle(f"v{version}.hipfb", ["gfx1201", "gfx1100"], version=version)
    with open_file(path) as data:
        bundles = [walked.bundle for walked in walk(data, content)]
        assert [(b.version, b.size, b.digest_ok) for b in bundles] == [
            (version, path.stat().st_size, True if version else None)
        ]
        given_bytes = [samples.code(target).read_bytes() for target in ("gfx1201", "gfx1100")]
        assert [found for _, found in contents(data)] == [b"", *given_bytes]
