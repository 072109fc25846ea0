"""A hook that has nothing to do gives the wheel that is there, at once; whatever changed is seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import PROJECTS, ROOT, needs_toolchain, needs_torch_sdk

from rocmbuild import fresh, pipeline
from rocmbuild.config import Config, load_config
from rocmbuild.toolchain.torch_sdk import find_torch_sdk

pytestmark = [needs_toolchain, needs_torch_sdk]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project and its build folder after one build."""
    if find_torch_sdk().origin != "managed":
        pytest.skip("needs the torch SDK of rocmbuild's own store")
    folder = tmp_path_factory.mktemp("fresh")
    shutil.copytree(PROJECTS / "saxpy", folder / "project")
    (folder / "project/csrc/sum.cu").unlink()
    time.sleep(0.05)  # what was written while the build began is not vouched for
    pipeline.build_wheel(configured(folder), folder / "dist", dict(os.environ))
    return folder


def configured(work: Path, **settings: str) -> Config:
    given = {"build-dir": str(work / "build"), "platforms": "host", **settings}
    return load_config(work / "project", settings=given, environ={})


def unchanged(work: Path, out: Path, environ: dict[str, str] | None = None, **settings: str) -> str | None:
    return fresh.unchanged(configured(work, **settings), "build_wheel", out, {**os.environ, **(environ or {})})


def test_the_hook_starts_no_program_and_imports_neither_torch_nor_the_pipeline(work: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "def hook(event, args):\n"
        "    assert not event.startswith(('subprocess', 'os.posix_spawn', 'os.exec', 'os.fork')), (event, args)\n"
        "sys.addaudithook(hook)\n"
        "import rocmbuild.build_meta as b\n"
        f"print(b.build_wheel({str(tmp_path)!r}, {{'build-dir': {str(work / 'build')!r}, 'platforms': 'host'}}))\n"
        "print({'torch', 'rocmbuild.pipeline', 'rocmbuild.audit', 'setuptools'} & set(sys.modules))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=work / "project", capture_output=True, text=True, check=False)
    name, imported = done.stdout.splitlines()
    assert (tmp_path / name).read_bytes() == (work / "dist" / name).read_bytes()
    assert imported == "set()"
    assert "nothing has changed" in done.stderr


def test_another_copy_of_rocmbuild_knows_it_and_an_edited_one_does_not(work: Path, tmp_path: Path) -> None:
    """An isolated build has rocmbuild at another place each time."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rocmbuild", tmp_path / "site/rocmbuild", ignore=ignored, symlinks=True)
    (tmp_path / "site/examples").symlink_to(ROOT / "examples")  # what the link `template` leads to
    settings = {"build-dir": str(work / "build"), "platforms": "host"}
    code = (
        "import os, pathlib, rocmbuild.fresh as f, rocmbuild.config as c; here = pathlib.Path.cwd();"
        f"config = c.load_config(here, settings={settings!r}, environ={{}});"
        f"print(f.__file__, f.unchanged(config, 'build_wheel', pathlib.Path({str(tmp_path)!r}), os.environ))"
    )

    def answer() -> list[str]:
        words, env = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
        return subprocess.run(
            words, cwd=work / "project", env=env, capture_output=True, text=True, check=True
        ).stdout.split()

    file, name = answer()
    assert file == str(tmp_path / "site/rocmbuild/fresh.py")
    assert name.endswith(".whl")
    with (tmp_path / "site/rocmbuild/build/plan.py").open("a") as plan:
        plan.write("# edited")
    assert answer()[1] == "None"


def test_a_new_time_on_the_same_bytes_is_no_change(work: Path, tmp_path: Path) -> None:
    source = work / "project/csrc/saxpy.cu"
    os.utime(source)
    assert unchanged(work, tmp_path)
    source.write_bytes(source.read_bytes())
    assert unchanged(work, tmp_path, {"PIP_SOMETHING": "1", "MAX_JOBS": "1"}, verbose="true")


def same_length_and_times(path: Path) -> None:
    info = path.stat()
    path.write_bytes(path.read_bytes().replace(b"n + 63", b"n + 62"))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda project: same_length_and_times(project / "csrc/saxpy.cu"),
        lambda project: (project / "csrc/scale.cuh").open("a").write("// more"),
        lambda project: (project / "csrc/new.cu").write_text(""),
        lambda project: (project / "saxpy/data.txt").write_text(""),
        lambda project: (project / "saxpy/__init__.py").chmod(0o755),
        lambda project: (project / "saxpy/__init__.py").unlink(),
    ],
)
def test_any_change_of_the_project_is_seen(work: Path, tmp_path: Path, change: Callable[[Path], object]) -> None:
    project = work / "project"
    shutil.copytree(project, tmp_path / "before")
    try:
        change(project)
        assert unchanged(work, tmp_path) is None
    finally:
        shutil.rmtree(project)
        shutil.copytree(tmp_path / "before", project)
    assert unchanged(work, tmp_path), "what was put back is what was built"


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        ({"SOURCE_DATE_EPOCH": "1700000000"}, {}),
        ({"CPATH": "/somewhere"}, {}),
        ({"ROCM_HOME": "/opt/rocm"}, {}),
        ({}, {"debug": "true"}),
        ({}, {"platforms": "rocm,host"}),
        ({}, {"launcher": "ccache"}),
    ],
)
def test_other_variables_and_settings_are_seen(
    work: Path, tmp_path: Path, environ: dict[str, str], settings: dict[str, str]
) -> None:
    assert unchanged(work, tmp_path, environ, **settings) is None
    assert unchanged(work, tmp_path)


def test_another_compiler_on_path_is_seen(work: Path, tmp_path: Path) -> None:
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    assert unchanged(work, tmp_path, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) is None


def test_a_damaged_wheel_and_a_missing_record_are_made_anew(work: Path, tmp_path: Path) -> None:
    (wheel,) = (work / "build/wheel").glob("*.whl")
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-1])
    assert unchanged(work, tmp_path) is None
    wheel.write_bytes(whole)
    record = work / "build/fresh/build_wheel.json"
    text = record.read_text()
    for bad in ("{", "{}", "[]", text.replace(str(shutil.which("g++")), "/nowhere/g++")):
        record.write_text(bad)
        assert unchanged(work, tmp_path) is None
    record.write_text(text)
    assert unchanged(work, tmp_path)
    assert fresh.unchanged(configured(work), "build_editable", tmp_path, os.environ) is None
