"""An audit's memory: under the largest uncompressed bundle plus twice the largest code object, however large a file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard
from audit_samples import Samples
from test_audit_bundle import compressed, plain

from rocmbuild.audit.bundle import walk
from rocmbuild.audit.source import from_bytes
from rocmbuild.toolchain.model import Toolchain

MIB = 1 << 20
TARGETS = ("gfx1100", "gfx1101", "gfx1150", "gfx1201")
PROBE = """
import re, sys
from pathlib import Path
from rocmbuild.audit.binary import inspect
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
inspect(Path(sys.argv[1]), demangle=False)  # imports, and what the interpreter takes for itself
before = peak()
report = inspect(Path(sys.argv[2]), demangle=False)
print(sum(len(library.code_objects) for library in report.libraries), peak() - before)
"""


@pytest.fixture(scope="module")
def samples(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("memory"), toolchain)


def entries(samples: Samples, size: int, number: int) -> list[tuple[str, bytes]]:
    """Code objects of that size; what is behind their last byte does not compress."""
    rows = []
    for i in range(number):
        target = TARGETS[i % len(TARGETS)]
        code = samples.code(target).read_bytes()
        noise = hashlib.shake_256(str(i).encode()).digest(size - len(code))
        rows.append((f"hipv4-amdgcn-amd-amdhsa--{target}", code + noise))
    return rows


def peak(samples: Samples, path: Path) -> tuple[int, int]:
    """(code objects, bytes above the interpreter's own) of an audit in a process of its own."""
    small = samples.bundle("small.hipfb", ["gfx1201"], version=3)
    done = subprocess.run([sys.executable, "-c", PROBE, small, path], capture_output=True, text=True, check=True)
    codes, size = map(int, done.stdout.split())
    return codes, size


@pytest.mark.parametrize("method", [0, 1])
def test_a_compressed_bundle_is_one_window(method: int, samples: Samples) -> None:
    """32 MiB that do not compress: their compressed form is not in memory beside the window."""
    content = plain(entries(samples, 8 * MIB, 4), align=4096)
    path = samples.folder / f"window{method}.hipfb"
    payload = zstandard.ZstdCompressor(level=1).compress(content) if method else zlib.compress(content, 1)
    path.write_bytes(compressed(content, 3, method, payload))
    codes, size = peak(samples, path)
    assert codes == 4
    assert size < len(content) + 2 * 8 * MIB
    if not method:  # zlib's window is 32 KiB
        assert size < 3 * 8 * MIB
    path.unlink()


@pytest.mark.parametrize("number", [6, pytest.param(24, marks=pytest.mark.slow)])
def test_a_file_of_many_bundles(number: int, samples: Samples) -> None:
    """Bundles of 8 MiB, in a wheel too: no more than for one, however many."""
    path = samples.folder / "many.hipfb"
    part = plain(entries(samples, 8 * MIB, 1), align=4096)
    with path.open("wb") as file:
        for _ in range(number):
            file.write(part.ljust(-(-len(part) // 4096) * 4096, b"\0"))
    codes, size = peak(samples, path)
    assert codes == number
    assert size < len(part) + 2 * 8 * MIB
    wheel = samples.folder / "many-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(path, "many.hipfb")
    codes, size = peak(samples, wheel)
    assert codes == number
    assert size < len(part) + 2 * 8 * MIB + 8 * MIB  # and the first and last 2 MiB of the member
    path.unlink()
    wheel.unlink()


def test_entries_are_read_in_the_order_in_which_they_lie() -> None:
    """A table in another order than the data: results stay in the table's order."""
    rows = [("hipv4-amdgcn-amd-amdhsa--gfx1201", b"first" * 50), ("hipv4-amdgcn-amd-amdhsa--gfx1100", b"second" * 9)]
    content = bytearray(plain(rows))
    (at,) = [content.index(b"hipv4") - 24]
    other = at + 24 + len(rows[0][0])
    content[at : at + 16], content[other : other + 16] = content[other : other + 16], content[at : at + 16]
    for data in (bytes(content), compressed(bytes(content), 3, 1), compressed(bytes(content), 3, 0)):
        seen: list[int] = []

        def visit(entry: object, seen: list[int] = seen) -> bytes:
            seen.append(entry.offset)  # type: ignore[attr-defined]
            return entry.data.read(0, entry.size, "all")  # type: ignore[attr-defined]

        (walked,) = walk(from_bytes("x", data), visit)
        assert seen == sorted(seen)
        assert walked.results == (b"second" * 9, b"first" * 50)
