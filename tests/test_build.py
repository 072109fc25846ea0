"""The main job on a small project, with the real toolchain: from CUDA sources to a wheel that runs."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import PROJECTS, digest_tree, needs_toolchain, needs_torch_sdk, read_only

from rocmbuild import pipeline
from rocmbuild.config import Config, load_config
from rocmbuild.errors import CheckError, InputError

pytestmark = [needs_toolchain, needs_torch_sdk]


def configured(project: Path, build_dir: Path, **settings: str) -> Config:
    given = {"build-dir": str(build_dir), **{key.replace("_", "-"): value for key, value in settings.items()}}
    return load_config(project, settings=given, environ={})


def build(project: Path, build_dir: Path, out: Path, **settings: str) -> pipeline.Built:
    return pipeline.build_wheel(configured(project, build_dir, **settings), out, dict(os.environ))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A build of the sample project, made once: project, build folder, wheel."""
    folder = tmp_path_factory.mktemp("saxpy")
    shutil.copytree(PROJECTS / "saxpy", folder / "project")
    before = digest_tree(folder / "project")
    build(folder / "project", folder / "build", folder / "dist")
    assert digest_tree(folder / "project") == before, "the checkout was written to"
    yield folder


def wheel_of(work: Path) -> Path:
    return next((work / "dist").glob("*.whl"))


def test_the_wheel_holds_both_libraries_the_loader_and_the_evidence(work: Path) -> None:
    assert re.fullmatch(r"saxpy-1\.0-py3-none-manylinux_2_\d+_x86_64\.whl", wheel_of(work).name)
    with zipfile.ZipFile(wheel_of(work)) as file:
        names = set(file.namelist())
        evidence = json.loads(file.read("saxpy-1.0.dist-info/rocmbuild.json"))
    assert {"saxpy/lib/saxpy_rocm.so", "saxpy/lib/saxpy_host.so", "saxpy/lib/_rocmbuild_loader.py"} <= names
    assert evidence["targets"] == ["gfx1201"]
    assert evidence["stage"]["launches_replaced"] == 2
    text = json.dumps(evidence)
    assert str(work) not in text
    assert str(Path.home()) not in text


def test_every_device_command_has_one_target_and_the_flag(work: Path) -> None:
    record = json.loads((work / "build/record.json").read_text())
    device = [command["argv"] for command in record["commands"] if command["kind"] == "device"]
    assert len(device) == 2
    for argv in device:
        assert [word for word in argv if "offload-arch" in word] == ["--offload-arch=gfx1201"]
        assert argv.count("-mno-wavefrontsize64") == 1
        assert "-O3" in argv
    entries = json.loads((work / "build/compile_commands.json").read_text())
    assert {entry["output"] for entry in entries} >= {"obj/saxpy.lib.saxpy/rocm/csrc/sum.cu.gfx1201.co"}


def test_the_host_library_computes(work: Path) -> None:
    library = ctypes.CDLL(str(work / "build/lib/saxpy/lib/saxpy_host.so"))
    x, y = (ctypes.c_float * 100)(*range(100)), (ctypes.c_float * 100)(*[1.0] * 100)
    assert library.saxpy(100, ctypes.c_float(3.0), x, y) == 0
    assert list(y) == [1.0 + 6.0 * i for i in range(100)]
    total = ctypes.c_float()
    assert library.sum(100, x, ctypes.byref(total)) == 0
    assert total.value == 2 * sum(range(100))


def test_nothing_changed_nothing_runs(work: Path) -> None:
    before = wheel_of(work).read_bytes()
    assert build(work / "project", work / "build", work / "dist").ran == 0
    assert wheel_of(work).read_bytes() == before


@pytest.mark.slow
def test_another_folder_gives_the_same_bytes(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "project", tmp_path / "else where/p")
    built = build(tmp_path / "else where/p", tmp_path / "b", tmp_path / "dist")
    assert hashlib.sha256(built.path.read_bytes()).digest() == hashlib.sha256(wheel_of(work).read_bytes()).digest()


@pytest.mark.slow
def test_edits_and_targets_rebuild_what_they_touch(work: Path, tmp_path: Path) -> None:
    """One story, in order: an edited source, an edited header, a further target, the first one again."""
    shutil.copytree(work / "project", tmp_path / "p")

    def outputs(**settings: str) -> tuple[int, set[str]]:
        before = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("obj/**/*.co")}
        ran = build(tmp_path / "p", tmp_path / "b", tmp_path / "dist", platforms="rocm", **settings).ran
        after = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("obj/**/*.co")}
        return ran, {p.name for p, at in after.items() if before.get(p) != at}

    assert outputs()[1] == {"saxpy.cu.gfx1201.co", "sum.cu.gfx1201.co"}
    source = tmp_path / "p/csrc/sum.cu"
    source.write_text(source.read_text().replace("float total = 0", "float total = 1"))
    first = next((tmp_path / "dist").glob("*.whl")).read_bytes()
    assert outputs() == (4, {"sum.cu.gfx1201.co"})
    assert next((tmp_path / "dist").glob("*.whl")).read_bytes() != first, "changed device code must reach the wheel"
    header = tmp_path / "p/csrc/scale.cuh"
    header.write_text(header.read_text().replace("a * SAXPY_SCALE", "SAXPY_SCALE * a + 0.0f"))
    assert outputs()[1] == {"saxpy.cu.gfx1201.co", "sum.cu.gfx1201.co"}
    assert outputs(targets="gfx1201,gfx1100")[1] == {"saxpy.cu.gfx1100.co", "sum.cu.gfx1100.co"}


