"""Device libraries against AMD's own HIP runtime, on a machine that need not have a card.

The runtime finds no card and says so: what a library does then is its own answer, and what is shown here is that the
unlinked library binds to the one runtime of the process, under each kind of name that runtimes have, registers its code
and fails cleanly. Everything runs in processes of its own, under a newer C library where the machine's is too old.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import require

from rocmbuild.build import loader
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.toolchain.discover import find_toolchain
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.runtime import Runtime, find_runtime

pytestmark = pytest.mark.slow

TARGETS = ("gfx1100", "gfx1201")
NO_DEVICE = 100  # hipErrorNoDevice
EITHER_NAME = pytest.mark.parametrize("unversioned", [False, True], ids=["versioned", "unversioned"])

DEVICE = """
#include <hip/hip_runtime.h>
__global__ void scale(float* values, int count, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= factor;
}
#define EXPORT extern "C" __attribute__((visibility("protected")))
EXPORT int tiny_scale(float* values, int count, float factor, const char** text) {
  hipLaunchKernelGGL(scale, dim3((count + 255) / 256), dim3(256), 0, 0, values, count, factor);
  const hipError_t code = hipGetLastError();
  *text = hipGetErrorString(code);
  return code;
}
"""

PRELUDE = """
import ctypes, json, os, sys
from pathlib import Path

def copies():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(None, 5)[5] for line in lines if "libamdhip64" in line})
"""


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    return find_runtime() or require("AMD's HIP runtime: rocmbuild.toolchain.runtime.install_runtime()")


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    try:
        return find_toolchain(spec=None, environ={})
    except EnvironmentFailure:
        require("a ROCm toolchain: rocmbuild toolchain install")


@pytest.fixture(scope="session")
def tiny(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package folder: tiny_rocm.so, for two targets and not linked against HIP, and the loader."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    folder.mkdir()
    (folder / "tiny.hip").write_text(DEVICE)
    compile_argv = [
        toolchain.clang,
        "-x",
        "hip",
        "tiny.hip",
        "-c",
        "-o",
        "tiny.o",
        "-O3",
        "-fPIC",
        "-fvisibility=hidden",
    ]
    compile_argv += [f"--offload-arch={target}" for target in TARGETS]
    compile_argv += ["-mno-wavefrontsize64", *toolchain.compile_flags()]
    subprocess.run([*map(os.fspath, compile_argv)], cwd=folder, check=True)
    compiler = shutil.which("g++") or require("a C++ compiler")
    subprocess.run([compiler, "-shared", "-o", "tiny_rocm.so", "tiny.o", "-Wl,-z,now"], cwd=folder, check=True)
    shutil.copy(loader.__file__, folder / "_rocmbuild_loader.py")
    return folder


def python(runtime: Runtime, script: str, *options: str, unversioned: bool = False, path: Path | None = None) -> Any:
    """Run a script that prints one JSON value, with the runtime within reach; a crash, also at exit, fails the test."""
    place = f"import sys; sys.path.insert(0, {os.fspath(path)!r})\n" if path else ""
    argv = runtime.command([*options, "-c", place + PRELUDE + script], unversioned=unversioned)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def test_the_runtime_is_amds_and_finds_no_card(runtime: Runtime) -> None:
    script = f"""
hip = ctypes.CDLL({os.fspath(runtime.library())!r})
hip.hipGetErrorString.restype = ctypes.c_char_p
version, count = ctypes.c_int(), ctypes.c_int(-1)
codes = [hip.hipRuntimeGetVersion(ctypes.byref(version)), hip.hipGetDeviceCount(ctypes.byref(count))]
print(json.dumps([codes[1], count.value, hip.hipGetErrorString(codes[1]).decode()]))
"""
    code, count, text = python(runtime, script, "-S")
    if code == 0 and count > 0:
        pytest.skip("this machine has a card; what follows is about machines without one")
    assert (code, text) == (NO_DEVICE, "no ROCm-capable device is detected")


def test_a_device_library_alone_is_refused_by_the_linker(runtime: Runtime, tiny: Path) -> None:
    script = f"""
try: ctypes.CDLL({os.fspath(tiny / "tiny_rocm.so")!r})
except OSError as err: print(json.dumps(str(err)))
"""
    message = python(runtime, script, "-S")
    assert "undefined symbol: " in message
    assert "hip" in message.split("undefined symbol: ")[1]
    report = python(
        runtime,
        "from tiny import _rocmbuild_loader as l; r = l.load('tiny'); print(json.dumps(dict(r.refused)))",
        "-S",
        path=tiny.parent,
    )
    assert "no HIP runtime" in report["rocm"]


def test_it_needs_no_runtime_by_name(toolchain: Toolchain, tiny: Path) -> None:
    from elftools.elf.elffile import ELFFile

    with (tiny / "tiny_rocm.so").open("rb") as file:
        needed = [tag.needed for tag in ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert not [name for name in needed if "hip" in name or "amd" in name]


@EITHER_NAME
def test_bound_to_the_runtime_a_launch_answers_with_one_clear_error(
    runtime: Runtime, tiny: Path, unversioned: bool
) -> None:
    library = runtime.library(unversioned=unversioned)
    script = f"""
from tiny import _rocmbuild_loader as loader
ctypes.CDLL({os.fspath(library)!r})
report = loader.load("tiny").require()
tiny, text = ctypes.CDLL(report.loaded["rocm"]), ctypes.c_char_p()
values = (ctypes.c_float * 4)(1, 2, 3, 4)
codes = [tiny.tiny_scale(values, 4, ctypes.c_float(2), ctypes.byref(text)) for _ in range(2)]
print(json.dumps([codes, text.value.decode(), list(values), report.runtime, list(report.hints), copies()]))
"""
    codes, text, values, bound, hints, mapped = python(runtime, script, "-S", unversioned=unversioned, path=tiny.parent)
    assert codes == [NO_DEVICE, NO_DEVICE]
    assert text == "no ROCm-capable device is detected"
    assert values == [1, 2, 3, 4]
    assert Path(bound) == library.resolve()
    assert mapped == [str(library.resolve())]  # no second copy came in
    assert hints == []


def test_two_copies_of_the_real_runtime_are_named(runtime: Runtime, tiny: Path) -> None:
    script = f"""
from tiny import _rocmbuild_loader as loader
import warnings
warnings.simplefilter("ignore")
for name in ({os.fspath(runtime.library())!r}, {os.fspath(runtime.library(unversioned=True))!r}): ctypes.CDLL(name)
report = loader.load("tiny").require()
text = ctypes.c_char_p()
code = ctypes.CDLL(report.loaded["rocm"]).tiny_scale(None, 4, ctypes.c_float(2), ctypes.byref(text))
print(json.dumps([code, list(report.hints), copies()]))
"""
    code, hints, mapped = python(runtime, script, "-S", path=tiny.parent)
    assert len(mapped) == 2
    assert code == NO_DEVICE
    assert len(hints) == 1
    assert all(path in hints[0] for path in mapped)
