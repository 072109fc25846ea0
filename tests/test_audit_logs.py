"""Commands out of logs: those of real builds by ninja, make, CMake and pip, and every odd line that others print."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from audit_samples import SOURCE, WITHOUT_HEADERS
from hypothesis import given
from hypothesis import strategies as st
from support import require

from rocmbuild.audit.logs import Log, is_text, parse_log, read_log
from rocmbuild.audit.report import AuditReport, audit, audit_paths
from rocmbuild.cli import main
from rocmbuild.errors import InputError
from rocmbuild.toolchain.model import Toolchain

HIPCC = "/opt/rocm/bin/hipcc"
GOOD = "--offload-arch=gfx1201 -mno-wavefrontsize64 -O3"


def log(text: str, folder: Path = Path("/b")) -> Log:
    return parse_log(text, name="build.log", folder=folder)


def argvs(text: str) -> list[str]:
    return [" ".join(command.argv) for command in log(text).record.commands]


def lines(text: str) -> list[int]:
    return [command.line for command in log(text).record.commands]


def judged(text: str, *targets: str) -> AuditReport:
    return audit([], logs=[log(text)], targets=targets or ("gfx1201",))


def errors(report: AuditReport) -> list[tuple[str, int]]:
    return [(f.rule, f.line) for f in report.findings if f.severity == "error"]


# What surrounds a command


ONE = f"{HIPCC} -c a.hip -o a.o {GOOD}"


@pytest.mark.parametrize(
    "line",
    [
        ONE,
        f"[3/12] {ONE}",
        f"  [3/12] {ONE}",
        f"[ 42%] {ONE}",
        f"[12/34 1.2s 35%] {ONE}",
        f"    {ONE}",
        f"+ {ONE}",
        f"++ {ONE}",
        f"2025-11-30T17:22:01.1234567Z {ONE}",
        f"#14 12.34 {ONE}",
        f"libtool: compile:  {ONE}",
        f"\x1b[32m[1/2] \x1b[0m{ONE}",
        f"[1/2] : && {ONE} && :",
        f"cd /b/c && {ONE}",
        f"({ONE})",
        f"{ONE} > out.txt 2>&1",
        f"{ONE} 2>/dev/null",
        f"sh -c '{ONE}'",
        f"/bin/bash -ec 'set -x; {ONE}'",
        f"cmake -E env CCC=1 {ONE}",
        f"/usr/bin/cmake -E __run_co_compile --source=a.hip -- {ONE}",
        f"Building... 10%\r[1/2] {ONE}\r",
        f"time -p {ONE}",
    ],
)
def test_a_command_is_found_in_its_surroundings(line: str) -> None:
    assert argvs(f"configure\n{line}\ndone\n")[0].endswith(ONE.removeprefix(HIPCC))
    assert lines(f"configure\n{line}\ndone\n") == [2]


@pytest.mark.parametrize(
    "line",
    [
        "-- The HIP compiler identification is Clang 22.1.8",
        "-- Check for working HIP compiler: /opt/rocm/llvm/bin/clang++ - skipped",
        "gcc version 12.2.0 (Debian 12.2.0-14)",
        "[ 50%] Building HIP object CMakeFiles/a.dir/a.hip.o",
        "we don't use hipcc here",
        "checking for g++... g++",
        "checking whether the C++ compiler works... yes",
        "cc is a compiler",
        "rm -f /usr/bin/hipcc.bak",
        "echo hipcc -c",
        "clang -cc1 version 22.1.8 based upon LLVM 22.1.8 default target x86_64-pc-linux-gnu",
        "",
    ],
)
def test_prose_is_no_command(line: str) -> None:
    with pytest.raises(InputError, match=r"build\.log: no compiler command in it") as caught:
        log(line)
    assert "ninja -v" in caught.value.hint


def test_several_commands_of_one_line_and_one_command_of_several_lines() -> None:
    text = f"mkdir -p o && {ONE} && g++ -c b.cpp -o b.o; g++ a.o b.o -shared -o l.so\n"
    assert len(argvs(text)) == 3
    text = "first\nhipcc -c a.hip \\\n  -o a.o \\\r\n  --offload-arch=gfx942\nlast\n"
    assert argvs(text) == ["hipcc -c a.hip -o a.o --offload-arch=gfx942"]
    assert lines(text) == [2]


def test_folders_and_variables_hold_where_they_are_set() -> None:
    text = f"""make: Entering directory '/b/top'