def test_a_compile_error_names_source_target_and_the_compilers_lines(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    source = tmp_path / "p/csrc/sum.cu"
    source.write_text(source.read_text().replace("float total = 0;", "float total = nonsense;"))
    with pytest.raises(CheckError) as caught:
        build(tmp_path / "p", tmp_path / "b", tmp_path / "dist", platforms="rocm")
    text = str(caught.value)
    assert "csrc/sum.cu for gfx1201: exit 1" in text
    assert "use of undeclared identifier 'nonsense'" in text
    assert not (tmp_path / "dist").exists()


def test_a_flag_that_makes_wave64_is_refused(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    project = tmp_path / "p/pyproject.toml"
    project.write_text(project.read_text() + 'device-flags = ["-mwavefrontsize64"]\n')
    with pytest.raises(InputError, match="-mwavefrontsize64 sets the wave width"):
        configured(tmp_path / "p", tmp_path / "b")


@pytest.mark.slow
def test_a_wave64_compilation_that_got_past_the_configuration_is_stopped_by_the_compiler(tmp_path: Path) -> None:
    config = configured(PROJECTS / "saxpy", tmp_path / "b", platforms="rocm")
    extension = dataclasses.replace(config.extensions[0], device_flags=("-mwavefrontsize64",))
    with pytest.raises(CheckError, match="needs target feature wavefrontsize32"):
        pipeline.build_wheel(dataclasses.replace(config, extensions=(extension,)), tmp_path / "dist", dict(os.environ))
    assert not (tmp_path / "dist").exists()


def test_a_flag_that_adds_a_target_is_refused(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    project = tmp_path / "p/pyproject.toml"
    project.write_text(project.read_text() + 'device-flags = ["--offload-arch=gfx1100"]\n')
    with pytest.raises((CheckError, InputError), match="gfx1100"):
        build(tmp_path / "p", tmp_path / "b", tmp_path / "dist", platforms="rocm")
    assert not (tmp_path / "dist").exists()


def test_wave64_targets_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gfx90a.*wave64"):
        configured(PROJECTS / "saxpy", tmp_path / "b", targets="gfx90a")
    assert not (tmp_path / "b").exists()


def test_a_read_only_checkout_builds(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    with read_only(tmp_path / "p"):
        built = build(tmp_path / "p", tmp_path / "b", tmp_path / "dist", platforms="host")
    assert built.path.is_file()


@pytest.mark.slow
def test_two_builds_at_once_both_succeed(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    words = [sys.executable, "-m", "rocmbuild", "build", str(tmp_path / "p"), "-C", f"build-dir={tmp_path / 'b'}",
             "--platforms", "host", "--json"]  # fmt: skip
    results: list[subprocess.CompletedProcess[str]] = []

    def one(number: int) -> None:
        out = ["-o", str(tmp_path / f"dist{number}")]
        results.append(subprocess.run([*words, *out], capture_output=True, text=True, check=False))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.returncode for result in results] == [0, 0], results
    ran = sorted(json.loads(result.stdout)["commands_run"] for result in results)
    assert ran[0] == 0, "the second build found the first one's objects"
    assert ran[1] > 0
    wheels = [next((tmp_path / f"dist{number}").glob("*.whl")).read_bytes() for number in range(2)]
    assert wheels[0] == wheels[1]


def test_no_target_at_all_says_what_to_set(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    project = tmp_path / "p/pyproject.toml"
    project.write_text(project.read_text().replace('targets = ["gfx1201"]\n', ""))
    with pytest.raises(InputError, match=r"no target.*FREETOKEN_ROCM_ARCH"):
        build(tmp_path / "p", tmp_path / "b", tmp_path / "dist")


@pytest.mark.slow
def test_the_platform_cuda_compiles_the_untouched_sources(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    built = build(PROJECTS / "saxpy", tmp_path / "b", tmp_path / "dist", platforms="cuda", cuda_archs="90a")
    with zipfile.ZipFile(built.path) as file:
        assert "saxpy/lib/saxpy_cuda.so" in file.namelist()
    words = [command["argv"] for command in built.record["commands"] if command["kind"] == "cuda"]
    assert all("src/cuda/csrc/" in " ".join(argv) for argv in words)
    assert len(words) == 2
    library = tmp_path / "b/lib/saxpy/lib/saxpy_cuda.so"
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "libcudart" not in needed


def test_full_torch_is_refused_declaratively(tmp_path: Path) -> None:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "p")
    project = tmp_path / "p/pyproject.toml"
    project.write_text(project.read_text().replace('torch = "none"', 'torch = "full"'))
    with pytest.raises(InputError, match='torch = "full" is not built declaratively'):
        build(tmp_path / "p", tmp_path / "b", tmp_path / "dist", platforms="host")
