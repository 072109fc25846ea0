"""The command line as a person meets it: results on standard output, one message on standard error, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import PROJECTS, needs_toolchain, needs_torch_sdk

from rocmbuild.cli import main


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ}
    return subprocess.run(
        [sys.executable, "-m", "rocmbuild", *words], env=env, capture_output=True, text=True, check=False
    )


def test_the_command_and_the_module_are_the_same() -> None:
    script = Path(sys.executable).parent / "rocmbuild"
    by_script = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert by_script == run("--version").stdout
    assert by_script.startswith("rocmbuild ")


def test_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "rdna4; gfx1100"]) == 0
    assert capsys.readouterr().out == "gfx1200;gfx1201;gfx1100\n"
    assert main(["targets", "gfx11", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"][0] == "gfx1100"
    assert main(["targets"]) == 0
    assert "rdna3.5" in capsys.readouterr().out
    assert main(["targets", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["declared"]) == 10


def test_bad_input_is_one_message_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "gfx90a", "--json"]) == 2
    captured = capsys.readouterr()
    assert "wave64" in captured.err
    assert json.loads(captured.out)["exit"] == 2


@pytest.mark.parametrize("words", [(), ("nonsense",), ("build", "-C"), ("toolchain",)])
def test_wrong_usage_is_code_2(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "usage: rocmbuild" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_a_project_is_named(tmp_path: Path) -> None:
    done = run("build", str(tmp_path / "absent"))
    assert done.returncode == 2
    assert "absent: not a folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_toolchain_the_searched_places_and_the_next_step_are_told(tmp_path: Path) -> None:
    places = {"ROCMBUILD_DATA_DIR": str(tmp_path / "data"), "ROCMBUILD_CACHE_DIR": str(tmp_path / "cache")}
    done = run("build", str(PROJECTS / "saxpy"), "-o", str(tmp_path / "dist"), "-C", "toolchain=absent-one", **places)
    assert done.returncode == 3
    assert "absent-one" in done.stderr
    assert "rocmbuild toolchain" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "dist").exists()


@needs_toolchain
def test_toolchain_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toolchain", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(candidate["chosen"] for candidate in found) == 1
    assert main(["toolchain", "list"]) == 0
    assert "* " in capsys.readouterr().out


@needs_toolchain
@needs_torch_sdk
def test_stage_build_audit(tmp_path: Path) -> None:
    """The three commands over one project; what the build says is what the audit says of the wheel."""
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    settings = ("-C", f"build-dir={tmp_path / 'b'}")
    staged = run("stage", str(tmp_path / "p"), "--json", *settings)
    assert staged.returncode == 0, staged.stderr
    assert json.loads(staged.stdout)["launches_replaced"] == 2
    words = ("--platforms", "rocm", "-o", str(tmp_path / "dist"), *settings)
    built = run("build", str(tmp_path / "p"), "--json", *words, FREETOKEN_ROCM_ARCH="gfx1100")
    assert built.returncode == 0, built.stderr
    result = json.loads(built.stdout)
    audited = run("audit", result["wheel"], "--json")
    assert audited.returncode == 0
    assert json.loads(audited.stdout)["requested"]["targets"] == ["gfx1100"]
    both = run("audit", result["record"], result["wheel"])
    assert both.returncode == 0, both.stdout
    assert "compiled   gfx1100" in both.stdout
    other = run("audit", result["wheel"], "--targets", "gfx1100,gfx1201")
    assert other.returncode == 1
    assert "gfx1201" in other.stdout