make[1]: Entering directory `/b/top/sub'
{ONE}
make[1]: Leaving directory `/b/top/sub'
{ONE}
make: Leaving directory '/b/top'
cd deep && export HIPCC_COMPILE_FLAGS_APPEND=-O0 && {ONE}
A=1 HCC_AMDGPU_TARGET=gfx906 {HIPCC} -c b.hip -o b.o
Change Dir: '/b/scratch'
{ONE}
"""
    commands = log(text).record.commands
    assert [str(command.cwd) for command in commands] == ["/b/top/sub", "/b/top", "/b/deep", "/b", "/b/scratch"]
    assert commands[2].env == {"HIPCC_COMPILE_FLAGS_APPEND": "-O0"}
    found = errors(judged(text))
    assert ("target-extra", 8) in found
    assert ("wave64", 8) in found


def test_what_cannot_be_taken_apart_is_said() -> None:
    found = log(f"{HIPCC} -c a.hip '--offload-arch=gfx942\n{ONE}\nclang++ 'no hip\n")
    assert [(f.rule, f.line, f.where) for f in found.findings] == [("not-understood", 1, "build.log:1")]
    assert "speaks of HIP and cannot be split into words" in found.findings[0].message
    report = audit([], logs=[found], targets=["gfx1201"])
    assert "not-understood" in {finding.rule for finding in report.findings}


def test_the_answer_points_to_the_line() -> None:
    text = f"""-- configuring
[1/4] {ONE}
[2/4] {HIPCC} -c b.hip -o b.o --offload-arch=gfx1201,gfx942 -mno-wavefrontsize64 -O3
[3/4] g++ -c c.cpp -o c.o
[4/4] g++ -shared a.o b.o c.o -o l.so
"""
    report = judged(text)
    assert errors(report) == [("wave64", 3), ("target-extra", 3)]
    assert {(f.where, f.path) for f in report.findings if f.severity == "error"} == {("build.log:3", "build.log")}
    assert (report.compiled.source, report.compiled.commands, report.compiled.device_commands) == ("log", 4, 2)
    assert report.compiled.targets == ("gfx1201", "gfx942")
    kinds = [verdict.kind for _, verdict in report.compiled.verdicts]
    assert kinds == ["device", "device", "host", "link"]


def test_the_parts_of_one_unit_are_put_together() -> None:
    """One command per target: each unit must have all; which one lacks something is told by its line."""
    part = "clang++ -x hip -c {0}.hip -o {0}.{1}.co --offload-device-only --offload-arch={1} -mno-wavefrontsize64 -O3"
    text = "\n".join(part.format(*pair) for pair in (("a", "gfx1201"), ("a", "gfx1100"), ("b", "gfx1201")))
    assert errors(judged(text, "gfx1201", "gfx1100")) == [("target-missing", 3)]
    assert errors(judged(f"{text}\n{part.format('b', 'gfx1100')}", "gfx1201", "gfx1100")) == []


def test_a_log_without_device_code_is_not_good() -> None:
    assert errors(judged("g++ -c a.cpp -o a.o\n")) == [("target-missing", 0)]
    assert audit([], logs=[log("g++ -c a.cpp -o a.o\n")]).ok


def test_what_hipcc_prints_itself() -> None:
    """HIPCC_VERBOSE=1: the command that it ran stands for the one that started it."""
    text = f"""[1/2] {HIPCC} -c a.hip -o a.o --offload-arch=gfx1201
hipcc-cmd: "/opt/rocm/lib/llvm/bin/clang++"  -O3 --offload-arch=gfx1201 -mwavefrontsize64 -x hip -c a.hip -o "a.o"
[2/2] {HIPCC} -c b.hip -o b.o {GOOD}
"""
    assert lines(text) == [2, 3]
    assert errors(judged(text)) == [("wave64", 2)]


def test_what_clang_prints_itself() -> None:
    text = """clang version 22.1.8
Target: x86_64-pc-linux-gnu
 "/usr/lib/llvm-22/bin/clang" "-cc1" "-triple" "amdgcn-amd-amdhsa" "-emit-obj" "-fcuda-is-device" "-target-cpu" \
