"""The user's choice, projects' pins, several versions side by side, removal and verification."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocmbuild.cli import main
from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.toolchain import discover
from rocmbuild.toolchain.discover import CHOSEN, candidates, find_toolchain, toolchains_dir
from rocmbuild.toolchain.selection import choose, pin_project, remove_installed, unchoose, users_of
from rocmbuild.toolchain.store import locked, publish, work


def installed(name: str, hip: str) -> Path:
    """An entry of the store that the search takes for whole; nothing of it is ever run here."""
    store = toolchains_dir()
    with locked(store, what="a test"), work(store) as folder:
        tree = folder / "tree"
        for path in ("bin/clang++", "bin/clang-offload-bundler", "include/hip/hip_version.h", "bitcode/ockl.bc"):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(name)
        shutil.copy2("/bin/sleep", tree / "bin/sleep")
        paths = {"clang": "bin/clang++", "bundler": "bin/clang-offload-bundler", "include": "include"}
        paths |= {"device_libs": "bitcode", "readelf": "", "objdump": ""}
        facts = {"hip_version": hip, "clang_version": "22.1.8", "paths": paths, "packages": []}
        facts["request"] = {"provider": "debian", "suite": None, "extras": [], "layout": 2}
        return publish(store, tree, name=name, kind="toolchain", facts=facts).folder


@pytest.fixture(autouse=True)
def _two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions side by side, and nothing else."""
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(discover, "sys", SimpleNamespace(path=[], prefix="/nonexistent"))
    installed("old", "6.4.43484")
    installed("new", "7.2.53211")


ALONE = {"PATH": "/nowhere"}


def first(**environ: str) -> str:
    return find_toolchain(spec=None, environ={**ALONE, **environ}).name


def test_the_newest_unless_one_is_chosen() -> None:
    assert first() == "new"
    assert choose("old", ALONE).name == "old"
    assert first() == "old"
    found = candidates(ALONE, root=Path("/nonexistent"))
    assert [candidate.name for candidate in found] == ["old", "new"]
    assert found[0].origin == "managed store, chosen with `toolchain use`"
    assert find_toolchain(spec=">=7", environ=ALONE).name == "new"  # a project's range comes before the choice
    with pytest.raises(EnvironmentFailure, match=r"HIP 6\.4\.43484 is outside >=8"):
        find_toolchain(spec=">=8", environ=ALONE)
    assert unchoose() == "old"
    assert first() == "new"
    assert unchoose() is None


def test_a_range_is_held_against_each_version() -> None:
    assert find_toolchain(spec="<7", environ=ALONE).name == "old"
    assert find_toolchain(spec="~=7.2", environ=ALONE).name == "new"
    assert find_toolchain(spec="old", environ=ALONE).name == "old"


def test_a_choice_that_is_gone_is_an_error_not_another_toolchain() -> None:
    (toolchains_dir() / CHOSEN).write_text("gone\n")
    with pytest.raises(EnvironmentFailure) as err:
        first()
    assert "toolchain use gone" in err.value.message
    assert "new, old" in err.value.message


def test_only_what_is_there_can_be_chosen() -> None:
    with pytest.raises(EnvironmentFailure, match="did you mean 'new'"):
        choose("neww", ALONE)
    for name in ("", "a/b", ">=7"):
        with pytest.raises(InputError, match="not the name of a toolchain"):
            choose(name, ALONE)
    assert not (toolchains_dir() / CHOSEN).exists()


HEAD = '[build-system]\nrequires = ["rocmbuild"]\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HEAD, HEAD + '\n[tool.rocmbuild]\ntoolchain = "new"\n'),
        (
            '[tool.rocmbuild]\ntargets = ["gfx1201"]  # a card\n',
            '[tool.rocmbuild]\ntoolchain = "new"\ntargets = ["gfx1201"]  # a card\n',
        ),
        (
            '[tool.rocmbuild]  # ours\njobs = 2\ntoolchain   = ">=6"\n\n[[tool.rocmbuild.extensions]]\nname = "a.b"\n',
            '[tool.rocmbuild]  # ours\njobs = 2\ntoolchain = "new"\n\n[[tool.rocmbuild.extensions]]\nname = "a.b"\n',
        ),
        ("", '[tool.rocmbuild]\ntoolchain = "new"\n'),
        ("[x]\ntoolchain = 1", '[x]\ntoolchain = 1\n\n[tool.rocmbuild]\ntoolchain = "new"\n'),
    ],
)
def test_a_pin_changes_one_line(before: str, after: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(before)
    assert pin_project(tmp_path, "new", ALONE) == tmp_path / "pyproject.toml"
    assert (tmp_path / "pyproject.toml").read_text() == after
    pin_project(tmp_path, "new", ALONE)
    assert (tmp_path / "pyproject.toml").read_text() == after


@pytest.mark.parametrize(
    "text",
    [
        "[tool]\nrocmbuild = { jobs = 2 }\n",
        '[tool.rocmbuild]\nextra = """\n[tool.rocmbuild]\n"""\ntoolchain = """\nold"""\n',
        "not toml",
    ],
)
def test_a_file_that_cannot_be_edited_so_stays(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InputError):
        pin_project(tmp_path, "new", ALONE)
    assert (tmp_path / "pyproject.toml").read_text() == text


def test_a_pin_that_nothing_answers_to_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    for spec in ("absent", ">=9"):
        with pytest.raises(EnvironmentFailure):
            pin_project(tmp_path, spec, ALONE)
    with pytest.raises(InputError, match="cannot be read"):
        pin_project(tmp_path / "absent", "new", ALONE)
    assert (tmp_path / "pyproject.toml").read_text() == ""


def test_what_is_in_use_is_not_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "a project"
    project.mkdir()
    (project / "pyproject.toml").write_text("")
    pin_project(project, "old", ALONE)
    choose("old", ALONE)
    folder = toolchains_dir() / "old"
    process = subprocess.Popen([folder / "bin/sleep", "60"])
    try:
        time.sleep(0.2)
        users = users_of("old", folder)
        assert len(users) == 3
        assert main(["toolchain", "remove", "old"]) == 2
        told = capsys.readouterr().err
        assert "chosen with `toolchain use`" in told
        assert f"{project}/pyproject.toml pins it" in told
        assert f"({process.pid}: sleep)" in told
        assert "--force" in told
        assert folder.is_dir()
    finally:
        process.kill()
        process.wait()
    (project / "pyproject.toml").write_text('[tool.rocmbuild]\ntoolchain = "new"\n')
    assert users_of("old", folder) == ("it is the one chosen with `toolchain use`",)
    assert remove_installed("old", force=True) == folder
    assert not folder.exists()
    assert first() == "new"  # the choice went with it
    with pytest.raises(InputError, match=r"installed: new\)"):
        remove_installed("old")


def test_verify_tells_by_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toolchain", "verify"]) == 0
    assert "new: as installed" in capsys.readouterr().out
    (toolchains_dir() / "new/bin/clang++").write_text("neu")
    assert main(["toolchain", "verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"new": ["bin/clang++: contents changed"], "old": []}
    assert main(["toolchain", "verify", "old"]) == 0
    assert main(["toolchain", "verify", "absent"]) == 2


def test_use_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toolchain", "use", "old", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"chosen": "old"}
    assert main(["toolchain", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "old"
    assert main(["toolchain", "use"]) == 2
    assert main(["toolchain", "use", "--unset"]) == 0
    capsys.readouterr()
    assert main(["toolchain", "env", "old", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["set"]["ROCM_PATH"].endswith("/old")
