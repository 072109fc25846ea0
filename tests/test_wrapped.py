"""Projects with their own setup.py: torch's ROCm path without a ROCm torch, the guard, the audit, findings by line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import digest_tree, needs_toolchain, needs_torch_sdk, require

from rocmbuild.build.torch_hip import hip_headers, make_stubs
from rocmbuild.build.wrapped import _MATH_HEADER
from rocmbuild.toolchain.discover import candidates
from rocmbuild.toolchain.elf import read_dynamic
from rocmbuild.toolchain.torch_sdk import find_torch_sdk

PROJECTS = Path(__file__).parent / "projects"
PYPROJECT = '[build-system]\nrequires = ["rocmbuild", "torch"]\nbuild-backend = "rocmbuild.build_meta"\n'


@pytest.fixture
def torch_here() -> None:
    if find_spec("torch") is None:
        require("torch in the environment of the tests")


@pytest.fixture
def math(_toolchain_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A toolchain with the math libraries' headers, which torch's HIP headers include; builds will take it."""
    for candidate in candidates(os.environ):
        if candidate.toolchain and (candidate.toolchain.include / "hipblas/hipblas.h").is_file():
            monkeypatch.setenv("ROCM_HOME", str(candidate.toolchain.prefix))
            return
    require("the math libraries' headers (rocmbuild toolchain install debian --with math)")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all: headers are derived once."""
    return tmp_path_factory.mktemp("cache")


def build(project: Path, out: Path, cache: Path, *, targets: str = "gfx1201") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rocmbuild", "build", str(project), "--targets", targets, "-o", str(out), "--json"],
        env={**os.environ, "MAX_JOBS": "2", "ROCMBUILD_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


def sample(folder: Path, *, before: str = "", after: str = "") -> Path:
    """The sample project with one text of its source replaced."""
    project = folder / "project"
    shutil.copytree(PROJECTS / "wrapped_stream", project)
    source = project / "csrc/scale.cu"
    text = source.read_text()
    assert before in text
    source.write_text(text.replace(before, after))
    return project


@pytest.mark.slow
@needs_torch_sdk
def test_hip_headers_are_derived_once_and_again_when_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path))
    sdk = find_torch_sdk()
    untouched = hashlib.sha256((sdk.include / "c10/cuda/CUDAStream.h").read_bytes()).digest()
    folder = hip_headers(sdk)
    stream = folder / "c10/hip/HIPStream.h"
    text = stream.read_text()
    assert "hipStream_t" in text
    assert "cuda_runtime" not in text
    assert (folder / "ATen/hip/HIPContext.h").is_file()
    assert (folder / "c10/hip/impl/hip_cmake_macros.h").is_file()
    assert not (folder / "c10/core/Device.h").exists()  # torch's own serves
    whole, time = digest_tree(folder), stream.stat().st_mtime_ns
    assert hip_headers(sdk) == folder
    assert stream.stat().st_mtime_ns == time
    stream.write_text("damaged")
    assert digest_tree(hip_headers(sdk)) == whole
    assert hashlib.sha256((sdk.include / "c10/cuda/CUDAStream.h").read_bytes()).digest() == untouched


def test_stubs_are_needed_by_name_and_the_runtime_is_not(tmp_path: Path) -> None:
    cxx = shutil.which("g++") or require("g++")
    (tmp_path / "libamdhip64.so").symlink_to("/nonexistent/libamdhip64.so.7")
    make_stubs(tmp_path, cxx)
    library = tmp_path / "libx.so"
    words = ["-Wl,--no-as-needed", f"-L{tmp_path}", "-lamdhip64", "-lc10_hip", "-ltorch_hip"]
    subprocess.run([cxx, "-shared", "-x", "c", "/dev/null", "-o", library, *words], check=True)
    dynamic = read_dynamic(library)
    assert dynamic is not None
    assert [name for name in dynamic.needed if "hip" in name] == ["libc10_hip.so", "libtorch_hip.so"]


@pytest.mark.parametrize(
    ("line", "header"),
    [
        ("HIPContextLight.h:11:10: fatal error: 'hipsparse/hipsparse.h' file not found", "hipsparse/hipsparse.h"),
        (
            "x.h:1:10: fatal error: hipblas-common/hipblas-common.h: No such file or directory",
            "hipblas-common/hipblas-common.h",
        ),
        ("x.h:1:10: fatal error: 'thrust/complex.h' file not found", "thrust/complex.h"),
        ("x.h:1:10: fatal error: 'hip/hip_runtime.h' file not found", ""),
        ("x.h:1:10: fatal error: 'mine.h' file not found", ""),
    ],
)
def test_a_missing_math_header_is_recognised(line: str, header: str) -> None:
    match = _MATH_HEADER.search(line)
    assert (match[1] if match else "") == header


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@pytest.mark.usefixtures("torch_here")
def test_a_source_that_cannot_be_hip_is_told_at_its_line(tmp_path: Path, cache: Path) -> None:
    project = sample(tmp_path, before="0xffffffffffffffffull", after="0xffffffff")
    before = digest_tree(project)
    done = build(project, tmp_path / "dist", cache)
    assert done.returncode == 1
    assert "csrc/scale.cu:8" in done.stderr
    assert "32 bits" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "dist").exists()
    assert digest_tree(project) == before


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@pytest.mark.usefixtures("torch_here")
@pytest.mark.parametrize(("text", "message"), [("import no_such_module", "no_such_module"), ("1 +", "SyntaxError")])
def test_a_setup_py_that_fails_shows_its_last_lines(tmp_path: Path, cache: Path, text: str, message: str) -> None:
    project = sample(tmp_path)
    (project / "setup.py").write_text(text)
    done = build(project, tmp_path / "dist", cache)
    assert done.returncode == 1
    assert message in done.stderr
    assert "rocmbuild: error: setup.py (build_wheel) failed" in done.stderr


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@pytest.mark.usefixtures("torch_here")
def test_metadata_and_sdist_compile_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rocmbuild import build_meta

    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(sample(tmp_path))
    info = build_meta.prepare_metadata_for_build_wheel(str(tmp_path / "meta"))
    assert "Name: wrapped_stream" in (tmp_path / "meta" / info / "METADATA").read_text().replace("-", "_")
    name = build_meta.build_sdist(str(tmp_path / "sdist"))
    with tarfile.open(tmp_path / "sdist" / name) as archive:
        assert any(member.endswith("csrc/scale.cu") for member in archive.getnames())
    assert not list((tmp_path / "project").rglob("*.hip"))


def _held(wheel: Path, *, kernels: str, units: int, targets: tuple[str, ...] = ("gfx1201",)) -> dict[str, object]:
    """The wheel's evidence, held to what was asked for."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [member for member in archive.namelist() if member.endswith(".dist-info/rocmbuild.json")]
        evidence = json.loads(archive.read(name))
    assert tuple(evidence["targets"]) == targets
    device = [command for command in evidence["commands"] if f"--offload-arch={targets[0]}" in command["argv"]]
    assert len(device) == units
    paths = [
        word for command in device for word in command["argv"] if "/" in word and word.lstrip("-IL").startswith("/")
    ]
    assert not [word for word in paths if not word.lstrip("-IL").startswith("/usr/")]  # no folder of this machine
    for command in device:
        assert "-mno-wavefrontsize64" in command["argv"]
        assert any(word.startswith("-O") for word in command["argv"])
        assert any(word.endswith("wave32.h") for word in command["argv"])
    codes = [code for library in evidence["code_objects"] for code in library["code_objects"]]
    assert {code["target"] for code in codes} == set(targets)
    assert {kernel["wave"] for code in codes for kernel in code["kernels"]} == {32}
    assert any(kernels in kernel["name"] for code in codes for kernel in code["kernels"])
    needed = {name for library in evidence["code_objects"] if library["code_objects"] for name in library["needed"]}
    assert {"libc10_hip.so", "libtorch_hip.so"} <= needed
    assert not any(name.startswith("libamdhip64") for name in needed)
    return dict(evidence)


