"""Files that mean harm: each ends in an answer or in one line with file and offset, in bounded time and memory."""

from __future__ import annotations

import re
import stat
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import msgpack
import pytest
import zstandard
from audit_samples import Samples
from test_audit_bundle import compressed, plain

from rocmbuild.audit.binary import inspect
from rocmbuild.audit.codeobject import read_code_object
from rocmbuild.audit.demangle import demangle
from rocmbuild.audit.report import audit
from rocmbuild.audit.source import from_bytes
from rocmbuild.audit.table import to_table
from rocmbuild.errors import InputError
from rocmbuild.toolchain.model import Toolchain

DEVICE = "hipv4-amdgcn-amd-amdhsa--gfx1201"
MEMORY = """
import re, sys
from pathlib import Path
from rocmbuild.audit.binary import inspect
from rocmbuild.errors import InputError
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
before = peak()
try:
    inspect(Path(sys.argv[1]))
    print("read")
except InputError as err:
    print(err.message)
print(peak() - before)
"""


@pytest.fixture(scope="module")
def samples(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("hostile"), toolchain)


def refused(path: Path) -> str:
    """The one line that an audit says of a file."""
    with pytest.raises(InputError) as caught:
        inspect(path)
    message = caught.value.message
    assert "\n" not in message
    assert re.match(r".*: offset 0x[0-9a-f]+: ", message), message
    return message


def in_a_process(path: Path) -> tuple[str, int]:
    """(what an audit says, MiB that it took) in a process of its own."""
    done = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True, timeout=100)
    *said, size = done.stdout.splitlines()
    return "\n".join(said), int(size)


def code_object(samples: Samples) -> bytes:
    return samples.code("gfx1201").read_bytes()


# Bundles


@pytest.mark.slow
def test_ten_thousand_bundles(samples: Samples) -> None:
    """10,000 bundles of one code object each: 40,000 kernels, read whole."""
    part = plain([(DEVICE, code_object(samples))])
    path = samples.folder / "many.hipfb"
    path.write_bytes(part.ljust(-(-len(part) // 64) * 64, b"\0") * 10_000)
    (library,) = inspect(path, demangle=False).libraries
    assert len(library.bundles) == len(library.code_objects) == 10_000
    said, size = in_a_process(path)
    assert said == "read"
    assert size < 150
    path.unlink()


def test_ten_thousand_entries_of_one_bundle(samples: Samples) -> None:
    """Entries may not share bytes, so a small file cannot stand for many code objects."""
    code = code_object(samples)
    row = struct.pack("<QQQ", 0, 0, len(DEVICE)) + DEVICE.encode()
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 10_000)
    at = len(head) + 10_000 * len(row)
    rows = (struct.pack("<QQQ", at, len(code), len(DEVICE)) + DEVICE.encode()) * 10_000
    path = samples.folder / "shared.hipfb"
    path.write_bytes(head + rows + code)
    assert "overlaps what lies before it" in refused(path)


def test_an_entry_whose_id_breaks_the_line(samples: Samples) -> None:
    """Found by the fuzzer: line breaks and escapes of an id came out in the message."""
    name = "hipv4-amdgcn-amd-amdhsa--gfx12\n\x1b[2J"
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 1 << 40, 7, len(name)) + name.encode()
    path = samples.folder / "line.hipfb"
    path.write_bytes(head)
    assert "gfx12\\n\\x1b[2J" in refused(path)
    path.write_bytes(compressed(head, 3, 1))
    assert "gfx12\\n\\x1b[2J" in refused(path)


def test_a_bundle_in_a_bundle(samples: Samples) -> None:
    inner = compressed(plain([(DEVICE, code_object(samples))]), 3, 1)
    path = samples.folder / "nested.hipfb"
    for outer in (plain([(DEVICE, inner)]), compressed(plain([(DEVICE, inner)]), 3, 0)):
        path.write_bytes(outer)
        assert "not an ELF file" in refused(path)


@pytest.mark.parametrize("method", [0, 1])
def test_a_bundle_bomb(method: int, samples: Samples) -> None:
    """A quarter of a GiB of zeros in a few KiB, with the size that the header promises: read through, not kept."""
    head = plain([(DEVICE, code_object(samples))])
    packer = zstandard.ZstdCompressor(level=1).compressobj() if method else zlib.compressobj(1)
    payload = packer.compress(head)
    for _ in range(256):
        payload += packer.compress(b"\0" * (1 << 20))
    payload += packer.flush()
    data = compressed(head, 3, method, payload, size=len(head) + (256 << 20))
    path = samples.folder / f"bomb{method}.hipfb"
    path.write_bytes(data)
    assert len(data) < 4 << 20
    said, size = in_a_process(path)
    assert said == "read"
    assert size < (160 if method else 60)  # zstd's window is up to 128 MiB in a frame that does not name its size


def test_a_window_larger_than_the_bundle(samples: Samples) -> None:
    """A frame that asks for 2 GiB of window for a few bytes."""
    content = plain([(DEVICE, code_object(samples))])
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=31, write_content_size=False)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    payload = frame.compress(content) + frame.flush()
    path = samples.folder / "window.hipfb"
    path.write_bytes(compressed(content, 3, 1, payload))
    assert "wants a window of 2147483648 bytes" in refused(path)


