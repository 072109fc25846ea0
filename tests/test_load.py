"""rocmbuild.load: built at the first use, shared by processes, never stuck behind a killed one, run on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import needs_torch_sdk

import rocmbuild
from rocmbuild.errors import InputError
from rocmbuild.jit import _platforms, _root

pytestmark = pytest.mark.needs_torch

KERNEL = """#include <cuda_runtime.h>
#include "factor.h"
__global__ void scale_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = FACTOR * x[i] + __shfl_xor_sync(0xffffffffffffffffull, x[i], 1);
}
void scale_launch(const float* x, float* y, int n) { scale_kernel<<<(n + 31) / 32, 32>>>(x, y, n); }
"""
MODULE = """#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <vector>
void scale_launch(const float* x, float* y, int n);
static PyObject* scale(PyObject*, PyObject* args) {
    int n;
    if (!PyArg_ParseTuple(args, "i", &n)) return nullptr;
    std::vector<float> x(n), y(n);
    for (int i = 0; i < n; ++i) x[i] = float(i);
    scale_launch(x.data(), y.data(), n);
    PyObject* list = PyList_New(n);
    for (int i = 0; i < n; ++i) PyList_SetItem(list, i, PyFloat_FromDouble(y[i]));
    return list;
}
static PyMethodDef methods[] = {{"scale", scale, METH_VARARGS, ""}, {nullptr, nullptr, 0, nullptr}};
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, TEXT(TORCH_EXTENSION_NAME), "", -1, methods};
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
PyMODINIT_FUNC JOIN(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""
OPERATORS = """#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
void scale_launch(const float* x, float* y, int n);
using torch::stable::Tensor;
static Tensor scale(const Tensor& x) {
    Tensor y = torch::stable::empty_like(x);
    scale_launch(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), int(x.numel()));
    return y;
}
STABLE_TORCH_LIBRARY(rocmbuild_load_test, m) { m.def("scale(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(rocmbuild_load_test, CPU, m) { m.impl("scale", TORCH_BOX(&scale)); }
"""
SCRIPT = """
import sys, rocmbuild
module = rocmbuild.load("scale", sys.argv[1:])
print(module.scale(4), module.__file__)
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A module of one kernel, and a compiler that writes down each of its compilations."""
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "scale.cu").write_text(KERNEL)
    (folder / "factor.h").write_text("#define FACTOR 2.0f\n")
    (folder / "module.cpp").write_text(MODULE)
    compiler = tmp_path / "g++-told"
    compiler.write_text(
        f'#!/bin/sh\nlog={tmp_path}\ncase " $* " in\n'
        '*" -c "*) echo "$*" >> "$log/compiled"; [ -e "$log/slow" ] && sleep 3 ;;\n'
        'esac\nexec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return [folder / "module.cpp", folder / "scale.cu"]


def start(sources: list[Path]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *map(str, sources)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> list[float]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    values: list[float] = json.loads(out[: out.index("]") + 1])
    return values


def compiled(sources: list[Path]) -> list[str]:
    """The sources that were compiled since it was last asked."""
    log = sources[0].parent.parent / "compiled"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    names = [word for line in lines for word in line.split() if word.endswith((".cpp", ".hip")) and "/" in word]
    return sorted(Path(name).name for name in names)


EXECUTOR = ["api.cpp", "executor.cpp"]


def test_the_import_costs_nothing() -> None:
    code = "import sys, rocmbuild; print([name for name in sys.modules if name.startswith('rocmbuild')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rocmbuild']"
    with pytest.raises(AttributeError, match="laod"):
        _ = rocmbuild.laod  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "a.b"}, ["'a.b'", "identifier"]),
        ({"is_standalone": True}, ["is_standalone"]),
        ({"with_sycl": True}, ["SYCL"]),
        ({"keep_intermediates": False}, ["keep_intermediates"]),
        ({"sources": []}, ["sources: found none"]),
        ({"sources": ["absent.cu"]}, ["absent.cu: no such file"]),
        ({"platforms": ["hots"]}, ["did you mean host?"]),
        ({"platforms": ["rocm"]}, ["can load host"]),
        ({"with_cuda": True}, ["CPU build"]),
        ({"extra_cuda_cflags": ["--offload-arch=gfx90a"]}, ["sets a target"]),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, object], words: list[str]) -> None:
    (tmp_path / "a.cpp").write_text("")
    arguments: dict[str, object] = {"name": "a", "sources": [tmp_path / "a.cpp"], **given}
    with pytest.raises(InputError) as caught:
        rocmbuild.load(**arguments)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)


def test_the_platform_is_that_of_torch() -> None:
    class Torch:
        __version__ = "2.13.0"

        def __init__(self, hip: str | None, cuda: str | None) -> None:
            self.version = type("version", (), {"hip": hip, "cuda": cuda})

    assert _platforms(None, Torch("7.2", None), None) == ("rocm",)
    assert _platforms(None, Torch(None, "13.0"), True) == ("cuda",)
    assert _platforms(None, Torch("7.2", None), False) == ("host",)
    assert _platforms(["rocm", "host"], Torch("7.2", None), None) == ("rocm", "host")


