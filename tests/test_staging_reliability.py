"""Staging where machines are odd: clocks that jump, thousands of files, file systems without hard links, links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import ROOT, digest_tree, needs_torch_sdk, read_only

from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.staging.stage import Stage, make_stage, sync
from rocmbuild.toolchain.torch_sdk import find_torch_sdk

pytestmark = needs_torch_sdk
YEAR = 365 * 86400


@dataclass(frozen=True)
class Sdk:
    version: str
    hipify: Path


def stage_of(project: Path, cache: Path, sdk: Sdk | None = None) -> Stage:
    if sdk is None:
        found = find_torch_sdk()
        sdk = Sdk(found.version, found.hipify)
    return make_stage(
        project, globs=["csrc/**/*.cu"], include_dirs=["csrc"], engine=sdk, hip_version="7.2.4", cache=cache
    )


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The kernels' own sources, which staging must not change by a byte, a mode or a name."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "kernels" / "csrc", folder / "csrc")
    before = digest_tree(folder)
    yield folder
    assert digest_tree(folder) == before


# -------------------------------------------------------------------------------------------- clocks


def test_an_edit_that_changes_neither_size_nor_time_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "p" / "csrc" / "a.cu"
    source.parent.mkdir(parents=True)
    source.write_text("int a;\n")
    times = (source.stat().st_atime_ns, source.stat().st_mtime_ns)
    first = stage_of(tmp_path / "p", tmp_path / "cache")
    sync(first, tmp_path / "build")
    source.write_text("int b;\n")
    os.utime(source, ns=times)
    second = stage_of(tmp_path / "p", tmp_path / "cache")
    assert second.key != first.key
    assert sync(second, tmp_path / "build").written == 1
    assert (tmp_path / "build/csrc/a.hip").read_text().endswith("int b;\n")


@pytest.mark.parametrize("jump", [10 * YEAR, -10 * YEAR, -60 * YEAR])
def test_times_of_any_year_change_nothing(project: Path, tmp_path: Path, jump: int) -> None:
    first = stage_of(project, tmp_path / "cache")
    for folder in (project, tmp_path / "cache"):
        for path in [folder, *folder.rglob("*")]:
            os.utime(path, (time.time() + jump,) * 2)
    second = stage_of(project, tmp_path / "cache")
    assert (second.key, second.fresh) == (first.key, ())
    assert stage_of(project, tmp_path / "other").entry.read_bytes() == first.entry.read_bytes()


def test_a_build_folder_gets_no_times_ahead_of_the_clock(project: Path, tmp_path: Path) -> None:
    stage = stage_of(project, tmp_path / "cache")
    sync(stage, tmp_path / "build")
    kept, ahead = tmp_path / "build/csrc/api.h", tmp_path / "build/csrc/launch/ops.hip"
    os.utime(kept, (time.time() - YEAR,) * 2)
    os.utime(ahead, (time.time() + YEAR,) * 2)
    counts = sync(stage, tmp_path / "build")
    assert (counts.written, counts.removed) == (0, 0)
    assert kept.stat().st_mtime < time.time() - YEAR / 2
    assert ahead.stat().st_mtime < time.time() + 60


@pytest.mark.slow
def test_an_edit_is_built_though_the_clock_was_set_back_since_the_last_build(tmp_path: Path) -> None:
    from rocmbuild.config import load_config
    from rocmbuild.pipeline import build_wheel

    shutil.copytree(ROOT / "tests/projects/saxpy", tmp_path / "p")
    config = load_config(
        tmp_path / "p", settings={"platforms": "host", "build-dir": str(tmp_path / "build")}, environ={}
    )

    def library() -> bytes:
        with zipfile.ZipFile(build_wheel(config, tmp_path / "dist", dict(os.environ)).path) as wheel:
            return wheel.read("saxpy/lib/saxpy_host.so")

    first = library()
    for path in (tmp_path / "build").rglob("*"):
        if not path.is_symlink():
            os.utime(path, (time.time() + YEAR,) * 2)
    with (tmp_path / "p/csrc/sum.cu").open("a") as source:
        source.write('\nextern "C" __attribute__((visibility("default"))) int added() { return 77; }\n')
    second = library()
    assert second != first
    assert b"added" in second
    assert build_wheel(config, tmp_path / "dist", dict(os.environ)).ran == 0


# ------------------------------------------------------------------------------------------- numbers


@pytest.mark.slow
def test_5000_files(tmp_path: Path) -> None:
    project = tmp_path / "p"
    for number in range(1000):
        folder = project / "csrc" / f"m{number // 50}" / f"n{number}"
        folder.mkdir(parents=True)
        (folder / "k.cu").write_text(f'#include "k.cuh"\nvoid f{number}(int* p) {{ k<<<1, 32>>>(p); cudaFree(p); }}\n')
        for name in ("k.cuh", "a.h", "b.hpp", "c.inl"):
            (folder / name).write_text(f"#pragma once\n// {number} {name}\n")
    before = digest_tree(project)
    start = time.perf_counter()
    stage = stage_of(project, tmp_path / "cache")
    cold = time.perf_counter() - start
    assert len(stage.files) == 5000
    assert sum(file.launches for file in stage.files) == 1000
    start = time.perf_counter()
    assert stage_of(project, tmp_path / "cache").fresh == ()
    assert time.perf_counter() - start < cold
    (project / "csrc/m3/n170/a.h").write_text("int edited;\n")
    assert stage_of(project, tmp_path / "cache").fresh == ("csrc/m3/n170/a.h",)
    (project / "csrc/m3/n170/a.h").write_text("#pragma once\n// 170 a.h\n")
    assert digest_tree(project) == before
    assert sync(stage, tmp_path / "build").written == 5000
    assert sync(stage, tmp_path / "build").kept == 5000


# ---------------------------------------------------------------------------------------- hard links

REFUSE_LINKS = """
import ctypes, os, struct, sys
# seccomp: link and linkat end with EPERM, as they do on FAT and on many network file systems
program = [(0x20, 0, 0, 0), (0x15, 2, 0, 86), (0x15, 1, 0, 265), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
code = b"".join(struct.pack("=HBBI", *step) for step in program)
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(program), ctypes.addressof(buffer))), 0, 0) == 0, ctypes.get_errno()
project, cache, hipify, version, build = sys.argv[1:]
try:
    os.link(project + "/csrc/api.h", cache + "-link")
    sys.exit("a hard link was made")
