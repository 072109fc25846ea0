"""The examples are built as their READMEs say, by the real tools; `rocmbuild init` makes the first of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support import needs_toolchain, needs_torch_here, needs_torch_sdk, require

from rocmbuild.cli import main
from rocmbuild.errors import InputError
from rocmbuild.init import create, project_name, template

EXAMPLES = Path(__file__).parent.parent / "examples"
PROJECTS = ("cmake", "declarative", "from_cuda", "setup_py")


def test_each_example_has_a_short_readme() -> None:
    assert sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] not in "._") == list(
        PROJECTS
    )
    for name in PROJECTS:
        assert 5 <= len((EXAMPLES / name / "README.md").read_text().splitlines()) <= 14, name


# rocmbuild init


def test_a_new_project_is_the_example_under_another_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = template("my_kernels")
    assert {"pyproject.toml", "csrc/scale.cu", "my_kernels/__init__.py", "tests/test_my_kernels.py"} <= set(same)
    for path, text in same.items():
        assert (EXAMPLES / "declarative" / path).read_text() == text
    assert main(["init", str(tmp_path / "Fast-Ops")]) == 0
    assert "fast_ops/__init__.py" in capsys.readouterr().out.split()
    made = {path.relative_to(tmp_path / "Fast-Ops").as_posix() for path in (tmp_path / "Fast-Ops").rglob("*.*")}
    assert made == set(template("fast_ops"))
    assert "my_kernels" not in "".join(template("fast_ops").values())
    assert main(["build", str(tmp_path / "Fast-Ops"), "--explain", "--json"]) == 0


def test_what_is_there_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "pyproject.toml").write_text("mine")
    assert main(["init", str(tmp_path), "--name", "a", "--json"]) == 2
    assert "pyproject.toml is there already" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "pyproject.toml"]
    (tmp_path / "pyproject.toml").unlink()
    assert main(["init", str(tmp_path), "--name", "a"]) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(InputError, match="is no folder"):
        create(tmp_path / "notes.txt", "a")


@pytest.mark.parametrize("name", ["1a", "a-b", "class", "torch", "", "ä"])
def test_a_name_that_is_no_package_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="wanted the name of a new Python package"):
        project_name(tmp_path, name)


# The builds


def run(*words: str | Path, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


def build(folder: Path, project: Path) -> dict[str, Any]:
    words = [
        sys.executable,
        "-m",
        "rocmbuild",
        "build",
        project,
        "--targets",
        "gfx1201",
        "-o",
        folder / "dist",
        "--json",
    ]
    result: dict[str, Any] = json.loads(run(*words, cwd=folder, MAX_JOBS="2"))
    assert result["audit"]["compiled"]["targets"] == result["audit"]["emitted"]["targets"] == ["gfx1201"]
    return result


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@needs_torch_here
@pytest.mark.usefixtures("warm_cache")
def test_declarative_as_init_makes_it(tmp_path: Path) -> None:
    """Made, built from its sdist, installed, and its own tests run."""
    assert main(["init", str(tmp_path / "fresh_ops")]) == 0
    settings = f"{{'build-dir': {str(tmp_path / 'b')!r}}}"
    code = f"import rocmbuild.build_meta as b; print(b.build_sdist({str(tmp_path)!r}, {settings}))"
    name = run(sys.executable, "-c", code, cwd=tmp_path / "fresh_ops").strip()
    shutil.unpack_archive(tmp_path / name, tmp_path / "unpacked")
    result = build(tmp_path, tmp_path / "unpacked" / name.removesuffix(".tar.gz"))
    assert "-py3-none-manylinux_2_" in result["wheel"]
    with zipfile.ZipFile(result["wheel"]) as wheel:
        wheel.extractall(tmp_path / "site")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "fresh_ops/tests"]
    out = run(*words, cwd=tmp_path / "site")
    assert " passed" in out


@pytest.mark.slow
@needs_torch_sdk
@needs_torch_here
@pytest.mark.usefixtures("math", "warm_cache")
@pytest.mark.parametrize("name", ["setup_py", "from_cuda"])
def test_projects_with_a_setup_py(tmp_path: Path, name: str) -> None:
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    result = build(tmp_path, tmp_path / name)
    with zipfile.ZipFile(result["wheel"]) as wheel:
        (library,) = [member for member in wheel.namelist() if member.endswith(".so")]
    assert Path(library).name.startswith("_C")


@pytest.mark.slow
@needs_toolchain
def test_cmake_through_scikit_build_core(tmp_path: Path) -> None:
    """An unchanged CMake project with the HIP language: its own front end, its own flags, our compilers and audit."""
    if not shutil.which("cmake"):
        require("cmake")
    shutil.copytree(EXAMPLES / "cmake", tmp_path / "cmake")
    words = [sys.executable, "-m", "rocmbuild", "run", "--targets", "gfx1201", "--json", "--audit", "dist/*.whl", "--"]
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", "dist", "."]
    audit = json.loads(run(*words, *pip, cwd=tmp_path / "cmake"))["audit"]
    assert audit["compiled"]["targets"] == audit["emitted"]["targets"] == ["gfx1201"]
    assert audit["compiled"]["device_commands"] == 2
