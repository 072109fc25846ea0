"""`rocmbuild build --explain` and `rocmbuild matrix`: what settings are and where they come from, as text and JSON."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from support import PROJECTS

from rocmbuild.cli import main
from rocmbuild.config import OPTIONS, load_config
from rocmbuild.explain import explain
from rocmbuild.matrix import make_matrix
from rocmbuild.targets import DECLARED, TargetSet


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    return tmp_path / "p"


def test_every_option_is_there_with_value_source_and_what_it_overrides(project: Path) -> None:
    settings = {"targets": "gfx1100", "launcher": "sccache", "debug": "true"}
    environ = {
        "FREETOKEN_ROCM_ARCH": "rdna4",
        "PYTORCH_ROCM_ARCH": "gfx90a",
        "MAX_JOBS": "3",
        "ROCMBUILD_LAUNCHER": "ccache",
    }
    config = load_config(project, settings=settings, environ=environ)
    found = {setting.name: setting for setting in explain(config)}
    assert list(found) == [option.name for option in OPTIONS]
    targets = found["targets"]
    assert (targets.value, targets.text, targets.source) == (["gfx1100"], "gfx1100", "-C targets")
    assert [(lost.at, lost.value) for lost in targets.overrides] == [
        ("FREETOKEN_ROCM_ARCH", '"rdna4"'),
        ("tool.rocmbuild.targets", '["gfx1201"]'),
        ("PYTORCH_ROCM_ARCH", '"gfx90a"'),
    ]
    assert (found["jobs"].value, found["jobs"].source) == (3, "MAX_JOBS")
    assert (found["launcher"].value, found["launcher"].source) == ("sccache", "-C launcher")
    assert [(lost.at, lost.value) for lost in found["launcher"].overrides] == [("ROCMBUILD_LAUNCHER", '"ccache"')]
    assert (found["platforms"].text, found["platforms"].source) == ("rocm host", "pyproject.toml")
    assert (found["toolchain"].value, found["toolchain"].text) == (None, "the first good one")
    assert found["extensions"].value[0]["defines"] == [["SAXPY_SCALE", "2"]]
    json.dumps([setting.to_json() for setting in found.values()])


def test_the_command_tells_it_and_builds_nothing(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FREETOKEN_ROCM_ARCH", "gfx1200")
    monkeypatch.chdir(tmp_path)
    words = ["build", str(project), "--explain", "-C", f"build-dir={tmp_path / 'b'}"]
    assert main(words) == 0
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.startswith("targets ")]
    assert line.split() == ["targets", "gfx1200", "FREETOKEN_ROCM_ARCH", "tool.rocmbuild.targets", "=", '["gfx1201"]']
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"][0]["overrides"] == [{"at": "tool.rocmbuild.targets", "value": '["gfx1201"]'}]
    assert told["found"]["jobs"]["value"] >= 1
    assert "processors" in told["found"]["jobs"]["because"]
    assert main([*words, "-C", "jobs=7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"]["jobs"] == {"value": 7, "because": "-C jobs"}
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "dist").exists()


def test_a_matrix_is_every_target_with_every_torch_and_toolchain(project: Path) -> None:
    targets = TargetSet(names=("gfx1100", "gfx1201"), source="test")
    config = load_config(project, environ={})
    assert make_matrix(config, targets)["include"] == [
        {"name": name, "target": name, "torch": "", "toolchain": "", "settings": f"-C targets={name}"}
        for name in targets.names
    ]
    jobs = make_matrix(config, targets, torch=("2.10.0", ">=2.13"), toolchains=("a", "b"))["include"]
    assert len(jobs) == 8
    assert jobs[2]["settings"] == "-C targets=gfx1100 -C 'torch-sdk=>=2.13' -C toolchain=a"
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text + '\n[tool.rocmbuild.matrix]\ntorch = ["2.10.0", "2.13.0"]\n')
    config = load_config(project, environ={}, settings={"toolchain": ">=7"})
    jobs = make_matrix(config, targets)["include"]
    assert [(job["target"], job["torch"], job["toolchain"]) for job in jobs] == [
        ("gfx1100", "2.10.0", ">=7"),
        ("gfx1100", "2.13.0", ">=7"),
        ("gfx1201", "2.10.0", ">=7"),
        ("gfx1201", "2.13.0", ">=7"),
    ]


def test_each_job_of_the_command_is_a_configuration_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", str(project), "--targets", "rdna4", "--torch", ">=2.10"]) == 0
    jobs = json.loads(capsys.readouterr().out)["include"]
    assert [job["target"] for job in jobs] == ["gfx1200", "gfx1201"]
    for job in jobs:
        assert main(["build", str(project), "--explain", "--json", *shlex.split(job["settings"])]) == 0
        told = {setting["name"]: setting for setting in json.loads(capsys.readouterr().out)["settings"]}
        assert told["targets"]["value"] == [job["target"]]
        assert told["torch-sdk"]["value"] == ">=2.10"


def test_nox_knows_every_target(root: Path) -> None:
    assert re.findall(r'"(gfx\w+)"', (root / "noxfile.py").read_text()) == list(DECLARED)


def test_a_matrix_without_targets_says_what_to_set(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "pyproject.toml"
    path.write_text(path.read_text().replace('targets = ["gfx1201"]\n', ""))
    assert main(["matrix", str(project)]) == 2
    assert "FREETOKEN_ROCM_ARCH" in capsys.readouterr().err
