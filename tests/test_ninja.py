"""Plans run by the real ninja: what ran is recorded, what changed is rebuilt, what fails is named."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from rocmbuild.build import ninja
from rocmbuild.build.plan import BuildPlan, Edge, Library
from rocmbuild.errors import CheckError, InputError

RECORDER = Path(ninja.__file__).parent / "recorder.py"


def cxx_edge(source: str, output: str, *words: str, env: tuple[tuple[str, str], ...] = ()) -> Edge:
    argv = ("g++", "-c", source, "-o", output, "-fPIC", *words, "-MD", "-MF", f"{output}.d")
    return Edge(
        kind="cxx", platform="host", extension="a.b", source=source, inputs=(source,), output=output, argv=argv,
        depfile=f"{output}.d", env=env,
    )  # fmt: skip


def plan_of(*edges: Edge) -> BuildPlan:
    objects = tuple(edge.output for edge in edges)
    link = Edge(
        kind="link", platform="host", extension="a.b", inputs=objects, output="lib/a/b_host.so",
        argv=("g++", "-shared", "-o", "lib/a/b_host.so", *objects),
    )  # fmt: skip
    return BuildPlan(edges=(*edges, link), libraries=(Library(extension="a.b", platform="host", path="a/b_host.so"),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A build folder as the pipeline lays it, with names that shells and ninja read in their own way."""
    place = tmp_path / "b [1] $x 'y'"
    (place / "support").mkdir(parents=True)
    (place / "support/recorder.py").write_bytes(RECORDER.read_bytes())
    (place / "support/record").write_text(f'exec "{os.path.realpath(sys.executable)}" -I -S support/recorder.py "$@"\n')
    (place / "src").mkdir()
    (place / "src/a b$.cpp").write_text('#include "h.h"\nint a() { return H; }\n')
    (place / "src/c.cpp").write_text("int c() { return 3; }\n")
    (place / "src/h.h").write_text("#define H 1\n")
    return place


def run(plan: BuildPlan, folder: Path, **more: bool) -> int:
    return ninja.run_ninja(plan, folder, jobs=2, verbose=more.get("verbose", False), env=dict(os.environ))


def test_builds_and_records_what_ran(folder: Path) -> None:
    plan = plan_of(cxx_edge("src/a b$.cpp", "obj/a b$.o"), cxx_edge("src/c.cpp", "obj/c.o", env=(("SOME", "v a"),)))
    assert run(plan, folder) == 3
    commands = ninja.read_commands(plan, folder)
    assert [command.argv for command in commands] == [edge.argv for edge in plan.edges]
    assert [command.exit for command in commands] == [0, 0, 0]
    assert commands[1].env == {"SOME": "v a"}
    assert (folder / "lib/a/b_host.so").is_file()
    assert run(plan, folder) == 0, "a second run has nothing to do"


def test_an_edited_header_rebuilds_its_users_only(folder: Path) -> None:
    plan = plan_of(cxx_edge("src/a b$.cpp", "obj/a.o"), cxx_edge("src/c.cpp", "obj/c.o"))
    run(plan, folder)
    (folder / "src/h.h").write_text("#define H 2\n")
    assert run(plan, folder) == 2, "one object and the library"


def test_a_changed_command_rebuilds(folder: Path) -> None:
    run(plan_of(cxx_edge("src/c.cpp", "obj/c.o")), folder)
    assert run(plan_of(cxx_edge("src/c.cpp", "obj/c.o", "-DX=1")), folder) == 2


def test_a_digest_in_a_command_is_that_of_the_file_when_it_runs(folder: Path) -> None:
    plan = plan_of(cxx_edge("src/c.cpp", "obj/c.o", "-DDIGEST=@sha256:src/h.h@"))
    run(plan, folder)
    import hashlib

    words = ninja.read_commands(plan, folder)[0].argv
    assert "-DDIGEST=" + hashlib.sha256(b"#define H 1\n").hexdigest() in words


def test_every_failure_is_named_with_the_compilers_lines(folder: Path) -> None:
    (folder / "src/c.cpp").write_text("int c() { return undefined_thing; }\n")
    (folder / "src/h.h").write_text("#define H another_thing\n")
    plan = plan_of(cxx_edge("src/a b$.cpp", "obj/a.o"), cxx_edge("src/c.cpp", "obj/c.o"))
    with pytest.raises(CheckError) as caught:
        run(plan, folder)
    text = str(caught.value)
    assert "src/c.cpp (host cxx): exit 1" in text
    assert "undefined_thing" in text
    assert "another_thing" in text
    assert "Traceback" not in text
    assert not (folder / "lib/a/b_host.so").exists()


def test_a_missing_compiler_is_a_failure_of_that_command(folder: Path) -> None:
    edge = Edge(kind="cxx", platform="host", extension="a.b", source="src/c.cpp", inputs=("src/c.cpp",), output="c.o",
                argv=("/nowhere/c++", "-c", "src/c.cpp"))  # fmt: skip
    with pytest.raises(CheckError, match=r"/nowhere/c\+\+: No such file"):
        run(plan_of(edge), folder)


def test_verbose_shows_the_commands(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(plan_of(cxx_edge("src/c.cpp", "obj/c.o")), folder, verbose=True)
    assert "g++ -c src/c.cpp -o obj/c.o" in capfd.readouterr().err


def test_a_line_break_in_a_name_is_refused() -> None:
    with pytest.raises(InputError, match="line break"):
        ninja.ninja_file(plan_of(cxx_edge("src/a\nb.cpp", "obj/a.o")))


def test_compile_commands_hold_each_compilation(folder: Path) -> None:
    plan = plan_of(cxx_edge("src/c.cpp", "obj/c.o"))
    entries = json.loads(ninja.compile_commands(plan, folder))
    assert [(entry["file"], entry["output"]) for entry in entries] == [("src/c.cpp", "obj/c.o")]
    assert entries[0]["arguments"][0] == "g++"


def test_the_recorder_writes_the_variables_that_inject_flags(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPCC_COMPILE_FLAGS_APPEND", "-DZ")
    plan = plan_of(cxx_edge("src/c.cpp", "obj/c.o"))
    run(plan, folder)
    assert ninja.read_commands(plan, folder)[0].env == {"HIPCC_COMPILE_FLAGS_APPEND": "-DZ"}