def from_index(name: str, version: str, digest: str, folder: Path) -> Path:
    """A public project's sdist of a pinned version, unpacked, with no change but the build backend."""
    words = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", f"{name}=={version}"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "-d", folder], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        require(f"the sdist of {name} {version} from pip's index:\n{done.stderr}")
    (sdist,) = folder.glob("*.tar.gz")
    assert hashlib.sha256(sdist.read_bytes()).hexdigest() == digest
    shutil.unpack_archive(sdist, folder, "gztar")
    (project,) = (path for path in folder.iterdir() if path.is_dir())
    assert not (project / "pyproject.toml").exists()
    (project / "pyproject.toml").write_text(PYPROJECT)
    return project


SCATTER = ("torch-scatter", "2.1.2", "69b3aa435f2424ac6a1bfb6ff702da6eb73b33ca0db38fb26989c74159258e47")
SPARSE = ("torch-sparse", "0.6.18", "2f14c510a6e93f404c6ea357210615b3c15a71731f9dbd86f25434e34fb5a741")
SPLINE = ("torch-spline-conv", "1.2.2", "ed45a81da29f774665dbdd4709d7e534cdf16d2e7006dbd06957f35bd09661b2")


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@pytest.mark.usefixtures("torch_here")
@pytest.mark.parametrize(
    ("pinned", "places"),
    [
        (SCATTER, {"csrc/cuda/utils.cuh:12:10": "__shfl_up_sync", "csrc/cuda/utils.cuh:18:10": "__shfl_down_sync"}),
        (SPARSE, {"csrc/cuda/utils.cuh:11:10": "__shfl_sync", "csrc/cuda/utils.cuh:17:10": "__shfl_down_sync"}),
    ],
    ids=["torch-scatter", "torch-sparse"],
)
def test_a_public_project_that_rocm_7_refuses_is_told_so_by_line(
    tmp_path: Path, cache: Path, pinned: tuple[str, str, str], places: dict[str, str]
) -> None:
    """Shuffles (3 and 4 .cu files): their overloads for at::Half pass on a mask of 32 bits, which HIP 7 refuses."""
    project = from_index(*pinned, tmp_path)
    done = build(project, tmp_path / "dist", cache)
    assert done.returncode == 1
    for place, name in places.items():
        assert any(place in line and name in line and "64 bits" in line for line in done.stderr.splitlines()), (
            done.stderr
        )
    assert "static assertion" not in done.stderr
    assert not (tmp_path / "dist").exists()


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("ROCMBUILD_TEST_PUBLIC"), reason="minutes; `nox -s wrapped` runs it")
@needs_toolchain
@needs_torch_sdk
@pytest.mark.usefixtures("torch_here", "math")
def test_a_public_project_with_streams_becomes_a_wheel(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch-spline-conv: at::cuda::getCurrentCUDAStream, kernels for float and double; two .cu files of seven units."""
    monkeypatch.setenv("FORCE_ONLY_CUDA", "1")  # the project's own switch: without the CPU twin of each extension
    done = build(from_index(*SPLINE, tmp_path), tmp_path / "dist", cache)
    assert done.returncode == 0, done.stderr
    _held(Path(json.loads(done.stdout)["wheel"]), kernels="spline_basis", units=2)


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@pytest.mark.usefixtures("torch_here", "math")
def test_an_unchanged_setup_py_becomes_a_wheel(tmp_path: Path, cache: Path) -> None:
    project = sample(tmp_path)
    before = digest_tree(project)
    done = build(project, tmp_path / "dist", cache)
    assert done.returncode == 0, done.stderr
    assert digest_tree(project) == before
    result = json.loads(done.stdout)
    assert result["audit"]["ok"]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert Path(result["wheel"]).name == f"wrapped_stream-1.0-{tag}-{tag}-linux_x86_64.whl"
    _held(Path(result["wheel"]), kernels="scale_kernel", units=1)
