"""The managed toolchain: it needs no environment, none of the system's libraries, and installs whole or not at all."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import require

from rocmbuild.errors import EnvironmentFailure
from rocmbuild.toolchain import install as installs
from rocmbuild.toolchain.discover import toolchains_dir
from rocmbuild.toolchain.install import install_debian
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.packages import SYSTEM_LIBRARIES
from rocmbuild.toolchain.runtime import Runtime, find_runtime
from rocmbuild.toolchain.store import entries, read_entry, verify

BARE = {"PATH": "/usr/bin:/bin"}
KERNEL = """#include <hip/hip_runtime.h>
#include <vector>
__global__ void k(float* y) { y[threadIdx.x] = __builtin_sqrtf(y[threadIdx.x]); }
int launch(std::vector<float>& y) { k<<<1, 32>>>(y.data()); return int(hipGetLastError()); }
"""


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    made = [entry for entry in entries(toolchains_dir()) if entry.kind == "toolchain"]
    if not made:
        require("a managed toolchain (rocmbuild toolchain install)")
    return installs.managed_toolchain(made[-1])


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return find_runtime() or require("AMD's HIP runtime (rocmbuild toolchain install runtime)")


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "k.hip"
    path.write_text(KERNEL)
    return path


def needs_network() -> None:
    if os.environ.get("ROCMBUILD_TEST_OFFLINE"):
        require("network")


def test_each_tool_finds_its_libraries_in_the_prefix(toolchain: Toolchain) -> None:
    """Asked of the loader itself: nothing but glibc and the C++ runtime comes from the system."""
    folder = toolchain.clang.parent
    tools = [path for path in sorted(folder.iterdir()) if not path.is_symlink()]
    assert {"clang", "lld", "clang-offload-bundler", "llvm-readobj", "llvm-objdump"} <= {path.name for path in tools}
    for tool in tools:
        done = subprocess.run(["/lib64/ld-linux-x86-64.so.2", "--list", tool], env={}, check=False, capture_output=True)
        for line in done.stdout.decode().splitlines():
            name, _, rest = line.strip().partition(" => ")
            own = rest.startswith(str(toolchain.prefix))
            assert own or Path(name.split()[0]).name in SYSTEM_LIBRARIES | {"linux-vdso.so.1"}, f"{tool.name}: {line}"


def test_it_compiles_and_links_with_the_systems_libraries_hidden(
    toolchain: Toolchain, kernel: Path, tmp_path: Path
) -> None:
    """In a mount namespace where each library that the prefix carries is an empty file in the system's folders."""
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0:
        require("mount namespaces (unshare -rm)")
    carried = [path.name for path in (toolchain.prefix / "lib/llvm/lib").glob("*.so*")]
    places = (Path("/lib/x86_64-linux-gnu"), Path("/usr/lib/x86_64-linux-gnu"))
    present = sorted({path.resolve() for place in places for name in carried if (path := place / name).exists()})
    hide = "".join(f"mount --bind /dev/null {shlex.quote(str(path))}; " for path in present)
    words = ["-x", "hip", kernel, "-c", "-o", tmp_path / "k.o", "--offload-arch=gfx1201", "-fPIC"]
    compile_it = shlex.join(map(str, [toolchain.clang, *words, *toolchain.compile_flags()]))
    read_it = shlex.join([str(toolchain.readelf), "-S", str(tmp_path / "k.o")])
    script = f"{hide} if env -i /usr/bin/xz --version >/dev/null 2>&1; then echo not hidden; exit 9; fi; "
    if not any("liblzma" in path.name for path in present):
        script = hide
    script += f"exec env -i PATH=/bin sh -ec {shlex.quote(compile_it + '; ' + read_it)}"
    done = subprocess.run(["unshare", "-rm", "sh", "-ec", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ".hip_fatbin" in done.stdout


def test_the_prefix_looks_like_rocm(toolchain: Toolchain) -> None:
    prefix = toolchain.prefix
    for tool in ("hipcc", "amdclang++", "clang++", "clang-offload-bundler", "llvm-readelf", "llvm-objdump", "ld.lld"):
        assert os.access(prefix / "bin" / tool, os.X_OK), tool
    assert (prefix / "amdgcn/bitcode/ockl.bc").is_file()
    assert (prefix / "llvm/bin/clang++").is_file()
    assert (prefix / "include/hip/hip_runtime.h").is_file()
    assert (prefix / "lib/libamdhip64.so").is_file()
    assert not [path for path in prefix.rglob("*") if path.is_symlink() and os.path.isabs(os.readlink(path))]
    manifest = read_entry(prefix)
    assert manifest is not None
    packages = {package["name"]: package for package in manifest.facts["packages"]}
    assert all(len(package["sha256"]) == 64 and package["suite"] for package in packages.values())
    assert "libamdhip64-dev" in packages


def test_amdclang_needs_no_flag_to_find_its_own_rocm(toolchain: Toolchain, kernel: Path, tmp_path: Path) -> None:
    words = ["-x", "hip", kernel, "-c", "-o", tmp_path / "k.co", "--offload-arch=gfx1201", "--offload-device-only"]
    command = [toolchain.prefix / "bin/amdclang++", *words]
    done = subprocess.run(command, env=BARE, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def hipcc(toolchain: Toolchain, *words: object) -> subprocess.CompletedProcess[str]:
    command = [str(toolchain.prefix / "bin/hipcc"), *map(str, words)]
    return subprocess.run(command, env=BARE, check=False, capture_output=True, text=True)


def test_hipcc_announces_sources_and_leaves_the_rest_alone(toolchain: Toolchain, tmp_path: Path) -> None:
    """Read from the commands that the compiler would run: nothing is compiled here."""
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "x.cu").write_text("")
    (folder / "y.o").write_text("")
    both = hipcc(toolchain, "-###", "--offload-arch=gfx1201", folder / "x.cu", folder / "y.o", "-o", folder / "out")
    assert both.returncode == 0, both.stderr
    assert '"-target-cpu" "gfx1201"' in both.stderr
    assert '"-O3"' in both.stderr
    assert "-lamdhip64" in both.stderr
    assert "unused" not in both.stderr
    one = hipcc(toolchain, "-###", "--offload-arch=gfx1100", "-O1", "-DX=a b", "-I", "x.cpp", "-c", folder / "x.cu")
    assert '"-O1"' in one.stderr
    assert '"-O3"' not in one.stderr
    assert '"X=a b"' in one.stderr
    assert '"-I" "x.cpp"' in one.stderr
    assert '"gfx1100"' in one.stderr
    host = hipcc(toolchain, "-###", "-x", "c++", "-c", folder / "x.cu")
    assert host.returncode == 0
    assert "amdgcn" not in host.stderr
    assert hipcc(toolchain, "--version").stdout.split("version ")[1].startswith(toolchain.clang_version)


def test_hipcc_refuses_to_choose_a_target(toolchain: Toolchain, kernel: Path, tmp_path: Path) -> None:
    """clang alone would take gfx906 without a word."""
    done = hipcc(toolchain, "-c", kernel, "-o", tmp_path / "k.o")
    assert done.returncode == 1
    assert "no --offload-arch was given" in done.stderr
    assert not (tmp_path / "k.o").exists()


def test_a_second_install_is_quick_and_asks_nobody(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    started = time.perf_counter()
    assert install_debian().prefix.parent == toolchain.prefix.parent
    assert time.perf_counter() - started < 0.2


def test_without_a_mirror_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if not shutil.which("apt-get"):
        require("apt-get")
    from rocmbuild.toolchain.debian import parse_sources

    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "once.conf").write_text('Acquire::Retries "0";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "once.conf"))
    codename = installs.codename_of(Path("/etc/os-release").read_text())
    entry = parse_sources(f"deb http://127.0.0.1:9/debian {codename} main", deb822=False)
    monkeypatch.setattr(installs, "machine_sources", lambda: entry)
    with pytest.raises(EnvironmentFailure) as err:
        install_debian()
    assert "http://127.0.0.1:9/debian" in err.value.message
    assert "network" in err.value.hint
    assert [path.name for path in toolchains_dir().iterdir()] == [".lock"]


def test_the_runtime_answers_under_both_names(runtime: Runtime) -> None:
    """With no card it counts none, or says 100: "no ROCm-capable device"."""
    for unversioned in (False, True):
        path = runtime.library(unversioned=unversioned)
        code = (
            f"import ctypes; lib = ctypes.CDLL({str(path)!r}); n = ctypes.c_int(-1); "
            "print(lib.hipGetDeviceCount(ctypes.byref(n)), n.value); "
            "print(*{line.split()[-1].rsplit('/', 1)[-1] for line in open('/proc/self/maps') if 'libamdhip64' in line})"
        )
        command = runtime.command(["-c", code], unversioned=unversioned)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        status, name = done.stdout.splitlines()
        assert status.split()[0] in ("0", "100")
        assert name == ("libamdhip64.so" if unversioned else runtime.soname)


def test_the_runtime_carries_two_names_of_one_library(runtime: Runtime) -> None:
    from rocmbuild.toolchain.elf import read_dynamic

    plain = read_dynamic(runtime.library(unversioned=True))
    named = read_dynamic(runtime.library())
    assert plain is not None
    assert named is not None
    assert (plain.soname, named.soname) == ("libamdhip64.so", runtime.soname)
    assert plain.needed == named.needed


INSTALL = "from rocmbuild.toolchain.install import install_debian; print(install_debian().prefix)"


@pytest.mark.slow
def test_a_fresh_install_once_for_two_processes_and_whole_after_kills(
    tmp_path: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_network()
    environ = {**os.environ, "ROCMBUILD_DATA_DIR": str(tmp_path)}
    for seconds in (0.7, 4, 9, 13):
        process = subprocess.Popen([sys.executable, "-c", INSTALL], env=environ, start_new_session=True, stdout=-1)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        found = entries(tmp_path / "toolchains")
        assert all(verify(entry) == () for entry in found)
    both = [
        subprocess.Popen([sys.executable, "-c", INSTALL], env=environ, stdout=-1, stderr=-1, text=True) for _ in "ab"
    ]
    said = [process.communicate(timeout=500) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len({out for out, _ in said}) == 1
    assert sum("installing debian-" in err for _, err in said) <= 1
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path))
    (entry,) = entries(toolchains_dir())
    assert verify(entry) == ()
    assert sorted(path.name for path in toolchains_dir().iterdir()) == [".lock", entry.name]
