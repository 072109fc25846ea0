"""Before any compiler: what the machine lacks, all of it at once, with the next step; exit code 3."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import PROJECTS, needs_toolchain, needs_torch_here, needs_torch_sdk, require

from rocmbuild import console
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.preflight import Preflight, requires_torch
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.torch_sdk import TorchBuild, torch_build


def build(project: Path, out: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rocmbuild", "build", str(project), "-o", str(out)],
        env={**os.environ, "FREETOKEN_ROCM_ARCH": "gfx1201", **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], out: Path) -> str:
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()
    return done.stderr


@pytest.fixture(params=["saxpy", "wrapped_stream"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A declarative project and one with its own setup.py."""
    if request.param == "wrapped_stream":
        request.getfixturevalue("_torch_here")
    return Path(shutil.copytree(PROJECTS / str(request.param), tmp_path / "project"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode != 0:
        require("root, to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.needs_torch
@needs_toolchain
@needs_torch_sdk
def test_every_problem_is_told_once_with_its_step(project: Path, small_disk: Path, tmp_path: Path) -> None:
    """No compiler, a full disk and a toolchain that is none: three problems, one message, nothing compiled."""
    told = refused(
        build(
            project,
            tmp_path / "dist",
            ROCMBUILD_CACHE_DIR=str(small_disk / "cache"),
            CXX="/nonexistent/g++",
            ROCM_HOME=str(tmp_path / "nowhere"),
        ),
        tmp_path / "dist",
    )
    assert "3 problems, found before compiling" in told
    for words in ("no such folder", "CXX=/nonexistent/g++: no such program", "disk space: "):
        assert told.count(words) == 1, told
    assert told.count("next step:") == 3


@pytest.mark.needs_torch
@needs_toolchain
@needs_torch_sdk
def test_a_compiler_that_compiles_nothing_is_found_before_the_build(project: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "g++ (broken) 12.2"; exit; }\n'
        f'echo "$*" >> {tmp_path}/asked\necho "fatal error: algorithm: No such file" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    told = refused(
        build(project, tmp_path / "dist", ROCMBUILD_CACHE_DIR=str(tmp_path / "cache"), CXX=str(compiler)),
        tmp_path / "dist",
    )
    assert "g++ (broken) 12.2" in told
    assert "fatal error: algorithm" in told
    assert "apt-get install g++" in told
    assert len((tmp_path / "asked").read_text().splitlines()) == 1  # the probe itself


@needs_toolchain
@needs_torch_sdk
@needs_torch_here
@pytest.mark.needs_torch
def test_an_interpreter_without_headers_is_told_of(tmp_path: Path) -> None:
    """This very interpreter, its folder of headers covered by an empty one in a mount namespace of the build alone."""
    import sysconfig

    if os.geteuid() != 0 or not shutil.which("unshare"):
        require("root and unshare")
    (tmp_path / "empty").mkdir()
    project = shutil.copytree(PROJECTS / "wrapped_stream", tmp_path / "project")
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    build = [sys.executable, "-m", "rocmbuild", "build", str(project), "-o", str(tmp_path / "dist")]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", tmp_path / "empty", sysconfig.get_paths()["include"], *build],
        env={**os.environ, "FREETOKEN_ROCM_ARCH": "gfx1201", "ROCMBUILD_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    told = refused(done, tmp_path / "dist")
    assert "Python.h" in told
    assert f"python{sys.version_info.major}.{sys.version_info.minor}-dev" in told


def test_one_problem_is_itself_and_each_is_told_once() -> None:
    checks = Preflight()
    checks.finish()
    checks.add("no disk", "buy one")
    checks.add("no disk", "buy one")
    with pytest.raises(EnvironmentFailure) as caught:
        checks.finish()
    assert (caught.value.message, caught.value.hint) == ("no disk", "buy one")
    assert checks.take(lambda: 3) == 3


@pytest.mark.parametrize(
    ("build", "linked", "required", "problem", "warning"),
    [
        (TorchBuild(version="2.9.0+rocm6.4", cuda="", hip="6.4.1"), True, True, "HIP 6.4.1, the toolchain", ""),
        (TorchBuild(version="2.9.0+rocm6.4", cuda="", hip="6.4.1"), False, False, "", ""),
        (TorchBuild(version="2.12+rocm7.1", cuda="", hip="7.1.0"), True, True, "", 'toolchain = "~=7.1"'),
        (TorchBuild(version="2.13.0", cuda="13.0", hip=""), True, True, "", "build for CUDA 13.0"),
        (TorchBuild(version="2.13.0", cuda="13.0", hip=""), False, True, "", 'take "torch" out of requires'),
        (TorchBuild(version="2.13.0", cuda="13.0", hip=""), False, False, "", ""),
        (TorchBuild(version="2.13.0+cpu", cuda="", hip=""), True, True, "", ""),
        (None, True, True, "", ""),
    ],
)
def test_the_torch_of_the_environment_against_the_toolchain(
    build: TorchBuild | None,
    linked: bool,
    required: bool,
    problem: str,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(console, "warn", told.append)
    toolchain = Toolchain(
        **dict.fromkeys(("clang", "bundler", "readelf", "objdump", "include", "device_libs"), tmp_path),  # type: ignore[arg-type]
        **{"name": "t", "kind": "rocm", "origin": "here", "prefix": tmp_path, "digest": ""},  # type: ignore[arg-type]
        hip_version="7.2.53211",
        clang_version="22.1.8",
    )
    checks = Preflight()
    checks.torch(build, toolchain, linked=linked, required=required)
    assert [problem in p.message for p in checks.problems] == [True] * bool(problem)
    assert [warning in text for text in told] == [True] * bool(warning)


def test_the_torch_of_a_folder_is_read_and_not_imported(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("__version__ = '2.13.0'\ncuda: str | None = '13.0'\nhip = None\n")
    assert torch_build([str(tmp_path)]) == TorchBuild(version="2.13.0", cuda="13.0", hip="")
    assert torch_build([str(tmp_path / "none")]) is None


@pytest.mark.parametrize(
    ("requires", "found"),
    [('["rocmbuild", "torch>=2.10"]', True), ('["rocmbuild", "torch-scatter"]', False), ("3", False), ("[]", False)],
)
def test_whether_a_project_asks_for_torch(tmp_path: Path, requires: str, found: bool) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[build-system]\nrequires = {requires}\n")
    assert requires_torch(tmp_path) is found
    assert not requires_torch(tmp_path / "none")