"gfx942" "-O3" "-o" "/tmp/a-1.o" "-x" "hip" "a.hip"
 "/usr/lib/llvm-22/bin/clang" "-cc1" "-triple" "x86_64-pc-linux-gnu" "-emit-obj" "-O3" "-o" "a.o" "-x" "hip" "a.hip"
"""
    assert [rule for rule, _ in errors(judged(text))] == ["wave64", "target-extra", "target-missing"]


# Databases and recorders


def test_compilation_databases(tmp_path: Path) -> None:
    rows = [
        {"directory": "/b", "file": "a.hip", "command": ONE},
        {"directory": "/b", "file": "b.hip", "arguments": ["hipcc", "-c", "b [x].hip", "--offload-arch=gfx942"]},
        {"directory": "/b", "file": "c", "command": 'touch {}[]"\\"" && cd c && hipcc -c c.hip -O2'},
    ]
    path = tmp_path / "compile_commands.json"
    path.write_text(json.dumps(rows, indent=1))
    commands = read_log(path).record.commands
    assert [command.line for command in commands] == [2, 7, 17]
    assert [str(command.cwd) for command in commands] == ["/b", "/b", "/b/c"]
    assert commands[1].argv[2] == "b [x].hip"
    report = audit_paths([path], targets=["gfx1201"])
    assert {line for _, line in errors(report)} == {7, 17}
    for text, words in (("[{]", "not JSON"), ("[3]", "no compiler"), ('[{"a": 1}]', "neither command nor arguments")):
        with pytest.raises(InputError, match=words):
            log(text)


def test_recording_compilers(tmp_path: Path) -> None:
    """One object a file in a folder, or one a line; the environment and the exit status count."""
    rows = [
        {"argv": shlex.split(ONE), "env": {"HIPCC_COMPILE_FLAGS_APPEND": "-mwavefrontsize64"}, "exit": 0},
        {"argv": shlex.split(ONE), "env": {}, "exit": 1, "cwd": "sub"},
    ]
    lines_file = tmp_path / "commands.jsonl"
    lines_file.write_text("\n".join(map(json.dumps, rows)))
    report = audit_paths([lines_file], targets=["gfx1201"])
    assert errors(report) == [("wave64", 1), ("command-failed", 2)]
    folder = tmp_path / "records"
    folder.mkdir()
    for number, row in enumerate(rows):
        (folder / f"{number}.json").write_text(json.dumps(row))
    assert [f.rule for f in audit_paths([folder], targets=["gfx1201"]).findings if f.severity == "error"] == [
        "wave64",
        "command-failed",
    ]
    assert audit_paths([folder / "0.json"]).compiled.commands == 1
    (folder / "odd.json").write_text("[]")
    assert len(read_log(folder).record.commands) == 2
    with pytest.raises(InputError, match="no file of a recording compiler"):
        read_log(tmp_path / "records" / ".." / "empty" if (tmp_path / "empty").mkdir() else tmp_path / "empty")
    with pytest.raises(InputError, match="wanted objects with argv"):
        log('{"argv": []}')
    with pytest.raises(InputError, match=r"build\.log:2: not JSON"):
        log('{"argv": ["hipcc", "-c"]}\n{')


def test_a_log_is_told_from_a_binary(tmp_path: Path) -> None:
    for name, data, answer in (
        ("log", b"hipcc -c a.hip\n", True),
        ("colour", b"\x1b[1mhipcc -c a.hip\x1b[0m\r\n", True),
        ("elf", b"\x7fELF\x02\x01\x01", False),
        ("archive", b"!<arch>\nabc", False),
        ("bundle", b"__CLANG_OFFLOAD_BUNDLE__", False),
        ("wheel", b"PK\x03\x04", False),
        ("empty", b"", False),
    ):
        (tmp_path / name).write_bytes(data)
        assert is_text(tmp_path / name) is answer, name


def test_logs_binaries_and_standard_input_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.log").write_text(ONE)
    (tmp_path / "b.log").write_text(ONE.replace("gfx1201", "gfx942"))
    assert main(["audit", str(tmp_path / "a.log"), "--targets", "gfx1201"]) == 0
    assert "compiled   gfx1201  (1 device commands of 1, log)" in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "a.log"), str(tmp_path / "b.log"), "--targets", "gfx1201"]) == 1
    assert f"{tmp_path / 'b.log'}:1: extra target gfx942" in " ".join(capsys.readouterr().out.split())
    with (tmp_path / "b.log").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert main(["audit", "-", "--targets", "gfx1201"]) == 1
    assert "standard input:1: extra target gfx942" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "record.json").write_text('{"format": 1, "targets": []}')
    assert main(["audit", str(tmp_path / "a.log"), str(tmp_path / "record.json")]) == 2
    assert "a record or logs, not both" in capsys.readouterr().err


@given(st.text(alphabet="hipcc -\"'\\\n\r&;|()<>=@[]{}0123456789:/.\x1b", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = log(f"hipcc -c a.hip {text}")
    except InputError as err:
        assert "build.log" in err.message
    else:
        audit([], logs=[found], targets=["gfx1201"])


# Real builds


def project(folder: Path, toolchain: Toolchain) -> str:
    """Two small HIP sources and a C++ one; returns the compiler with what all its commands share."""
    folder.mkdir(exist_ok=True)
    for name in ("one", "two"):
        (folder / f"{name}.hip").write_text(SOURCE.replace("NAME", name))
    (folder / "host.cpp").write_text("int host() { return 1; }\n")
    (folder / "flags.rsp").write_text("--offload-arch=gfx1201 -mno-wavefrontsize64")
    return shlex.join([str(toolchain.clang), "-x", "hip", "-O3", "-fPIC", *WITHOUT_HEADERS])


def run(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """What a build prints, both streams together."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        require(name)
    return found


