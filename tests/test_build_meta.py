"""The hooks as front ends call them: by pip and build, from an sdist, editable; errors without a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support import CHECK_SAXPY, PROJECTS, ROOT, needs_toolchain, needs_torch_sdk


def hook(project: Path, call: str, **environ: str) -> subprocess.CompletedProcess[str]:
    code = f"import rocmbuild.build_meta as b; print({call})"
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=env, capture_output=True, text=True, check=False
    )


def test_importing_the_backend_imports_little() -> None:
    code = "import sys, rocmbuild.build_meta; print(sorted(m for m in sys.modules if m.startswith('rocmbuild')))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "rocmbuild.build.tools" in out
    for heavy in ("pipeline", "config", "toolchain", "staging", "audit"):
        assert f"rocmbuild.{heavy}" not in out
    code = "import sys, rocmbuild.pipeline; print({'torch', 'rich', 'elftools', 'zstandard'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "set()"
    )


def test_requires_ninja_only_where_none_is(tmp_path: Path) -> None:
    code = "import rocmbuild.build_meta as b; print(b.get_requires_for_build_wheel(), b.get_requires_for_build_sdist())"
    env = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    base = os.path.realpath(sys.executable)
    bare = subprocess.run([base, "-S", "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert bare.strip() == "['ninja'] []"
    (tmp_path / "ninja").write_text("#!/bin/sh\n")
    (tmp_path / "ninja").chmod(0o755)
    there = subprocess.run([base, "-S", "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert there.strip() == "[] []"


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        ({"FREETOKEN_ROCM_ARCH": "gfx90a"}, 2, "gfx90a"),
        ({"FREETOKEN_ROCM_ARCH": "gfx1201", "HCC_AMDGPU_TARGET": "gfx906"}, 2, "HCC_AMDGPU_TARGET"),
    ],
)
def test_an_error_is_a_message_and_an_exit_code(
    tmp_path: Path, environ: dict[str, str], status: int, words: str
) -> None:
    done = hook(
        PROJECTS / "saxpy", f"b.build_wheel({str(tmp_path)!r}, {{'build-dir': {str(tmp_path / 'b')!r}}})", **environ
    )
    assert done.returncode == status
    assert words in done.stderr
    assert "rocmbuild: error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_metadata_without_a_build(tmp_path: Path) -> None:
    project = tmp_path / "p"
    shutil.copytree(PROJECTS / "saxpy", project)
    done = hook(
        project,
        f"b.prepare_metadata_for_build_wheel({str(tmp_path / 'm')!r}, {{'build-dir': {str(tmp_path / 'b')!r}}})",
    )
    assert done.stdout.strip() == "saxpy-1.0.dist-info", done.stderr
    assert "Name: saxpy" in (tmp_path / "m/saxpy-1.0.dist-info/METADATA").read_text()


def test_the_sdist_holds_what_the_build_reads(tmp_path: Path) -> None:
    project = tmp_path / "p"
    shutil.copytree(PROJECTS / "saxpy", project)
    done = hook(project, f"b.build_sdist({str(tmp_path / 'd')!r}, {{'build-dir': {str(tmp_path / 'b')!r}}})")
    assert done.stdout.strip() == "saxpy-1.0.tar.gz", done.stderr
    with tarfile.open(tmp_path / "d/saxpy-1.0.tar.gz") as file:
        names = file.getnames()
    for name in ("csrc/saxpy.cu", "csrc/sum.cu", "csrc/scale.cuh", "pyproject.toml", "saxpy/__init__.py"):
        assert f"saxpy-1.0/{name}" in names
    assert sorted(path.name for path in project.iterdir()) == ["csrc", "pyproject.toml", "saxpy"]


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
def test_pip_builds_installs_and_runs_it_in_a_new_environment(tmp_path: Path) -> None:
    """pip wheel with isolation off, from an sdist, as users call it; then editable; both compute."""
    project = tmp_path / "p"
    shutil.copytree(PROJECTS / "saxpy", project)
    env = {**os.environ, "FREETOKEN_ROCM_ARCH": "gfx1100", "ROCMBUILD_CACHE_DIR": str(tmp_path / "cache")}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)

    def computes() -> None:
        out = subprocess.run([venv / "bin/python", "-c", CHECK_SAXPY], capture_output=True, text=True, check=False)
        assert out.stdout.strip() == "12.0", out.stderr

    subprocess.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path / "w"), str(project)],
        env=env,
        check=True,
    )
    wheel = next((tmp_path / "w").glob("*.whl"))
    install = [*pip[:3], "--python", str(venv / "bin/python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    computes()
    subprocess.run([*pip[:3], "--python", str(venv / "bin/python"), "uninstall", "-y", "saxpy"], check=True)
    subprocess.run(
        [sys.executable, "-c", f"import rocmbuild.build_meta as b; b.build_editable({str(tmp_path / 'e')!r})"],
        cwd=project,
        env=env,
        check=True,
    )
    subprocess.run([*install, str(next((tmp_path / "e").glob("*.whl")))], check=True)
    computes()
    (project / "saxpy/__init__.py").write_text("edited = True\n")
    out = subprocess.run(
        [venv / "bin/python", "-c", "import saxpy; print(saxpy.edited)"], capture_output=True, text=True, check=False
    )
    assert out.stdout.strip() == "True", out.stderr
