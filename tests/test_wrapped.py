"""Projects with their own setup.py: torch's ROCm path without a ROCm torch, the guard, the audit, findings by line."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import digest_tree, needs_toolchain, needs_torch_here, needs_torch_sdk, require

from rocmbuild.build.torch_hip import hip_headers, make_stubs
from rocmbuild.build.wrapped import _MATH_HEADER, check_sources
from rocmbuild.toolchain.elf import read_dynamic
from rocmbuild.toolchain.torch_sdk import find_torch_sdk

PROJECTS = Path(__file__).parent / "projects"
PYPROJECT = '[build-system]\nrequires = ["rocmbuild", "torch"]\nbuild-backend = "rocmbuild.build_meta"\n'


def build(project: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["build", str(project), "--targets", "gfx1201", "-o", str(out), "--json", *more]
    return subprocess.run(
        [sys.executable, "-m", "rocmbuild", *words],
        env={**os.environ, "MAX_JOBS": "2"},
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
@needs_torch_here
@pytest.mark.usefixtures("warm_cache")
def test_a_source_that_cannot_be_hip_is_told_at_its_line(tmp_path: Path) -> None:
    project = sample(tmp_path, before="0xffffffffffffffffull", after="0xffffffff")
    before = digest_tree(project)
    done = build(project, tmp_path / "dist")
    assert done.returncode == 1
    assert "csrc/scale.cu:8" in done.stderr
    assert "32 bits" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "dist").exists()
    assert digest_tree(project) == before


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@needs_torch_here
@pytest.mark.usefixtures("warm_cache")
@pytest.mark.parametrize(("text", "message"), [("import no_such_module", "no_such_module"), ("1 +", "SyntaxError")])
def test_a_setup_py_that_fails_shows_its_last_lines(tmp_path: Path, text: str, message: str) -> None:
    project = sample(tmp_path)
    (project / "setup.py").write_text(text)
    done = build(project, tmp_path / "dist")
    assert done.returncode == 1
    assert message in done.stderr
    assert "rocmbuild: error: setup.py (build_wheel) failed" in done.stderr


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@needs_torch_here
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


def _held(wheel: Path, *, kernels: str, units: int, targets: tuple[str, ...] = ("gfx1201",)) -> dict[str, Any]:
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


@dataclass(frozen=True, kw_only=True)
class Public:
    """A public CUDA extension project: an sdist of the package index, unchanged but for its build backend.

    environ: the project's own switches. units: its HIP compilations. kernels: text in the name of one of its kernels.
    refused: for a project whose sources cannot be HIP, place -> words that are told there; told: the same where only
    the compiler can tell that it is so.
    """

    name: str
    version: str
    sha256: str
    shows: str
    environ: dict[str, str] = field(default_factory=dict)
    units: int = 0
    kernels: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)


PUBLIC = {
    project.name: project
    for project in (
        Public(
            name="torch-cluster",
            version="1.6.3",
            sha256="78d5a930a5bbd0d8788df8c6d66addd68d6dd292fe3edb401e3dacba26308152",
            shows="seven .cu files in seven extensions with C++ files of the same names, at::cuda streams",
            environ={"FORCE_ONLY_CUDA": "1"},  # without the CPU twin of each extension
            units=7,
            kernels="radius",
        ),
        Public(
            name="torch-points-kernels",
            version="0.7.0",
            sha256="a93d6c69fe2035e81c066b6ca6d2264cecdb368677152a231a69f686f00f6571",
            shows="seven .cu files and their C++ callers in one extension, at::cuda streams, atomics, dynamic shared "
            "memory, distutils without ninja",
            environ={"FORCE_ONLY_CUDA": "1"},
            units=7,
            kernels="ball",
        ),
        Public(
            name="causal-conv1d",
            version="1.7.0",
            sha256="3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b",
            shows="three .cu files, warp shuffles, hipCUB, a branch of its own for ROCm that asks hipcc for a version "
            "and takes targets from HIP_ARCHITECTURES",
            environ={"CAUSAL_CONV1D_FORCE_BUILD": "TRUE"},  # without a look for a wheel on the network
            units=3,
            kernels="causal_conv1d",
        ),
        Public(
            name="nerfacc",
            version="0.5.3",
            sha256="01850cbbd71b6aeab059cbfb695755f8b6604f3fdfe48c44925b4b97c0c324db",
            shows="four .cu files, at::cuda streams, operators on float3 that HIP's headers have as well: clang calls "
            "their uses ambiguous, and the checks say where they are",
            told={"csrc/include/utils_math.cuh:295:35": "operator+"},
        ),
        Public(
            name="torch-scatter",
            version="2.1.2",
            sha256="69b3aa435f2424ac6a1bfb6ff702da6eb73b33ca0db38fb26989c74159258e47",
            shows="shuffles: their overloads for at::Half pass on a mask of 32 bits, which HIP 7 refuses",
            refused={"csrc/cuda/utils.cuh:12:10": "__shfl_up_sync", "csrc/cuda/utils.cuh:18:10": "__shfl_down_sync"},
        ),
        Public(
            name="torch-sparse",
            version="0.6.18",
            sha256="2f14c510a6e93f404c6ea357210615b3c15a71731f9dbd86f25434e34fb5a741",
            shows="the same, in another file",
            refused={"csrc/cuda/utils.cuh:11:10": "__shfl_sync", "csrc/cuda/utils.cuh:17:10": "__shfl_down_sync"},
        ),
        Public(
            name="torch-harmonics",
            version="0.8.0",
            sha256="b44340184416283a3636640a9050c2187515d6bd9858fa0421b048b66465f773",
            shows="a mask of 32 bits behind a macro of a header",
            environ={"FORCE_CUDA_EXTENSION": "1"},
            refused={"csrc/attention/attention_utils.cuh:155:16": "FULL_MASK"},
        ),
    )
}


def from_index(pinned: Public, folder: Path) -> Path:
    """A public project's sdist of a pinned version, unpacked, with no change but the build backend."""
    words = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, f"{pinned.name}=={pinned.version}", "-d", folder],
        # pip asks setup.py for metadata, without a card: these say not to look for CUDA then
        env={**os.environ, "CAUSAL_CONV1D_SKIP_CUDA_BUILD": "TRUE", "BUILD_NO_CUDA": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        require(f"the sdist of {pinned.name} {pinned.version} from pip's index:\n{done.stderr}")
    (sdist,) = folder.glob("*.tar.gz")
    assert hashlib.sha256(sdist.read_bytes()).hexdigest() == pinned.sha256
    shutil.unpack_archive(sdist, folder, "gztar")
    (project,) = (path for path in folder.iterdir() if path.is_dir())
    kept = project / "pyproject.toml"
    text = kept.read_text() if kept.exists() else ""
    changed = re.sub(r"(?m)^\s*build-backend\s*=.*$", 'build-backend = "rocmbuild.build_meta"', text)
    kept.write_text(changed if text else PYPROJECT)
    return project


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@needs_torch_here
@pytest.mark.usefixtures("warm_cache")
@pytest.mark.parametrize("name", [name for name, project in PUBLIC.items() if project.refused])
def test_a_public_project_that_rocm_7_refuses_is_told_so_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    project = from_index(PUBLIC[name], tmp_path)
    for variable, value in PUBLIC[name].environ.items():
        monkeypatch.setenv(variable, value)
    done = build(project, tmp_path / "dist")
    assert done.returncode == 1, done.stderr
    for place, call in PUBLIC[name].refused.items():
        assert any(place in line and call in line and "64 bits" in line for line in done.stderr.splitlines()), (
            done.stderr
        )
    assert "static assertion" not in done.stderr
    assert not (tmp_path / "dist").exists()


@pytest.mark.slow
@needs_torch_sdk
@needs_torch_here
def test_what_only_the_compiler_can_refuse_is_told_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = PUBLIC["nerfacc"]
    project = from_index(pinned, tmp_path)
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    sources = [str(path.relative_to(project)) for path in project.glob("nerfacc/cuda/csrc/*.cu")]
    settings = {"project": str(project), "torch": find_torch_sdk().version.partition("+")[0], "hip_version": "7.2"}
    told = check_sources(settings, sources, ["nerfacc/cuda/csrc/include"])
    for place, name in pinned.told.items():
        assert any(place in text and name in text and "ambiguous" in text for text in told), told


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@needs_torch_here
@pytest.mark.usefixtures("math", "warm_cache")
@pytest.mark.skipif(not os.environ.get("ROCMBUILD_TEST_PUBLIC"), reason="minutes each; `nox -s wrapped` runs them")
@pytest.mark.parametrize("name", [name for name, project in PUBLIC.items() if project.units])
def test_a_public_project_becomes_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    project = from_index(PUBLIC[name], tmp_path)
    for variable, value in PUBLIC[name].environ.items():
        monkeypatch.setenv(variable, value)
    done = build(project, tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    _held(Path(json.loads(done.stdout)["wheel"]), kernels=PUBLIC[name].kernels, units=PUBLIC[name].units)


def ran(cache: Path) -> list[str]:
    """What the last run of setup.py had to compile or link, by the names of outputs, and what that run was."""
    (record,) = cache.glob("builds/project-*/record.json")
    commands = json.loads(record.read_text())["commands"]
    return sorted(Path(command["output"]).name.split(".")[0] for command in commands if not command["cached"])


@pytest.fixture(scope="session")
def links(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Wheels for PIP_FIND_LINKS: rocmbuild, and a torch of a version of its own that stands for the one of the tests.

    The latter holds a path to the site folder of the real one, so that isolated builds need not fetch it.
    """
    folder = tmp_path_factory.mktemp("links")
    source = folder / "source"
    shutil.copytree(root / "rocmbuild", source / "rocmbuild", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(root / name, source)
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    site = Path(str(find_spec("torch").origin)).parent.parent  # type: ignore[union-attr]
    info = f"torch-{RELEASE}.dist-info"
    members = {
        "torch_of_the_tests.pth": f"{site}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {RELEASE}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"torch-{RELEASE}-py3-none-any.whl", "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
        rows = "".join(f"{name},,\n" for name in [*members, f"{info}/RECORD"])
        archive.writestr(f"{info}/RECORD", rows)
    return folder


RELEASE = f"{metadata.version('torch').partition('+')[0]}+here" if find_spec("torch") else ""


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@needs_torch_here
@pytest.mark.usefixtures("math")
def test_front_ends_isolated_and_editable_compile_only_what_changed(
    tmp_path: Path, warm_cache: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip and build with isolation, whose folders differ each time; then one edit; then nothing; then editable."""
    project = sample(tmp_path)
    before = digest_tree(project)
    pyproject = f'requires = ["rocmbuild", "torch=={RELEASE}"]'
    (project / "pyproject.toml").write_text(PYPROJECT.replace('requires = ["rocmbuild", "torch"]', pyproject))
    monkeypatch.setenv("FREETOKEN_ROCM_ARCH", "gfx1201")
    monkeypatch.setenv("MAX_JOBS", "2")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{os.environ.get('PIP_FIND_LINKS', '')} {links}".strip())

    def front_end(*words: str) -> None:
        done = subprocess.run([sys.executable, "-m", *words], cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    front_end("pip", "wheel", "--no-deps", "-w", "../pip", ".")
    assert ran(warm_cache) == ["_C", "offset", "scale"]
    (by_pip,) = (tmp_path / "pip").glob("*.whl")
    _held(by_pip, kernels="offset_kernel", units=2)
    front_end("build", "--wheel", "-o", "../build", ".")
    assert ran(warm_cache) == []
    (by_build,) = (tmp_path / "build").glob("*.whl")
    with zipfile.ZipFile(by_pip) as one, zipfile.ZipFile(by_build) as other:
        (library,) = [name for name in one.namelist() if name.endswith(".so")]
        assert one.read(library) == other.read(library)
        assert b"pip-build-env" not in one.read(library)
    (project / "csrc/offset.cuh").write_text("#pragma once\nconstexpr float kOffset = 2.0f;\n")
    front_end("rocmbuild", "build", ".", "-o", "../three")
    assert ran(warm_cache) == ["_C", "offset"]
    (records,) = warm_cache.glob("builds/project-*/front/records")
    seen = sorted(records.iterdir())
    front_end("rocmbuild", "build", ".", "-o", "../four")
    assert sorted(records.iterdir()) == seen  # setup.py was not run at all
    assert [path.name for path in (tmp_path / "four").iterdir()] == [by_pip.name]

    site = tmp_path / "site"
    front_end("pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), "-e", ".")
    assert ran(warm_cache) == []
    script = (
        "import site, sys; site.addsitedir(sys.argv[1]); import wrapped_stream, importlib.util as u, os\n"
        "print(os.path.realpath(wrapped_stream.__file__)); print(u.find_spec('wrapped_stream._C').origin)"
    )

    def imported(**environ: str) -> Path:
        words, env = [sys.executable, "-c", script, str(site)], {**os.environ, **environ}
        source, library = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout.split()
        assert source == str(project / "wrapped_stream/__init__.py")
        assert Path(library).is_relative_to(warm_cache)
        return Path(library)

    built = imported().read_bytes()
    (project / "csrc/offset.cuh").write_text("#pragma once\nconstexpr float kOffset = 3.0f;\n")
    assert imported(ROCMBUILD_EDITABLE_REBUILD="0").read_bytes() == built
    monkeypatch.delenv("FREETOKEN_ROCM_ARCH")  # what it was installed for is kept
    assert imported().read_bytes() != built
    assert ran(warm_cache) == ["_C", "offset"]
    assert imported().read_bytes() != built
    (marks,) = warm_cache.glob("builds/project-*/project.json")
    assert json.loads(marks.read_text()) == {"project": str(project), "editable": True}
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "csrc/offset.cuh").write_text((PROJECTS / "wrapped_stream/csrc/offset.cuh").read_text())
    assert digest_tree(project) == before


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
@needs_torch_here
@pytest.mark.usefixtures("math", "warm_cache")
def test_an_unchanged_setup_py_becomes_a_wheel(tmp_path: Path) -> None:
    project = sample(tmp_path)
    before = digest_tree(project)
    done = build(project, tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    assert digest_tree(project) == before
    result = json.loads(done.stdout)
    assert result["audit"]["ok"]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert Path(result["wheel"]).name == f"wrapped_stream-1.0-{tag}-{tag}-linux_x86_64.whl"
    _held(Path(result["wheel"]), kernels="scale_kernel", units=2)

    done = build(project, tmp_path / "debug", "-C", "debug=true")
    assert done.returncode == 0, done.stderr
    evidence = _held(Path(json.loads(done.stdout)["wheel"]), kernels="scale_kernel", units=2)
    for command in evidence["commands"]:
        if "-c" in command["argv"]:
            assert "-g" in command["argv"]
            hip = "--offload-arch=gfx1201" in command["argv"]
            assert ("-O1" in command["argv"]) == hip, "the project names a level for C++ alone"
    with zipfile.ZipFile(json.loads(done.stdout)["wheel"]) as wheel:
        (library,) = (name for name in wheel.namelist() if name.endswith(".so"))
        assert b".debug_info" in wheel.read(library)