# Code objects


def note_of(samples: Samples, raw: bytes) -> bytes:
    """A code object with another metadata note, at the end of the file, in a segment of its own."""
    data = bytearray(code_object(samples))
    (phoff,) = struct.unpack_from("<Q", data, 32)
    (number,) = struct.unpack_from("<H", data, 56)
    for i in range(number):
        at = phoff + 56 * i
        if struct.unpack_from("<I", data, at)[0] == 4:  # PT_NOTE
            struct.pack_into("<Q", data, at + 8, len(data))
            struct.pack_into("<Q", data, at + 32, 20 + len(raw))
    return bytes(data) + struct.pack("<III", 7, len(raw), 32) + b"AMDGPU\0\0" + raw


def test_notes_that_promise_more_than_there_is(samples: Samples) -> None:
    """Four thousand million kernels in five bytes, and millions of rows that hold nothing."""
    key = msgpack.packb("amdhsa.kernels")
    for raw, words in (
        (b"\x81" + key + b"\xdd\xff\xff\xff\xff", "metadata note is damaged"),
        (b"\xdf\xff\xff\xff\xff", "metadata note is damaged"),
        (b"\x81" + key + b"\xdd\x00\x10\x00\x00" + b"\x80" * (1 << 20), "kernel 0: .name is None, wanted a name"),
        (b"\x81" + key + b"\x91\x81\xa5.args" + b"\x91" * 500 + b"\x90", "kernel 0: .name is None"),
        (b"\x81" + key + b"\x91\x81\xa5.args" + b"\x91" * 5000 + b"\x90", "metadata note is damaged"),
    ):
        with pytest.raises(InputError, match=r"^x: offset 0x") as caught:
            read_code_object(from_bytes("x", note_of(samples, raw)))
        assert words in caught.value.message


def test_a_kernel_name_that_grows_without_end(samples: Samples) -> None:
    """300 bytes whose demangled form would be some terabytes: the name stays as it is, the others are readable."""
    name = "_Z1f1PI1AS0_E" + "S_IS1_S1_E"
    for level in range(2, 32):
        place = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[level]
        name += f"S_IS{place}_S{place}_E"
    begin = time.monotonic()
    found = demangle([name, "_Z1gv", "_Z1av", "_ZN1a1bEv"])
    assert found == {"_Z1gv": "g()", "_Z1av": "a()", "_ZN1a1bEv": "a::b()"}
    assert time.monotonic() - begin < 60


def test_names_that_would_write_to_the_terminal_or_break_the_line(samples: Samples) -> None:
    path = samples.folder / "two\nlines\x1b[2J.so"
    path.write_bytes(b"\x7fELF\x02\x01" + b"\0" * 50)
    message = refused(path)
    assert "two\\nlines\\x1b[2J.so" in message
    evil = code_object(samples).replace(b"plain", b"\n\x1b[2J")
    path.write_bytes(evil)
    text = to_table(audit([path], targets=["gfx1100"]))
    assert "\x1b" not in text


# Archives and ELF files


def test_section_headers_that_promise_more_than_there_is(samples: Samples) -> None:
    data = bytearray(code_object(samples))
    (start,) = struct.unpack_from("<Q", data, 40)
    data[60:62] = b"\0\0"  # e_shnum: the first header holds the number
    for number, words in ((1 << 17) + 1, "131073 sections are not plausible"), (1 << 62, "not plausible"):
        struct.pack_into("<Q", data, start + 32, number)
        path = samples.folder / "sections.co"
        path.write_bytes(data)
        assert words in refused(path)


def test_archives_that_point_to_themselves(samples: Samples, tmp_path: Path) -> None:
    path = tmp_path / "names.a"

    def member(label: str, body: bytes, size: int | None = None) -> bytes:
        size = len(body) if size is None else size
        return f"{label:<48}{size:<10}`\n".encode() + body + b"\n" * (len(body) & 1)

    for body, words in (
        (member("//", b"", 9_999_999_999), "wants 9999999999 bytes"),
        (member("#1/99999999999", b"x" * 100), "is not plausible"),
        (member("#1/200", b"x" * 100), "archive member name"),
        (member("a/", b"", -5), "wanted a number"),
        (member("a/", b"")[:-2] + b"xx", "no archive member begins here"),
    ):
        path.write_bytes(b"!<arch>\n" + body)
        assert words in refused(path)
    path.write_bytes(b"!<arch>\n" + member("/999999", code_object(samples)))
    assert inspect(path).libraries[0].name == f"{path}()"


# Wheels


