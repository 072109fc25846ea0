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
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from support import needs_torch_here, require

from rocmbuild.build import loader
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
    return find_runtime() or require("AMD's HIP runtime (rocmbuild toolchain install runtime)")


@pytest.fixture(scope="session")
def tiny(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package folder: tiny_rocm.so, for two targets and not linked against HIP, and the loader."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    folder.mkdir()
    (folder / "tiny.hip").write_text(DEVICE)
    words = [
        "-x",
        "hip",
        "tiny.hip",
        "-c",
        "-o",
        "tiny.o",
        "-O3",
        "-fPIC",
        "-fvisibility=hidden",
        "-mno-wavefrontsize64",
    ]
    words += [*(f"--offload-arch={target}" for target in TARGETS), *toolchain.compile_flags()]
    subprocess.run([os.fspath(toolchain.clang), *words], cwd=folder, check=True)
    compiler = shutil.which("g++") or require("a C++ compiler")
    subprocess.run([compiler, "-shared", "-o", "tiny_rocm.so", "tiny.o", "-Wl,-z,now"], cwd=folder, check=True)
    shutil.copy(loader.__file__, folder / "_rocmbuild_loader.py")
    return folder


def python(runtime: Runtime, script: str, *options: str, unversioned: bool = False, path: Path | None = None) -> Any:
    """Run a script that prints one JSON value, with the runtime within reach; a crash, also at exit, fails the test."""
    place = f"import sys; sys.path.insert(0, {os.fspath(path)!r})\n" if path else ""
    argv = runtime.command([*options, "-c", place + PRELUDE + script], unversioned=unversioned)
    hidden = {**os.environ, "HIP_VISIBLE_DEVICES": "-1"}  # a machine with a card answers like one without
    done = subprocess.run(argv, capture_output=True, text=True, env=hidden, check=False)
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
    assert (code, count, text) == (NO_DEVICE, 0, "no ROCm-capable device is detected")


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


def needed_by(path: Path) -> list[str]:
    with path.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        return [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]


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


# --- The GGUF kernels' own wheel --------------------------------------------------------------------------------------

GGUF = f"""
sys.path.insert(0, {os.fspath(Path(__file__).parent / "kernels")!r})
from native import DequantizeParams, MoeVecParams, MulMatVecParams, NativeError, NativeLibrary

memory = ctypes.create_string_buffer(1 << 16)
place = (ctypes.addressof(memory) + 15) // 16 * 16

def calls(type, dtype):
    "One good call of each launch function: 4 rows of 32 elements, one vector."
    names = ("weight", "x", "ids", "out", "scratch")
    sizes = dict(scratch_bytes=4096, x_stride=32, rows=4, cols=32, type=type, dtype=dtype)
    at = dict.fromkeys(names, place)
    moe = MoeVecParams(**at, **sizes, experts=1, tokens=1, top_k=1, ids_bits=32)
    del at["ids"]
    return {{
        "gguf_dequantize": DequantizeParams(weight=place, out=place, block_end=4, type=type, out_dtype=dtype),
        "gguf_mul_mat_vec_a8": MulMatVecParams(**at, **sizes, vectors=1),
        "gguf_moe_a8_vec": moe,
    }}

def call(library, name, params):
    try: library.call(name, params)
    except NativeError as err: return [err.code, str(err)]
    return [0, ""]
"""

LOAD_GGUF = """
import torch
torch.version.hip = "0"  # all that the loader asks; the rest of this torch is the machine's own
hip = ctypes.CDLL({runtime!r})
import gguf_kernels
from gguf_kernels.lib import _rocmbuild_loader as loader
report = loader.load("gguf").require()
rocm, host = (NativeLibrary(Path(report.loaded[platform])) for platform in ("rocm", "host"))
"""


@pytest.fixture(scope="session")
def gguf(toolchain: Toolchain, _torch_sdk_here: None, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of kernels/ for two targets, unpacked: on CI that of the quickstart, which is of this very tree."""
    out = tmp_path_factory.mktemp("gguf")
    wheels = list((root / "dist").glob("gguf_kernels-*.whl")) if os.environ.get("CI") else []
    if not wheels:
        argv = [sys.executable, "-m", "rocmbuild", "build", os.fspath(root / "kernels"), "-o", os.fspath(out)]
        argv += ["--targets", ",".join(TARGETS), "--platforms", "rocm,host"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        wheels = list(out.glob("*.whl"))
    (wheel,) = wheels
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "site")
    return out / "site"


@needs_torch_here
@EITHER_NAME
def test_every_launch_function_of_the_kernels_says_that_there_is_no_card(
    runtime: Runtime, gguf: Path, unversioned: bool
) -> None:
    library = runtime.library(unversioned=unversioned)
    script = (
        GGUF
        + LOAD_GGUF.format(runtime=os.fspath(library))
        + """
answers = [[name, type, dtype, *call(rocm, name, params)]
           for type in (2, 8) for dtype in (0, 1, 30) for name, params in calls(type, dtype).items()]
print(json.dumps([answers, list(report.targets), report.runtime, copies()]))
"""
    )
    answers, targets, bound, mapped = python(runtime, script, unversioned=unversioned, path=gguf)
    assert len(answers) == 2 * 3 * 3
    for name, _, _, code, text in answers:
        assert code == 3, text  # GGUF_LAUNCH_FAILED
        assert text.startswith(name.replace("gguf_", "ggml_") + ": launching the "), text
        assert text.endswith(" failed: no ROCm-capable device is detected (error 100)"), text
        assert "\n" not in text
    assert sorted(targets) == sorted(TARGETS)
    assert Path(bound) == library.resolve()
    assert mapped == [str(library.resolve())]


def test_the_device_library_names_torch_and_no_runtime(gguf: Path) -> None:
    needed = needed_by(gguf / "gguf_kernels/lib/gguf_rocm.so")
    assert "libtorch.so" in needed
    assert not [name for name in needed if "hip" in name or "torch_" in name or name.startswith("libhsa")]


@needs_torch_here
def test_a_bad_argument_is_named_before_the_card_is_missed(runtime: Runtime, gguf: Path) -> None:
    script = (
        GGUF
        + LOAD_GGUF.format(runtime=os.fspath(runtime.library()))
        + """
answers = [call(rocm, name, params) for name, params in calls(99, 0).items()]
answers += [call(rocm, name, params) for name, params in calls(8, 7).items()]
print(json.dumps(answers))
"""
    )
    answers = python(runtime, script, path=gguf)
    assert [code for code, _ in answers] == [2, 2, 2, 1, 1, 1]
    assert all("type 99 is no GGUF type" in text for _, text in answers[:3])
    assert all("dtype is 7; wanted: 0 (F32), 1 (F16) or 30 (BF16)" in text for _, text in answers[3:])


@needs_torch_here
def test_the_host_library_computes_beside_the_real_runtime(runtime: Runtime, gguf: Path) -> None:
    """The runtime's symbols are global by then: the host library must go on calling its own stand-ins for them."""
    script = (
        GGUF
        + LOAD_GGUF.format(runtime=os.fspath(runtime.library()))
        + """
import struct
block = struct.pack("<e32b", 0.5, *range(-16, 16))  # one block of Q8_0: d, then 32 q
weight, out = ctypes.create_string_buffer(block, 34), (ctypes.c_float * 32)()
params = DequantizeParams(ctypes.addressof(weight), ctypes.addressof(out), 0, 1, 8, 0, None)
print(json.dumps([call(host, "gguf_dequantize", params), list(out), call(rocm, "gguf_dequantize", params)[0]]))
"""
    )
    answer, values, on_card = python(runtime, script, path=gguf)
    assert answer == [0, ""]
    assert values == [q / 2 for q in range(-16, 16)]
    assert on_card == 3
