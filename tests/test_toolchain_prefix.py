"""The managed prefix for other build systems: CMake's HIP language, its packages, Makefiles; and libraries to link."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import require

from rocmbuild.audit.report import audit_paths
from rocmbuild.toolchain.discover import managed_toolchain, toolchains_dir
from rocmbuild.toolchain.elf import read_dynamic
from rocmbuild.toolchain.environment import cmake_file, environment_of, shell_text
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.store import entries
from rocmbuild.toolchain.stubs import MARK, exported, is_stub, needed_from, write_stub

BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
DEVICE = """#include <hip/hip_runtime.h>
#include <cmath>
__global__ void saxpy(float* y, const float* x, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * std::sqrt(x[i]);
}
extern "C" int run(float* y, const float* x, float a, int n) {
  saxpy<<<(n + 255) / 256, 256>>>(y, x, a, n);
  return hipGetLastError();
}
"""
MAIN = 'extern "C" int run(float*, const float*, float, int);\nint main() { return run(nullptr, nullptr, 1, 1); }\n'
HIP_LANGUAGE = """cmake_minimum_required(VERSION 3.21)
project(demo LANGUAGES CXX HIP)
add_library(saxpy SHARED saxpy.hip)
add_executable(app saxpy.hip main.cpp)
"""
PACKAGES = """cmake_minimum_required(VERSION 3.21)
project(demo LANGUAGES CXX)
find_package(hip REQUIRED CONFIG)
find_package(hiprtc REQUIRED CONFIG)
add_library(saxpy SHARED saxpy.hip)
set_source_files_properties(saxpy.hip PROPERTIES LANGUAGE CXX)
target_link_libraries(saxpy PRIVATE hip::device)
add_executable(app main.cpp)
target_link_libraries(app PRIVATE saxpy hip::host)
"""
MAKEFILE = """ROCM_PATH ?= /opt/rocm
HIPCC = $(ROCM_PATH)/bin/hipcc
ARCH ?= gfx1201
all: app libsaxpy.so rdc
saxpy.o: saxpy.hip
\t$(HIPCC) --offload-arch=$(ARCH) -fPIC -c $< -o $@
libsaxpy.so: saxpy.o
\t$(HIPCC) -shared $^ -o $@
main.o: main.cpp
\t$(CXX) -c $< -o $@
app: main.o saxpy.o
\t$(CXX) $^ -o $@ -L$(ROCM_PATH)/lib -lamdhip64 -Wl,-rpath,$(ROCM_PATH)/lib
rdc.o: saxpy.hip
\t$(HIPCC) -fgpu-rdc --offload-arch=$(ARCH) -fPIC -c $< -o $@
rdc: rdc.o main.o
\t$(HIPCC) -fgpu-rdc --offload-arch=$(ARCH) $^ -o $@
"""


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    for entry in entries(toolchains_dir()):
        request = entry.facts.get("request")
        if entry.kind == "toolchain" and isinstance(request, dict) and request.get("provider") == "debian":
            return managed_toolchain(entry)
    return require("a managed toolchain (rocmbuild toolchain install)")


def cmakes() -> dict[str, Path | None]:
    """Debian's and pip's."""
    spec = importlib.util.find_spec("cmake")
    newest = Path(str(spec.origin)).parent / "data/bin/cmake" if spec and spec.origin else None
    debian = Path("/usr/bin/cmake")
    return {"debian": debian if debian.is_file() else None, "pip": newest if newest and newest.is_file() else None}


@pytest.fixture(params=["debian", "pip"])
def cmake(request: pytest.FixtureRequest) -> Path:
    return cmakes()[request.param] or require(f"cmake of {request.param}")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "saxpy.hip").write_text(DEVICE)
    (tmp_path / "main.cpp").write_text(MAIN)
    return tmp_path


def build(folder: Path, cmake: Path, *options: str, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {**BARE, "PATH": f"{path}:{BARE['PATH']}" if path else BARE["PATH"]}
    if not shutil.which("make", path=env["PATH"]):
        require("make")
    words = shlex.join([str(cmake), "-S", str(folder), "-B", str(folder / "out"), *options])
    script = f"{words} && {shlex.quote(str(cmake))} --build {shlex.quote(str(folder / 'out'))} -v"
    return subprocess.run(["sh", "-c", script], env=env, check=False, capture_output=True, text=True)


def proved(*paths: Path, target: str = "gfx1201") -> None:
    report = audit_paths(list(paths), targets=(target,))
    assert report.ok, report.to_table()


@pytest.mark.slow
def test_cmakes_hip_language(toolchain: Toolchain, cmake: Path, project: Path) -> None:
    """Nothing but PATH says where it is, as for /opt/rocm."""
    (project / "CMakeLists.txt").write_text(HIP_LANGUAGE)
    done = build(project, cmake, "-DCMAKE_HIP_ARCHITECTURES=gfx1201", path=str(toolchain.prefix / "bin"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    proved(project / "out/libsaxpy.so", project / "out/app")
    dynamic = read_dynamic(project / "out/libsaxpy.so")
    assert dynamic is not None
    assert any(name.startswith("libamdhip64.so.") for name in dynamic.needed)


@pytest.mark.slow
def test_cmakes_hip_packages(toolchain: Toolchain, cmake: Path, project: Path) -> None:
    (project / "CMakeLists.txt").write_text(PACKAGES)
    options = (f"-DCMAKE_PREFIX_PATH={toolchain.prefix}", "-DGPU_TARGETS=gfx1201")
    done = build(project, cmake, *options, f"-DCMAKE_CXX_COMPILER={toolchain.prefix}/bin/clang++")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    proved(project / "out/libsaxpy.so")


@pytest.mark.slow
def test_cmake_through_the_toolchain_file(toolchain: Toolchain, cmake: Path, project: Path) -> None:
    """A C++ program that links a HIP library, and no compiler on PATH; without a target CMake is stopped."""
    text = HIP_LANGUAGE.replace("saxpy.hip main.cpp)", "main.cpp)\ntarget_link_libraries(app PRIVATE saxpy)")
    (project / "CMakeLists.txt").write_text(text)
    (project / "file.cmake").write_text(cmake_file(toolchain))
    option = f"-DCMAKE_TOOLCHAIN_FILE={project}/file.cmake"
    stopped = build(project, cmake, option)
    assert stopped.returncode != 0
    assert "CMAKE_HIP_ARCHITECTURES is not set" in stopped.stderr
    shutil.rmtree(project / "out", ignore_errors=True)
    (project / "file.cmake").write_text(cmake_file(toolchain, ("gfx1100",)))
    done = build(project, cmake, option)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    proved(project / "out/libsaxpy.so", target="gfx1100")


@pytest.mark.slow
def test_a_makefile(toolchain: Toolchain, project: Path) -> None:
    """Objects, a library, a program linked by g++, and separate device code, whose link makes `__hip_fatbin`."""
    if not shutil.which("make"):
        require("make")
    (project / "Makefile").write_text(MAKEFILE)
    words = ["make", "-j2", f"ROCM_PATH={toolchain.prefix}"]
    done = subprocess.run(words, cwd=project, env=BARE, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    proved(project / "app", project / "libsaxpy.so", project / "rdc")
    ran = subprocess.run([project / "app"], env=BARE, check=False, capture_output=True, text=True)
    assert ran.returncode == 127
    assert "this copy is for linking only" in ran.stderr


def test_the_shells_environment(toolchain: Toolchain, project: Path) -> None:
    """What `toolchain env` prints is enough for hipcc, hipconfig and the search itself."""
    script = shell_text(environment_of(toolchain)) + "\n"
    script += "hipconfig --rocmpath; echo; hipconfig --version; echo; command -v hipcc; echo $CMAKE_PREFIX_PATH; "
    script += f"{sys.executable} -m rocmbuild toolchain list --json"
    env = {**os.environ, "PATH": BARE["PATH"], "CMAKE_PREFIX_PATH": "/a b"}
    done = subprocess.run(["sh", "-ec", script], env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    prefix, version, hipcc, folders, *listed = done.stdout.splitlines()
    assert Path(prefix) == toolchain.prefix
    assert version.startswith(toolchain.hip_version)
    assert Path(hipcc) == toolchain.prefix / "bin/hipcc"
    assert folders == f"{toolchain.prefix}:/a b"
    first = json.loads("\n".join(listed))[0]
    assert (first["origin"], first["identity"]) == ("ROCM_HOME", toolchain.identity())


def test_hipconfig_says_what_build_systems_ask(toolchain: Toolchain) -> None:
    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        program = toolchain.prefix / "bin/hipconfig"
        return subprocess.run([program, *words], env=BARE, check=False, capture_output=True, text=True)

    assert Path(ask("--hipclangpath").stdout, "clang++").is_file()
    assert ask("--platform").stdout == "amd"
    assert ask("--compiler").stdout == "clang"
    assert f"-I{toolchain.prefix}/include" in ask("--cpp_config").stdout
    assert "HIP_PATH" in ask().stdout
    assert ask("--nonsense").returncode == 1


def test_the_enumerator_reads_the_kernels_own_list(toolchain: Toolchain, tmp_path: Path) -> None:
    for node, version in enumerate((0, 110000, 110501, 120001, 90010)):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(f"cpu_cores_count 8\ngfx_target_version {version}\n")
    program = toolchain.prefix / "bin/rocm_agent_enumerator"
    env = {**BARE, "ROCM_TOPOLOGY": str(tmp_path)}
    done = subprocess.run([program, "-t", "GPU"], env=env, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["gfx1100", "gfx1151", "gfx1201", "gfx90a"]
    nothing = subprocess.run([program], env={**BARE, "ROCM_TOPOLOGY": "/absent"}, check=True, capture_output=True)
    assert nothing.stdout == b"gfx000\n"


LIBRARY = """
__asm__(".symver one_old,one@V1");
int one_old(void) { return 1; }
__asm__(".symver one_new,one@@V2");
int one_new(void) { return 2; }
int two(void) { return 3; }
int data[10] = {1};
__attribute__((weak)) int soft(void) { return 4; }
"""


def test_a_stub_has_the_names_and_versions_of_the_real_one(tmp_path: Path) -> None:
    """A program that was linked against the stub runs with the real library, and alone says why it cannot."""
    compiler = Path(shutil.which("gcc") or require("gcc"))
    (tmp_path / "real.c").write_text(LIBRARY)
    (tmp_path / "map").write_text("V1 { global: one; data; local: *; };\nV2 { global: one; two; soft; } V1;\n")
    (tmp_path / "real").mkdir()
    words = ["-shared", "-fPIC", "-Wl,-soname,libx.so.3", f"-Wl,--version-script={tmp_path}/map"]
    real = tmp_path / "real/libx.so.3"
    subprocess.run([compiler, *words, "-o", real, tmp_path / "real.c"], check=True)
    symbols = exported(real)
    assert {(symbol.name, symbol.version, symbol.default) for symbol in symbols} == {
        ("one", "V1", False),
        ("one", "V2", True),
        ("two", "V2", True),
        ("soft", "V2", True),
        ("data", "V1", True),
    }
    stub = tmp_path / "libx.so.3"
    why = 'it is "only" a \\stub'
    write_stub(stub, soname="libx.so.3", symbols=symbols, compiler=compiler, why=why)
    assert set(exported(stub)) == set(symbols)
    assert is_stub(stub)
    assert not is_stub(real)
    assert sorted(path.name for path in tmp_path.glob("libx*")) == ["libx.so.3"]
    (tmp_path / "main.c").write_text("int one(void), two(void); int main(void) { return 10 * one() + two(); }")
    subprocess.run([compiler, "-o", tmp_path / "main", tmp_path / "main.c", stub], check=True)
    needed = needed_from([tmp_path / "main"], "one|two")
    assert {(symbol.name, symbol.version) for symbol in needed} == {("one", "V2"), ("two", "V2")}

    def run(folder: Path) -> subprocess.CompletedProcess[str]:
        env = {"LD_LIBRARY_PATH": str(folder)}
        return subprocess.run([tmp_path / "main"], env=env, check=False, capture_output=True, text=True)

    assert run(real.parent).returncode == 23
    alone = run(tmp_path)
    assert (alone.returncode, alone.stderr) == (127, why + "\n")


def test_the_prefix_links_against_names_alone(toolchain: Toolchain) -> None:
    hip = (toolchain.prefix / "lib/libamdhip64.so").resolve()
    assert is_stub(hip)
    assert hip.stat().st_size < 200_000
    dynamic = read_dynamic(hip)
    assert dynamic is not None
    assert (dynamic.needed, dynamic.versions) == ((), frozenset())
    assert any(symbol.name == "hipLaunchKernel" and symbol.version == "hip_4.2" for symbol in exported(hip))
    assert hasattr(ctypes.CDLL(str(hip)), MARK)  # it loads, whatever glibc is here


def test_no_network_library_is_carried(toolchain: Toolchain) -> None:
    """llvm-objdump links libcurl, which it uses for debug information from servers only."""
    carried = {path.name.split(".")[0] for path in (toolchain.prefix / "lib/llvm/lib").glob("lib*.so*")}
    assert not carried & {"libssl", "libcrypto", "libgnutls", "libkrb5", "libldap-2", "libicudata"}
    env = {**BARE, "DEBUGINFOD_URLS": "http://127.0.0.1:9/"}
    words = [toolchain.objdump, "-d", toolchain.prefix / "lib/libamdhip64.so"]
    done = subprocess.run(words, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert MARK in done.stdout