def wheel(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


def test_zip_archives_that_lie(samples: Samples, tmp_path: Path) -> None:
    """Sizes, places, flags and methods that are not so; a directory of a gigabyte; an archive inside an archive."""
    path = wheel(tmp_path / "l-1-py3-none-any.whl", ("a.co", code_object(samples)))
    good = path.read_bytes()
    directory = good.index(b"PK\1\2")
    end = good.index(b"PK\5\6")
    changes = {
        "size": (directory + 24, struct.pack("<I", 100)),
        "large size": (directory + 24, struct.pack("<I", 1 << 30)),
        "compressed size": (directory + 20, struct.pack("<I", 1 << 30)),
        "place": (directory + 42, struct.pack("<I", 1 << 30)),
        "method": (directory + 10, struct.pack("<H", 77)),
        "encrypted": (directory + 8, struct.pack("<H", 1)),
        "version": (directory + 6, struct.pack("<H", 200)),
        "directory": (end + 12, struct.pack("<I", 0xF0000000)),
        "directory's place": (end + 16, struct.pack("<I", 0xF0000000)),
        "local name": (26, struct.pack("<H", 0xFFFF)),
    }
    for what, (at, noise) in changes.items():
        path.write_bytes(good[:at] + noise + good[at + len(noise) :])
        assert path.name in refused(path), what
    inner = wheel(tmp_path / "inner-1-py3-none-any.whl", ("a.co", code_object(samples)))
    outer = wheel(tmp_path / "outer-1-py3-none-any.whl", ("inner.whl", inner.read_bytes()))
    assert inspect(outer).libraries == ()
    link = tmp_path / "loop-1-py3-none-any.whl"
    link.symlink_to(link.name)
    with pytest.raises(InputError, match="cannot be read"):
        inspect(link)


def test_a_member_without_a_name(samples: Samples, tmp_path: Path) -> None:
    """Found by the fuzzer: Python's zipfile looks at the last letter of a name."""
    path = wheel(tmp_path / "e-1-py3-none-any.whl", ("x.co", code_object(samples)))
    data = path.read_bytes()
    at = data.index(b"PK\1\2")
    path.write_bytes(data[: at + 46] + b"\0.co" + data[at + 50 :])
    assert inspect(path).libraries == ()


def test_a_place_before_the_beginning(samples: Samples, tmp_path: Path) -> None:
    """Found by the fuzzer: a directory that lies about its place shifts all members, here to before the file."""
    path = wheel(tmp_path / "p-1-py3-none-any.whl", ("x.co", code_object(samples)), method=zipfile.ZIP_LZMA)
    data = bytearray(path.read_bytes())
    end = data.index(b"PK\5\6")
    (place,) = struct.unpack_from("<I", data, end + 16)
    struct.pack_into("<I", data, end + 16, place + 94)
    path.write_bytes(data)
    refused(path)


def test_an_lzma_member_with_a_dictionary_of_gigabytes(samples: Samples, tmp_path: Path) -> None:
    path = wheel(tmp_path / "z-1-py3-none-any.whl", ("a.co", code_object(samples)), method=zipfile.ZIP_LZMA)
    data = bytearray(path.read_bytes())
    start = 30 + sum(struct.unpack_from("<HH", data, 26))
    struct.pack_into("<I", data, start + 5, 0xF0000000)
    path.write_bytes(data)
    assert "an LZMA dictionary of 4026531840 bytes" in refused(path)


def test_overlapping_members(samples: Samples, tmp_path: Path) -> None:
    """Two entries of the directory that name one member's bytes: a library that is there twice, or an error."""
    path = wheel(tmp_path / "o-1-py3-none-any.whl", ("a.co", code_object(samples)), ("b.co", code_object(samples)))
    data = bytearray(path.read_bytes())
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 4)
    struct.pack_into("<I", data, second + 42, 0)
    path.write_bytes(data)
    assert path.name in refused(path)


def test_names_and_links_of_members(samples: Samples, tmp_path: Path) -> None:
    path = tmp_path / "n-1-py3-none-any.whl"
    names = ["../../etc/x.co", "/abs.co", "a\\b.co", "Größe/日本.co", "x" * 5000 + ".co", "nul\0l.co", "new\nline.co"]
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            info = zipfile.ZipInfo()
            info.filename = name
            file.writestr(info, code_object(samples))
        link = zipfile.ZipInfo("link.co")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "../../../etc/passwd")
    before = sorted(tmp_path.iterdir())
    found = inspect(path)
    assert len(found.libraries) == len(names)
    assert sorted(tmp_path.iterdir()) == before
    text = to_table(audit([path]))
    assert "日本" in text
    assert "new\\nline.co" in text


def test_a_wheel_of_many_small_bombs(tmp_path: Path) -> None:
    """A hundred members of 16 MiB of zeros behind the magic of a bundle: refused at the first, in little memory."""
    path = tmp_path / "b-1-py3-none-any.whl"
    body = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1 << 20) + b"\0" * (16 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for number in range(100):
            file.writestr(f"{number}.hipfb", body if number < 2 else body[:100])
    said, size = in_a_process(path)
    assert "offset 0x" in said
    assert size < 40
