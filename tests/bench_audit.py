"""Time and memory of an audit next to LLVM's own tools over the same files, in one run. Not a test: prints JSON.

    python tests/bench_audit.py [--repeat 3] [WHEEL ...]

Without wheels: the ROCm libraries of bitsandbytes 0.50.2 (six) and cupy-rocm-7-0 14.2.0, from pip, kept in the cache
folder. Of each wheel the libraries with device code are unpacked first. Then, from each process's start to its end, the
best of the repeats:

audit       `rocmbuild audit LIBRARY...` whole, its table written to a file
read        reading alone: every bundle, code object and kernel, nothing printed
llvm        `llvm-objdump --offloading` on each library, which writes its code objects into a folder, plus
            `llvm-readelf --notes` over all code objects, printed to a file. On compressed bundles LLVM 22's
            llvm-objdump writes wrong bytes and mostly dies: "died" counts the runs that are left out, and llvm-readelf
            reads the code objects that clang-offload-bundler took out before, which is not timed.
unbundle    what gives right bytes for compressed bundles too: `clang-offload-bundler -unbundle` on each bundle, whose
            place it is told, plus the same `llvm-readelf --notes`

Seconds are wall time; peak is the largest resident set of any process of a row, in MiB. Python's own modules and
rocmbuild's are compiled to bytecode, as an installation has them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

READ = "import sys; from pathlib import Path; from rocmbuild.audit.binary import inspect\n"
READ += "for name in sys.argv[1:]: inspect(Path(name), demangle=False)"
WHEELS = (
    ("bitsandbytes-0.50.2-*.whl", "bitsandbytes==0.50.2", "--platform", "manylinux_2_24_x86_64"),
    *(("cupy_rocm_7_0-14.2.0-*.whl", "cupy-rocm-7-0==14.2.0", "--platform", "manylinux2014_x86_64"),),
)


LAUNCHER = """
import json, os, sys, time
files = [(os.POSIX_SPAWN_OPEN, fd, f"output{fd}", os.O_WRONLY | os.O_CREAT, 0o600) for fd in (1, 2)]
begin = time.monotonic()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=files)
_, status, usage = os.wait4(child, 0)
wall = time.monotonic() - begin
print(json.dumps([os.waitstatus_to_exitcode(status), wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


def timed(argv: Sequence[str | Path], folder: Path) -> tuple[float, float, float] | None:
    """(wall seconds, processor seconds, peak MiB) of a process whose output goes to a file; None where it dies.

    A small process starts it, since a child counts what its parent had in memory.
    """
    words = [sys.executable, "-I", "-S", "-c", LAUNCHER, *map(str, argv)]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")  # the first of the runs fills it
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=True)
    status, wall, processor, peak = json.loads(done.stdout)
    return (wall, processor, peak) if status in (0, 1) else None


def best(repeat: int, commands: Sequence[Sequence[str | Path]], folder: Path) -> dict[str, object]:
    """The fastest of some runs of each command, added up; a run that dies is done again."""
    rows, died = [], 0
    for argv in commands:
        found: list[tuple[float, float, float]] = []
        while len(found) < repeat and died < 1000:
            one = timed(argv, folder)
            died += one is None
            found += [one] if one else []
        rows.append(min(found))
    wall, processor, peak = sum(r[0] for r in rows), sum(r[1] for r in rows), max(r[2] for r in rows)
    figures = {"seconds": round(wall, 2), "cpu_seconds": round(processor, 2), "peak_mib": round(peak, 1)}
    return dict(figures, died=died) if died else dict(figures)


def measure(wheel: Path, repeat: int) -> dict[str, object]:
    from audit_samples import Samples, unbundling

    from rocmbuild.audit.binary import inspect
    from rocmbuild.toolchain.discover import find_toolchain

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        samples = Samples(folder, find_toolchain(spec=None, environ=os.environ))
        libraries: list[Path] = []
        codes: list[Path] = []
        unbundle: list[list[str | Path]] = []
        kernels = 0
        with zipfile.ZipFile(wheel) as archive:
            for library in inspect(wheel, demangle=False).device_libraries:
                path = folder / Path(library.name).name
                path.write_bytes(archive.read(library.name))
                libraries.append(path)
                for _, argv, outs in unbundling(samples, path, library.bundles):
                    samples.run(*argv)
                    unbundle.append(argv)
                    codes += [code for _, code in outs]
                kernels += sum(len(code.kernels) for code in library.code_objects)
        objdump, readelf = samples.tool("llvm-objdump"), samples.tool("llvm-readelf")
        work = folder / "work"
        work.mkdir()
        notes: list[str | Path] = [readelf, "--notes", *codes]
        llvm: list[list[str | Path]] = [[objdump, "--offloading", path] for path in libraries]
        return {
            "wheel": wheel.name,
            "libraries": len(libraries),
            "bytes": sum(path.stat().st_size for path in libraries),
            "code_objects": len(codes),
            "kernels": kernels,
            "audit": best(repeat, [[sys.executable, "-m", "rocmbuild", "audit", *libraries]], work),
            "read": best(repeat, [[sys.executable, "-c", READ, *libraries]], work),
            "llvm": best(repeat, [*llvm, notes], work),
            "unbundle": best(repeat, [*unbundle, notes], work),
        }


def main() -> None:
    from test_audit_binary import downloaded

    parser = argparse.ArgumentParser(description="measure the audit next to LLVM's tools")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("wheels", nargs="*", type=Path)
    args = parser.parse_args()
    wheels = args.wheels or [downloaded(pattern, *words) for pattern, *words in WHEELS]
    load = os.getloadavg()[0]
    rows = [measure(wheel, args.repeat) for wheel in wheels]
    print(json.dumps({"processors": os.cpu_count(), "load": round(load, 1), "wheels": rows}, indent=2))


if __name__ == "__main__":
    main()