def same_as_the_objects(report: AuditReport, *objects: Path) -> None:
    """The targets that the log foretells are those in the objects."""
    emitted = audit(objects).emitted
    assert set(report.compiled.targets) == set(emitted)


def test_ninja(tmp_path: Path, toolchain: Toolchain) -> None:
    """`ninja -v` and `ninja -t compdb` of one build: the same commands, the same answer as the objects'."""
    hip = project(tmp_path, toolchain)
    (tmp_path / "build.ninja").write_text(
        f"rule hip\n  command = {hip} -c $in -o $out $flags\n  rspfile = $out.rsp\n  rspfile_content = {GOOD}\n"
        "rule cxx\n  command = c++ -fPIC -c $in -o $out\n"
        "rule link\n  command = : && c++ -shared $in -o $out && :\n"
        "build one.o: hip one.hip\n  flags = --offload-arch=gfx1201 -mno-wavefrontsize64\n"
        "build two.o: hip two.hip\n  flags = --offload-arch=gfx1201,gfx942 -mno-wavefrontsize64\n"
        "build host.o: cxx host.cpp\nbuild lib.so: link one.o two.o host.o\n"
    )
    text = run(tool("ninja"), "-v", cwd=tmp_path)
    (tmp_path / "ninja.log").write_text(text)
    report = audit_paths([tmp_path / "ninja.log"], targets=["gfx1201"])
    same_as_the_objects(report, tmp_path / "one.o", tmp_path / "two.o")
    (number,) = {line for _, line in errors(report)}
    assert "two.hip" in text.splitlines()[number - 1]
    assert {rule for rule, _ in errors(report)} == {"wave64", "target-extra"}
    assert report.compiled.commands == 4
    (tmp_path / "db.json").write_text(run(tool("ninja"), "-t", "compdb", cwd=tmp_path))
    again = audit_paths([tmp_path / "db.json", tmp_path / "lib.so"], targets=["gfx1201"])
    assert again.compiled.targets == report.compiled.targets
    assert again.compiled.commands == report.compiled.commands
    (number,) = {line for _, line in errors(again) if line}
    assert "two.hip" in "".join((tmp_path / "db.json").read_text().splitlines()[number - 1 : number + 4])


def test_make(tmp_path: Path, toolchain: Toolchain) -> None:
    """`make V=1` with a folder below, a response file, and a command of several lines."""
    project(tmp_path, toolchain)
    hip = project(tmp_path / "sub", toolchain)
    (tmp_path / "Makefile").write_text(
        "all: one.o sub\n"
        f"one.o: one.hip\n\t{hip} -c one.hip \\\n\t  -o one.o \\\n\t  --offload-arch=gfx1100 -mno-wavefrontsize64\n"
        "sub:\n\t$(MAKE) -C sub\n.PHONY: sub\n"
    )
    (tmp_path / "sub/Makefile").write_text(f"two.o: two.hip\n\t{hip} -c two.hip -o two.o @flags.rsp\n")
    text = run(tool("make"), "V=1", cwd=tmp_path)
    report = audit([], logs=[parse_log(text, name="make.log", folder=tmp_path)], targets=["gfx1201"])
    same_as_the_objects(report, tmp_path / "one.o", tmp_path / "sub/two.o")
    (number,) = {line for _, line in errors(report)}
    assert "one.hip" in text.splitlines()[number - 1]