except PermissionError:
    pass
from pathlib import Path
from types import SimpleNamespace
from rocmbuild.staging.stage import make_stage, sync
from rocmbuild.staging.upkeep import clear
sdk = SimpleNamespace(version=version, hipify=Path(hipify))
for fresh in (True, False):
    stage = make_stage(Path(project), globs=["csrc/**/*.cu"], include_dirs=["csrc"], engine=sdk, hip_version="7",
                       cache=Path(cache) / "stages")
    assert bool(stage.fresh) == fresh
sync(stage, Path(build))
clear(Path(cache))
print("good")
"""


def test_a_file_system_without_hard_links(project: Path, tmp_path: Path) -> None:
    found = find_torch_sdk()
    ran = subprocess.run(
        [sys.executable, "-c", REFUSE_LINKS, project, tmp_path / "cache", found.hipify, found.version, tmp_path / "b"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("good\n", 0), ran.stderr


# --------------------------------------------------------------------------------------------- links


def test_links_in_the_tree_are_staged_and_links_out_of_it_refused_by_name(project: Path, tmp_path: Path) -> None:
    before = digest_tree(project)
    (project / "csrc" / "linked.cu").symlink_to("launch/quantize.cu")
    (project / "csrc" / "folder").symlink_to("device")
    stage = stage_of(project, tmp_path / "cache")
    assert stage.tree("hip")["csrc/linked.hip"] == stage.tree("hip")["csrc/launch/quantize.hip"]
    assert "csrc/folder/platform.cuh" in stage.tree("hip")
    sync(stage, tmp_path / "build")
    assert not any(path.is_symlink() for path in (tmp_path / "build").rglob("*"))
    (tmp_path / "secret.cuh").write_text("int secret;\n")
    (project / "csrc" / "out.cuh").symlink_to(tmp_path / "secret.cuh")
    for _ in range(2):
        with pytest.raises(InputError, match=r"'csrc/out\.cuh' is a link out of the project, to .*secret\.cuh"):
            stage_of(project, tmp_path / "cache")
    for name in ("out.cuh", "linked.cu", "folder"):
        (project / "csrc" / name).unlink()
    assert digest_tree(project) == before


def test_a_tree_reached_through_links_and_one_under_a_read_only_mount(project: Path, tmp_path: Path) -> None:
    first = stage_of(project, tmp_path / "cache")
    (tmp_path / "way").symlink_to(project)
    assert stage_of(tmp_path / "way", tmp_path / "cache").fresh == ()
    with read_only(project):
        assert stage_of(project, tmp_path / "fresh").entry.read_bytes() == first.entry.read_bytes()


def test_another_user_finds_what_is_in_a_cache_and_is_told_that_it_cannot_write_there(project: Path) -> None:
    """Not as root: permissions count, and the case is shown to be one first."""
    was = os.geteuid()
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        tree, cache = Path(place) / "p", Path(place) / "cache"
        shutil.copytree(project, tree)
        shutil.copytree(find_torch_sdk().hipify, Path(place) / "hipify")
        sdk = Sdk(find_torch_sdk().version, Path(place) / "hipify")
        first = stage_of(tree, cache, sdk)
        cache.chmod(0o555)
        if was == 0:
            os.seteuid(65534)
        try:
            for folder in (tree, cache):
                with pytest.raises(PermissionError):
                    (folder / "written").touch()
            assert stage_of(tree, cache, sdk).key == first.key
            with pytest.raises(EnvironmentFailure, match=r"cannot be written: .*Permission denied") as caught:
                stage_of(tree, cache, Sdk("2.99", sdk.hipify))
            assert "ROCMBUILD_CACHE_DIR" in caught.value.hint
        finally:
            os.seteuid(was)
            cache.chmod(0o755)
