"""Results of compiler commands in a wrapped build: given again only where nothing that they were made from changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import needs_toolchain, require

from rocmbuild.build import front
from rocmbuild.toolchain.model import Toolchain


class Bench:
    """A folder with two sources and a header, and front.py before g++ and clang++."""

    def __init__(self, folder: Path, clang: str, flags: list[str]) -> None:
        self.folder = folder
        gcc = shutil.which("g++") or require("g++")
        own = Path(front.__file__).parent
        for name in ("front.py", "front_cache.py", "include/rocmbuild/wave32.h"):
            shutil.copy(own / name, folder)
        (folder / "a.cpp").write_text('#include "a.h"\nint a() { return A; }\n')
        (folder / "a.h").write_text("#define A 1\n")
        self.settings: dict[str, Any] = {
            "records": str(folder / "records"),
            "programs": {"g++": gcc, "clang++": clang},
            "guard": str(folder / "wave32.h"),
            "flags": {"clang++": flags},
            "common": [f"-ffile-prefix-map={folder}=."],
            "compiler_rt": True,
            "level": ["-O1"],
            "hip": "7.2",
            "cache": str(folder / "results"),
            "places": [[str(folder), "{here}"]],
            "identity": "tools",
        }
        (folder / "records").mkdir()

    def run(self, command: str, *, ok: bool = True, **environ: str) -> bool:
        """Run a command; whether its result is an earlier one."""
        path = self.folder / "settings.json"
        path.write_text(json.dumps(self.settings))
        name, *words = command.split()
        time.sleep(0.02)  # what is written in the moment in which a command begins is taken for an edit meanwhile
        done = subprocess.run(
            [sys.executable, "-I", "-S", self.folder / "front.py", path, name, *words],
            cwd=self.folder,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) is ok, done.stderr
        record = max((self.folder / "records").iterdir(), key=lambda file: file.name)
        value = json.loads(record.read_text())
        assert value["exit"] == done.returncode
        return bool(value["cached"])

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, "/nonexistent/clang++", [])


COMPILE = "g++ -fPIC -I. -c a.cpp -o a.o"


def test_a_compilation_is_done_once_and_again_when_what_it_read_changed(bench: Bench) -> None:
    assert not bench.run(COMPILE)
    first = (bench.folder / "a.o").read_bytes()
    (bench.folder / "a.o").unlink()
    assert bench.run(COMPILE)
    assert (bench.folder / "a.o").read_bytes() == first
    os.utime(bench.folder / "a.h")
    assert bench.run(COMPILE)  # touched, and of the same bytes
    bench.write("a.h", "#define A 2\n")
    assert not bench.run(COMPILE)
    assert (bench.folder / "a.o").read_bytes() != first
    bench.write("a.cpp", '#include "a.h"\nint b() { return A; }\n')
    assert not bench.run(COMPILE)
    assert bench.run(COMPILE)


def test_words_variables_and_tools_are_part_of_the_command(bench: Bench) -> None:
    assert not bench.run(COMPILE)
    assert not bench.run(COMPILE + " -DX=1")
    assert not bench.run(COMPILE, CPATH=str(bench.folder))
    bench.settings["identity"] = "newer tools"
    assert not bench.run(COMPILE)
    assert bench.run(COMPILE)


def test_another_output_and_another_folder_of_the_packages_do_not_matter(bench: Bench) -> None:
    packages = [bench.folder / "site1", bench.folder / "site2"]
    for folder in packages:
        folder.mkdir()
        (folder / "p.h").write_text("#define P 3\n")
    bench.write("a.cpp", "#include <p.h>\nint a() { return P; }\n")
    for number, folder in enumerate(packages):
        bench.settings["places"] = [[str(folder), "{site}"], [str(bench.folder), "{here}"]]
        assert bench.run(f"g++ -I{folder} -c a.cpp -o out{number}.o") is bool(number)
    (packages[1] / "p.h").write_text("#define P 4\n")
    assert not bench.run(f"g++ -I{packages[1]} -c a.cpp -o out1.o")


def test_the_dependency_file_that_was_asked_for_is_there_again(bench: Bench) -> None:
    command = "g++ -I. -MMD -MF a.d -c a.cpp -o a.o"
    assert not bench.run(command)
    assert "a.h" in (bench.folder / "a.d").read_text()
    (bench.folder / "a.d").unlink()
    assert bench.run(command)
    assert (bench.folder / "a.d").read_text().startswith("a.o:")


def test_what_fails_or_is_damaged_is_not_given(bench: Bench) -> None:
    bench.write("a.h", "#error no\n")
    assert not bench.run(COMPILE, ok=False)
    bench.write("a.h", "#define A 1\n")
    assert not bench.run(COMPILE)
    for path in (bench.folder / "results").glob("*.out"):
        path.write_bytes(path.read_bytes()[:-1])
    assert not bench.run(COMPILE)
    for path in (bench.folder / "results").glob("*.json"):
        path.write_text("{")
    assert not bench.run(COMPILE)


def test_what_only_preprocesses_or_compiles_two_files_is_left_alone(bench: Bench) -> None:
    bench.write("b.cpp", "int b() { return 1; }\n")
    for command in ("g++ -I. -E a.cpp -o a.i", "g++ -I. -c a.cpp b.cpp"):
        assert not bench.run(command)
        assert not bench.run(command)
    assert not (bench.folder / "results").exists()


def test_a_link_is_that_of_the_same_objects_and_libraries(bench: Bench) -> None:
    bench.write("l.cpp", "int l() { return 1; }\n")
    bench.run("g++ -fPIC -c l.cpp -o l.o")
    bench.run("g++ -shared l.o -o libl.so")
    assert not bench.run(COMPILE)
    link = "g++ -shared a.o -L. -ll -o x.so"
    assert not bench.run(link)
    assert bench.run(link)
    assert os.access(bench.folder / "x.so", os.X_OK)
    shutil.copy(bench.folder / "a.o", bench.folder / "moved.o")
    assert bench.run("g++ -shared moved.o -L. -ll -o x.so")
    bench.write("a.h", "#define A 7\n")
    assert not bench.run(COMPILE)
    assert not bench.run(link)
    assert bench.run(link)
    bench.write("l.cpp", "int l() { return 2; }\n")
    bench.run("g++ -fPIC -c l.cpp -o l.o")
    bench.run("g++ -shared l.o -o libl.so")
    assert not bench.run(link)


@needs_toolchain
def test_headers_of_device_code_alone_count(tmp_path: Path, toolchain: Toolchain) -> None:
    """clang writes one dependency file for the whole command, and not of what the device's compilation includes."""
    bench = Bench(tmp_path, str(toolchain.clang), list(toolchain.compile_flags()))
    bench.write("d.h", "#define D 1\n")
    bench.write(
        "k.hip",
        '#ifdef __HIP_DEVICE_COMPILE__\n#include "d.h"\n#else\n#define D 0\n#endif\n'
        "__attribute__((device, used)) int k() { return D; }\n",
    )
    command = "clang++ --offload-arch=gfx1201 -x hip -nogpuinc -I. -c k.hip -o k.o"
    assert not bench.run(command)
    assert bench.run(command)
    bench.write("d.h", "#define D 2\n")
    assert not bench.run(command)
    bench.write("wave32.h", (tmp_path / "wave32.h").read_text() + "\n")
    assert not bench.run(command)