@pytest.mark.slow
def test_cmake(tmp_path: Path, toolchain: Toolchain) -> None:
    """Verbose builds by both generators, compile_commands.json, and the log of the configuration."""
    project(tmp_path, toolchain)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\nproject(p LANGUAGES CXX)\n"
        "add_library(p SHARED one.hip two.hip host.cpp)\n"
        "set_source_files_properties(one.hip two.hip PROPERTIES LANGUAGE CXX)\n"
        "set(hip -x hip -O3 --offload-arch=gfx1201 -mno-wavefrontsize64)\n"
        'set_source_files_properties(one.hip PROPERTIES COMPILE_OPTIONS "${hip}")\n'
        'set_source_files_properties(two.hip PROPERTIES COMPILE_OPTIONS "${hip};-mwavefrontsize64")\n'
    )
    settings = [f"-DCMAKE_CXX_COMPILER={toolchain.clang}", f"-DCMAKE_CXX_FLAGS={' '.join(WITHOUT_HEADERS)}"]
    settings += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    for generator in ("Ninja", "Unix Makefiles"):
        build = tmp_path / generator.replace(" ", "")
        run(tool("cmake"), "-S", tmp_path, "-B", build, "-G", generator, *settings, cwd=tmp_path)
        text = run(tool("cmake"), "--build", build, "-v", cwd=tmp_path)
        report = audit([], logs=[parse_log(text, name="cmake.log", folder=build)], targets=["gfx1201"])
        same_as_the_objects(report, build / "libp.so")
        found = errors(report)
        assert {rule for rule, _ in found} == {"wave64"}
        assert all("two.hip" in text.splitlines()[line - 1] for _, line in found)
        assert [verdict.kind for _, verdict in report.compiled.verdicts].count("link") == 1
        database = audit_paths([build / "compile_commands.json"], targets=["gfx1201"])
        assert {rule for rule, _ in errors(database)} == {"wave64"}
        configure = [*build.glob("CMakeFiles/CMakeConfigureLog.yaml"), *build.glob("CMakeFiles/CMakeOutput.log")]
        commands = read_log(configure[0]).record.commands
        assert any("CMakeCXXCompilerABI.cpp" in " ".join(command.argv) for command in commands)


@pytest.mark.slow
def test_pip(tmp_path: Path, toolchain: Toolchain) -> None:
    """`pip wheel -v`: what setup.py runs and what it starts ninja for, indented by pip."""
    hip = project(tmp_path, toolchain)
    (tmp_path / "build.ninja").write_text(
        f"rule hip\n  command = {hip} -c $in -o $out --offload-arch=gfx1201 -mno-wavefrontsize64\n"
        "build two.o: hip two.hip\n"
    )
    command = [*shlex.split(hip), "-c", "one.hip", "-o", "one.o", "--offload-arch=gfx1100", "-mno-wavefrontsize64"]
    (tmp_path / "setup.py").write_text(
        "import subprocess\nfrom setuptools import setup\nfrom setuptools.command.build import build\n"
        f"class Build(build):\n    def run(self):\n        self.spawn({command!r})\n"
        "        subprocess.check_call(['ninja', '-v'])\n        super().run()\n"
        "setup(name='p', version='1', py_modules=[], cmdclass={'build': Build})\n"
    )
    words = ("-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "-w", "dist", ".")
    path = os.pathsep.join([str(Path(tool("ninja")).parent), os.environ["PATH"]])
    text = run(sys.executable, *words, cwd=tmp_path, env={"PATH": path})
    report = audit([], logs=[parse_log(text, name="pip.log", folder=tmp_path)], targets=["gfx1201"])
    assert set(report.compiled.targets) == {"gfx1201", "gfx1100"}
    assert {rule for rule, _ in errors(report)} == {"target-extra", "target-missing"}
    assert all("one.hip" in text.splitlines()[line - 1] for _, line in errors(report))
