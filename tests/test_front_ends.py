"""pip, build and uv call the hooks as they do, with isolation and without, from a folder of wheels and no index."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import PROJECTS, ROOT, needs_toolchain, needs_torch_sdk, require

from rocmbuild.init import template

pytestmark = [pytest.mark.slow, needs_toolchain, needs_torch_sdk]


def run(*words: str | Path, **environ: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environ
    done = subprocess.run([str(word) for word in words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rocmbuild's own wheel, built from a copy of it, and all that an isolated build installs; torch is not there."""
    folder = tmp_path_factory.mktemp("links")
    copy = folder / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("rocmbuild", "examples/declarative"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder / "wheels", copy)
    (wheel,) = (folder / "wheels").glob("rocmbuild-*.whl")
    run(*pip, "download", "-q", "--only-binary=:all:", "-d", folder / "wheels", wheel, "ninja", "wheel")
    return folder / "wheels"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample project, and a build folder that all front ends share: what differs is how they call."""
    folder = tmp_path_factory.mktemp("front-ends")
    shutil.copytree(PROJECTS / "saxpy", folder / "saxpy")
    return folder


def program(name: str) -> Path:
    path = Path(sys.executable).parent / name
    return path if path.exists() else Path(shutil.which(name) or require(name))


def commands(front: str, isolated: bool, project: Path, out: Path, build: Path) -> list[str | Path]:
    settings = ["platforms=host", f"build-dir={build}"]
    if front == "pip":
        words: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", out, project]
        given = [word for setting in settings for word in ("--config-settings", setting)]
        return [*words, *given, *([] if isolated else ["--no-build-isolation"])]
    if front == "build":
        words = [sys.executable, "-m", "build", "--outdir", out, project, *(f"-C{setting}" for setting in settings)]
        return [*words, *([] if isolated else ["--no-isolation"])]
    given = [word for setting in settings for word in ("-C", setting)]
    words = [program("uv"), "build", "--no-cache", "--out-dir", out, "--python", sys.executable, *given, project]
    return [*words, *([] if isolated else ["--no-build-isolation"])]


def test_rocmbuilds_own_wheel_holds_what_init_writes_and_the_schema(links: Path) -> None:
    (wheel,) = links.glob("rocmbuild-*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert {f"rocmbuild/template/{path}" for path in template("my_kernels")} <= names
    assert {"rocmbuild/schema.json", "rocmbuild/build/include/rocmbuild/bundle.h", "rocmbuild/build/finder.py"} <= names


wheels: dict[str, str] = {}


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
@pytest.mark.parametrize("front", ["pip", "build", "uv"])
def test_a_wheel_is_the_same_whoever_asks_for_it(
    front: str, isolated: bool, links: Path, work: Path, tmp_path: Path
) -> None:
    """`build` and `uv` make the sdist first and the wheel from that; the sdist's folder is another one each time."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "UV_FIND_LINKS": str(links), "UV_NO_INDEX": "1"}
    offline |= {"UV_OFFLINE": "1", "FREETOKEN_ROCM_ARCH": "gfx1201"}
    if isolated:  # without this environment's programs, so that ninja is asked for and comes from the folder
        offline["PATH"] = "/usr/bin:/bin"
    run(*commands(front, isolated, work / "saxpy", tmp_path, work / "b"), **offline)
    (wheel,) = tmp_path.glob("saxpy-1.0-py3-none-*.whl")
    wheels[f"{front} {isolated}"] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert len(set(wheels.values())) == 1, wheels
    if front != "pip":
        assert (tmp_path / "saxpy-1.0.tar.gz").is_file()
    assert sorted(path.name for path in (work / "saxpy").iterdir()) == ["csrc", "pyproject.toml", "saxpy"]


def test_uv_installs_it_editable_in_isolation(links: Path, work: Path, tmp_path: Path) -> None:
    uv, python = program("uv"), tmp_path / "venv/bin/python"
    offline = {"UV_FIND_LINKS": str(links), "UV_NO_INDEX": "1", "UV_OFFLINE": "1", "FREETOKEN_ROCM_ARCH": "gfx1201"}
    run(uv, "venv", "-q", "--no-cache", "--python", sys.executable, tmp_path / "venv", **offline)
    settings = ["-C", "platforms=host", "-C", f"build-dir={work / 'b'}"]
    run(uv, "pip", "install", "--no-cache", "--python", python, *settings, "-e", work / "saxpy", **offline)
    out = run(python, "-c", "import saxpy, saxpy.lib._rocmbuild_loader as l; print(saxpy.__file__, l.__file__)")
    assert str(work / "saxpy/saxpy/__init__.py") in out
    assert str(work / "b/lib/saxpy/lib/_rocmbuild_loader.py") in out