def test_include_folders_near_the_sources_are_staged(tmp_path: Path) -> None:
    for name in ("p/csrc", "p/include", "q"):
        (tmp_path / name).mkdir(parents=True)
    source, near, far = tmp_path / "p/csrc/a.cu", tmp_path / "p/include", tmp_path / "q"
    assert _root([source], [near, far]) == (tmp_path / "p", [near], [far])
    assert _root([source], [far]) == (tmp_path / "p/csrc", [], [far])


@pytest.mark.slow
@needs_torch_sdk
def test_what_changed_is_built_again_and_nothing_else(sources: list[Path]) -> None:
    assert ended(start(sources)) == [1.0, 2.0, 7.0, 8.0]
    assert compiled(sources) == [*EXECUTOR, "module.cpp", "scale.hip"]
    assert ended(start(sources)) == [1.0, 2.0, 7.0, 8.0]
    assert compiled(sources) == []
    (sources[0].parent / "factor.h").write_text("#define FACTOR 3.0f\n")
    assert ended(start(sources)) == [1.0, 3.0, 9.0, 11.0]
    assert compiled(sources) == ["scale.hip"]
    sources[1].write_text(KERNEL.replace("FACTOR *", "1.0f + FACTOR *"))
    assert ended(start(sources)) == [2.0, 4.0, 10.0, 12.0]
    assert compiled(sources) == ["scale.hip"]


@pytest.mark.slow
@needs_torch_sdk
def test_processes_that_ask_at_once_share_one_build(sources: list[Path]) -> None:
    ranks = [start(sources) for _ in range(4)]
    assert [ended(rank) for rank in ranks] == [[1.0, 2.0, 7.0, 8.0]] * 4
    assert compiled(sources) == [*EXECUTOR, "module.cpp", "scale.hip"]


@pytest.mark.slow
@needs_torch_sdk
def test_a_killed_builder_holds_nobody_up(sources: list[Path]) -> None:
    """Killed while its compilers run; these end by themselves, and only then does the next one build."""
    slow, log = (sources[0].parent.parent / name for name in ("slow", "compiled"))
    slow.touch()
    first = start(sources)
    until = time.monotonic() + 120
    while not log.exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    slow.unlink()
    assert log.exists()
    begin = time.monotonic()
    assert ended(start(sources)) == [1.0, 2.0, 7.0, 8.0]
    assert time.monotonic() - begin < 120
    assert (sources[0].parent.parent / "cache").exists()


@pytest.mark.slow
@needs_torch_sdk
def test_operators_serve_torch_and_are_taken_in_once(sources: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.delenv("CXX")
    operators = sources[0].with_name("operators.cpp")
    operators.write_text(OPERATORS)
    files = [operators, sources[1]]
    path = rocmbuild.load("rocmbuild_load_test", files, is_python_module=False)
    assert Path(path).name == "rocmbuild_load_test_host.so"
    result = torch.ops.rocmbuild_load_test.scale(torch.arange(4.0))
    assert result.tolist() == [1.0, 2.0, 7.0, 8.0]
    assert rocmbuild.load("rocmbuild_load_test", files, is_python_module=False) == path
    (sources[0].parent / "factor.h").write_text("#define FACTOR 3.0f\n")
    with pytest.raises(InputError, match="start a new process"):
        rocmbuild.load("rocmbuild_load_test", files, is_python_module=False)


@pytest.mark.slow
@needs_torch_sdk
def test_a_module_with_torch_s_headers_computes_on_tensors(
    sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way scripts are written for torch's own load: ATen in both files, tensors as arguments."""
    import torch

    monkeypatch.delenv("CXX")
    folder = sources[0].parent
    (folder / "kernel.cu").write_text(
        '#include <torch/all.h>\n#include "factor.h"\n'
        "template <typename T> __global__ void half_kernel(const T* x, T* y, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = x[i] / T(FACTOR);\n}\n"
        "torch::Tensor half(torch::Tensor x) {\n    auto y = torch::empty_like(x);\n    int n = x.numel();\n"
        '    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "half", ([&] {\n'
        "        half_kernel<scalar_t><<<(n + 31) / 32, 32>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);\n"
        "    }));\n    return y;\n}\n"
    )
    (folder / "bind.cpp").write_text(
        "#include <torch/extension.h>\ntorch::Tensor half(torch::Tensor x);\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("half", &half); }\n'
    )
    module = rocmbuild.load("halves", [folder / "bind.cpp", folder / "kernel.cu"], extra_cuda_cflags=["-O3"])
    assert module.half(torch.arange(3.0, dtype=torch.float64)).tolist() == [0.0, 0.5, 1.0]
