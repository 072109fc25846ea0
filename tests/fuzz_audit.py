"""A coverage-guided fuzzer over the audit's parsers. Not a test: run it by hand, then make its finds into tests.

    python tests/fuzz_audit.py [--cpu-seconds 600] [--target NAME] [--corpus FOLDER]

Needs atheris (pip install atheris) and a ROCm toolchain for its first inputs. Each target runs in processes of its own
until all of them have used the seconds, shared equally. An exception other than InputError, an error that is not one
line with file and offset, 20 s without an end, or more than 400 MiB end it, and the input is kept in the corpus folder.
Tells each target's result on stderr as soon as it is there, and prints one JSON object at the end: executions,
processor seconds and finds by target.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

ROUND = 60  # seconds of one process
PLACE = re.compile(r"[^\n]*: offset 0x[0-9a-f]+: [^\n]+")
Target = Callable[[bytes], None]


def targets(folder: Path) -> dict[str, Target]:
    """What is fuzzed, by name. folder: for files."""
    from rocmbuild.audit import binary, logs
    from rocmbuild.audit.bundle import walk
    from rocmbuild.audit.codeobject import read_code_object
    from rocmbuild.audit.commands import judge
    from rocmbuild.audit.report import audit
    from rocmbuild.audit.source import from_bytes
    from rocmbuild.errors import InputError

    base = (folder / "base.co").read_bytes() if (folder / "base.co").exists() else b""

    def checked(action: Callable[[], object], pattern: re.Pattern[str] = PLACE) -> None:
        try:
            action()
        except InputError as err:
            assert pattern.fullmatch(err.message), err.message

    def whole(data: bytes) -> None:
        """A file of any kind but a wheel."""
        reader = binary._Reader(None)
        checked(lambda: list(reader.file(from_bytes("fuzz", data), "fuzz", data[:24])))

    def bundle(data: bytes) -> None:
        """Bundles, the input being the file, or what is in a compressed bundle whose header is right."""
        head, rest = data[:1], data[1:]
        if head and head[0] & 1:
            packed = zlib.compress(rest, 1)
            rest = b"CCOB" + struct.pack("<HHQQQ", 3, 0, 32 + len(packed), len(rest), 0) + packed
        checked(lambda: list(walk(from_bytes("fuzz", rest), lambda entry: entry.data.read(0, entry.size, "all"))))

    def code(data: bytes) -> None:
        """A code object."""
        checked(lambda: read_code_object(from_bytes("fuzz", data)))

    def note(data: bytes) -> None:
        """The metadata note of a sound code object."""
        changed = bytearray(base)
        (start,) = struct.unpack_from("<Q", changed, 32)
        (number,) = struct.unpack_from("<H", changed, 56)
        for at in range(start, start + 56 * number, 56):
            if struct.unpack_from("<I", changed, at)[0] == 4:
                struct.pack_into("<Q", changed, at + 8, len(base))
                struct.pack_into("<Q", changed, at + 32, 20 + len(data))
        raw = bytes(changed) + struct.pack("<III", 7, len(data), 32) + b"AMDGPU\0\0" + data
        checked(lambda: read_code_object(from_bytes("fuzz", raw)))

    def wheel(data: bytes) -> None:
        """A zip archive."""
        path = folder / "fuzz.whl"
        path.write_bytes(data)
        checked(lambda: binary.inspect(path, demangle=False))

    def log(data: bytes) -> None:
        """The log of a build, judged."""
        text = data.decode("utf-8", "backslashreplace")

        def action() -> None:
            audit([], logs=[logs.parse_log(text, name="fuzz", folder=folder)], targets=["gfx1201"])

        checked(action, re.compile(r"fuzz[^\n]*"))

    def command(data: bytes) -> None:
        """The words of a command, parted by null bytes, and a variable."""
        words = data.decode("utf-8", "backslashreplace").split("\0")
        judge(words[1:], {"CCC_OVERRIDE_OPTIONS": words[0]}, ["gfx1201"], cwd=folder)

    found = {"whole": whole, "bundle": bundle, "code": code, "note": note, "wheel": wheel, "log": log}
    return {**found, "command": command}


def seeds(folder: Path) -> None:
    """First inputs for every target: small real files."""
    from audit_samples import Samples
    from test_audit_bundle import DEVICE, HOST, compressed, plain

    from rocmbuild.toolchain.discover import find_toolchain

    samples = Samples(folder, find_toolchain(spec=None, environ=os.environ))
    code = samples.code("gfx1201").read_bytes()
    wide = samples.code("gfx90a:xnack+", "-mcode-object-version=5").read_bytes()
    (folder / "base.co").write_bytes(code)
    two = plain([(HOST, b""), (DEVICE, code)])
    unit = samples.make("seed.o", "--offload-arch=gfx1201")
    newer = samples.make("newer.o", "--offload-arch=gfx1201", "--offload-new-driver", "-fgpu-rdc")
    library = samples.shared("seed.so", unit)
    archive = samples.folder / "seed.a"
    samples.run(samples.tool("llvm-ar"), "rc", archive, unit, newer)
    wheel = samples.folder / "seed.whl"
    import zipfile

    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(wheel.with_suffix(f".{method}"), "w", method) as file:
            file.writestr("a.co", code)
            file.writestr("a-1.dist-info/rocmbuild.json", '{"format": 1}')
    note = code[code.index(b"AMDGPU\0\0") + 8 :]
    (size,) = struct.unpack_from("<I", code, code.index(b"AMDGPU\0\0") - 8)
    flags = "--offload-arch=gfx1201\0-mno-wavefrontsize64\0-Xarch_gfx1201\0-O3\0-Xclang\0-target-feature\0@a.rsp"
    line = "hipcc -c a.hip -o 'a b.o' --offload-arch=gfx1201 -O3 && cd x && FOO=1 clang++ -x hip a.hip -c > log 2>&1\n"
    files: dict[str, list[bytes]] = {
        "whole": [
            *(code, two, compressed(two, 3, 1), compressed(two, 1, 0)),
            *(path.read_bytes() for path in (unit, newer, library, archive)),
        ],
        "bundle": [b"\0" + two, b"\1" + two, b"\0" + compressed(two, 2, 1), b"\0" + compressed(two, 1, 1)],
        "code": [code, wide],
        "note": [note[:size], b"\x81\xaeamdhsa.kernels\x91\x82\xa5.name\xa1k\xa7.symbol\xa4k.kd"],
        "wheel": [path.read_bytes() for path in folder.glob("seed.[0-9]*")],
        "log": [
            *(line.encode(), b"[1/2] : && " + line.encode(), b"make[1]: Entering directory '/x'\n" + line.encode()),
            *(b'[{"command": "hipcc -c a.hip", "file": "a"}]', b'{"argv": ["hipcc", "-c", "a.hip"]}'),
        ],
        "command": [f"# +-O2 x-c s/a/b/\0hipcc\0-c\0a.hip\0{flags}".encode(), b"\0clang-offload-bundler\0-targets=a"],
    }
    for name, all_data in files.items():
        (folder / name).mkdir(exist_ok=True)
        for number, data in enumerate(all_data):
            (folder / name / f"seed{number}").write_bytes(data)


def child(name: str, folder: Path, seconds: int) -> None:
    """One process of one target; never returns."""
    import atheris

    with atheris.instrument_imports(include=["rocmbuild"]):
        action = targets(folder)[name]
    words = [sys.argv[0], str(folder / name), f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=400"]
    words += ["-print_final_stats=1", "-max_len=65536", f"-artifact_prefix={folder}/{name}-", "-verbosity=0"]
    atheris.Setup(words, action)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description="fuzz the audit's parsers")
    parser.add_argument("--cpu-seconds", type=float, default=600)
    parser.add_argument("--target", action="append", help="one of them; all by default")
    parser.add_argument("--corpus", type=Path, help="folder of inputs, kept for the next run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--round", type=int, default=ROUND, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.corpus, args.round)
    folder = args.corpus or Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "base.co").exists():
        seeds(folder)
    names = args.target or list(targets(folder))
    result: dict[str, dict[str, object]] = {}
    for name in names:
        executions, used, broken = 0, 0.0, 0
        while used < args.cpu_seconds / len(names) and not broken:
            left = max(2, min(args.round, round(args.cpu_seconds / len(names) - used)))
            words = [sys.executable, __file__, "--child", name, "--corpus", str(folder), "--round", str(left)]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            counted = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
            executions += int(counted[1]) if counted else 0
            broken = done.returncode
            if broken:
                print(done.stderr[-3000:], file=sys.stderr)
        finds = sorted(str(path) for path in folder.glob(f"{name}-*"))
        result[name] = {"executions": executions, "cpu_seconds": round(used, 1), "status": broken, "finds": finds}
        print(name, json.dumps(result[name]), file=sys.stderr, flush=True)
    total = sum(int(str(row["executions"])) for row in result.values())
    print(json.dumps({"executions": total, "corpus": str(folder), "targets": result}, indent=2))
    return 1 if any(row["status"] for row in result.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
