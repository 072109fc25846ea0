"""The conversion of one file: every row of the list of sources that plain hipify gets wrong, and the engine itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import needs_torch_sdk

from rocmbuild.staging import convert as conversion
from rocmbuild.staging import layout, tables, text
from rocmbuild.staging.convert import Conversion, Engine
from rocmbuild.toolchain.torch_sdk import find_torch_sdk

pytestmark = needs_torch_sdk

HEADER = '#include "hip/hip_runtime.h"\n#line 1\n'


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tables.load_engine(str(find_torch_sdk().hipify))


def convert(engine: Engine, source: str, path: str = "a.cuh", tree: tuple[str, ...] = ()) -> Conversion:
    resolve = conversion.resolving(layout.Resolver(layout.outputs_of([path, *tree]), [".", "include"]), engine)
    return conversion.convert(source, path, engine, resolve)


def body(engine: Engine, source: str) -> str:
    return convert(engine, source).text.removeprefix(HEADER)


LAUNCHES = [
    ("k<<<1, 32>>>(p);", "hipLaunchKernelGGL((k), dim3(1), dim3(32), 0, 0, p);"),
    (";k<(N>1)><<<1, 1>>>(p);", ";hipLaunchKernelGGL((k<(N>1)>), dim3(1), dim3(1), 0, 0, p);"),
    ("(*fp)<<<1, 32>>>(p);", "hipLaunchKernelGGL(((*fp)), dim3(1), dim3(32), 0, 0, p);"),
    ("if (x) (*fp)<<<1,2>>>(p);", "if (x) hipLaunchKernelGGL(((*fp)), dim3(1), dim3(2), 0, 0, p);"),
    ("else k<<<g,b,n,s>>>(p);", "else hipLaunchKernelGGL((k), dim3(g), dim3(b), n, s, p);"),
    ("k<int, (3<4)><<<g, dim3(2, 3), f<int, 3>(4), s>>>(a<b, c);",
     "hipLaunchKernelGGL((k<int, (3<4)>), dim3(g), dim3(dim3(2, 3)), (f<int, 3>(4)), s, a<b, c);"),
    ("a.b->template k<T>[3]<<<1, 2>>>(p)", "hipLaunchKernelGGL((a.b->template k<T>[3]), dim3(1), dim3(2), 0, 0, p)"),
    ("::ns::k<A<B<3>>, 4><<<{1, 2}, x, 0, st<1, 2>::v>>>(z)",
     "hipLaunchKernelGGL((::ns::k<A<B<3>>, 4>), dim3({1, 2}), dim3(x), 0, (st<1, 2>::v), z)"),
    ("return ::k<<<1, 2>>>(p);", "return hipLaunchKernelGGL((::k), dim3(1), dim3(2), 0, 0, p);"),
    ("k<1<<3><<<1, 2>>>()", "hipLaunchKernelGGL((k<1<<3>), dim3(1), dim3(2), 0, 0)"),
    ("fs[i](3)<<<1, 2>>>(p)", "hipLaunchKernelGGL((fs[i](3)), dim3(1), dim3(2), 0, 0, p)"),
    ("get<int>(a)<<<1, 2>>>( )", "hipLaunchKernelGGL((get<int>(a)), dim3(1), dim3(2), 0, 0 )"),
    ("k<<<1, 2, f<int>>>>(p)", "hipLaunchKernelGGL((k), dim3(1), dim3(2), f<int>, 0, p)"),
    ("k<<<1>>2, 3>>>(p)", "hipLaunchKernelGGL((k), dim3(1>>2), dim3(3), 0, 0, p)"),
    ("k<<<1, a<b>>>(p)", "hipLaunchKernelGGL((k), dim3(1), dim3(a<b), 0, 0, p)"),
    ("Foo<T>::k<<<1, 2>>>(p)", "hipLaunchKernelGGL((Foo<T>::k), dim3(1), dim3(2), 0, 0, p)"),
    ("#define L(n) n##_k<T> \\\n <<<a, \\\n b>>> (x)",
     "#define L(n) hipLaunchKernelGGL((n##_k<T>) \\\n , dim3(a), \\\n dim3(b), 0, 0, x)"),
    ("k<<<a /* g */, // grid, of blocks\n b // block\n>>>(p)",
     "hipLaunchKernelGGL((k), dim3(a) /* g */, // grid, of blocks\n dim3(b) // block\n, 0, 0, p)"),
    ("f<<<1,2>>>(p); g<<<3, 4>>>(q);",
     "hipLaunchKernelGGL((f), dim3(1), dim3(2), 0, 0, p); hipLaunchKernelGGL((g), dim3(3), dim3(4), 0, 0, q);"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "wanted"), LAUNCHES)
def test_a_launch_is_parsed_whatever_its_kernel(engine: Engine, source: str, wanted: str) -> None:
    done = convert(engine, source)
    assert done.text == HEADER + wanted
    assert done.launches == wanted.count("hipLaunchKernelGGL")
    assert done.problems == []


@pytest.mark.parametrize(
    ("source", "line", "column", "reason"),
    [
        ("\nx;\n  k<N<4><<<1, 2>>>(p)", 3, 9, "ambiguous"),
        ("k<<<CFG>>>(p)", 1, 2, "1 part"),
        ("k<<<1, 2, 3, 4, 5>>>(p)", 1, 2, "5 parts"),
        ("k<<<1, >>>(p)", 1, 2, "part 2 of its configuration is empty"),
        ("k<<<1, 2(p);", 1, 2, ">>> is missing"),
        ("k<<<1, 2>>>;", 1, 2, "arguments are missing"),
        ("x = <<<1, 2>>>(p);", 1, 5, "name is not found"),
    ],
)
def test_a_launch_that_cannot_be_told_is_an_error_at_its_line(
    engine: Engine, source: str, line: int, column: int, reason: str
) -> None:
    done = convert(engine, source)
    assert done.text == source
    [problem] = done.problems
    assert (problem.line, problem.column, problem.rule) == (line, column, "launch")
    assert reason in problem.detail


def test_every_spelling_of_an_include_is_rewritten(engine: Engine) -> None:
    source = (
        '#include "b.cu"\n# include "b.cu"\n#include  "b.cu"\n\t#\tinclude\t<x.cu> // "b.cu"\n'
        '#include "b.cuh"\n#/* */include <cuda_runtime.h>\n#include  <cuda.h>\n#include "../b.cu"\n'
    )
    done = convert(engine, source, "src/a.cuh", ("src/b.cu", "src/b.cuh", "b.cu", "include/x.cu"))
    assert done.text == (
        '#include "b.hip"\n# include "b.hip"\n#include  "b.hip"\n\t#\tinclude\t<x.hip> // "b.cu"\n'
        '#include "b.cuh"\n#/* */include <hip/hip_runtime.h>\n#include  <hip/hip_runtime.h>\n#include "../b.hip"\n'
    )
    assert [include.kind for include in done.includes] == ["staged"] * 5 + ["other"] * 2 + ["staged"]


def test_headers_of_libraries_follow_the_tables_and_never_twice(engine: Engine) -> None:
    source = "#include <nccl.h>\n#include <cub/cub.cuh>\n#include <hip/channel_descriptor.h>\n#include <vector>\n"
    wanted = (
        "#include <rccl/rccl.h>\n#include <hipcub/hipcub.hpp>\n#include <hip/channel_descriptor.h>\n#include <vector>\n"
    )
    assert body(engine, source) == wanted
    assert body(engine, wanted) == wanted


def test_a_source_that_names_a_file_as_plain_hipify_would_call_it_still_finds_it(engine: Engine) -> None:
    done = convert(engine, '#include "b_hip.cuh"\n#include "../src_hip/c_hip.cuh"\n', "src/a.cuh",
                   ("src/b.cuh", "src_cuda/c_cuda.cuh"))  # fmt: skip
    assert done.text == '#include "b.cuh"\n#include "../src_cuda/c_cuda.cuh"\n'


def test_only_code_is_changed(engine: Engine) -> None:
    source = (
        "const char* s = \"cudaMalloc failed\"; char c = '\"'; int n = 1'000'000;\n"
        'cudaMalloc(&p, \'x\'); // cudaFree\n/* cudaFree k<<<1,2>>>(p) */ R"x(cudaFree " )" )x"; cudaFree(p);\n'
        "// a comment \\\n cudaFree goes on\ncudaFree(q);"
    )
    wanted = source.replace("cudaMalloc(&p", "hipMalloc(&p").replace("cudaFree(p)", "hipFree(p)")
    assert body(engine, source) == wanted.replace("cudaFree(q)", "hipFree(q)")


def test_names_at_the_edges_of_a_file_and_of_the_tables(engine: Engine) -> None:
    assert body(engine, "cudaError_t") == "hipError_t"
    assert (
        body(engine, "cub::BlockReduce<cudaError_t> my_cudaError_t") == "hipcub::BlockReduce<hipError_t> my_cudaError_t"
    )
    # torch's table has `cub::` for all of it, and torch's own driver never matches that
    assert body(engine, "cub::DoubleBuffer<int> a; my_cub::B b;") == "hipcub::DoubleBuffer<int> a; my_cub::B b;"
    # rules for one company's tree would rename these
    for source in ("namespace mixed_utils {}", "HIP_CHECK(x)", "struct GpuDefs;"):
        assert body(engine, source) == source


def test_line_ends_mark_and_missing_newline_are_kept(engine: Engine) -> None:
    source = "\ufeff// a\r\ncudaFree(p);\r\n__global__ void k() {}"
    done = convert(engine, source)
    assert done.text == (
        '\ufeff#include "hip/hip_runtime.h"\r\n#line 1\r\n// a\r\nhipFree(p);\r\n__global__ void k() {}'
    )
    assert done.shift == 2


def test_any_byte_comes_back(engine: Engine) -> None:
    data = "// caf\xe9 ".encode("latin-1") + bytes(range(1, 256)).replace(b"\n", b"") + b"\ncudaFree(p);\n"
    done = convert(engine, text.decode(data))
    assert text.encode(done.text) == data.replace(b"cudaFree(p)", b"hipFree(p)")


SHARED = [
    ("extern __shared__ float s[];", "HIP_DYNAMIC_SHARED(float, s);"),
    ("extern __shared__ __align__(16) unsigned char s[];", "HIP_DYNAMIC_SHARED(__align__(16) unsigned char, s);"),
    ("extern __align__(16) __shared__ T s[];", "HIP_DYNAMIC_SHARED(__align__(16) T, s);"),
    ("__shared__ extern T s[];", "HIP_DYNAMIC_SHARED(T, s);"),
    ("alignas(16) extern __shared__ float4 s[];", "HIP_DYNAMIC_SHARED(__align__(16) float4, s);"),
    ("extern __shared__ alignas(alignof(T)) T s[ ];", "HIP_DYNAMIC_SHARED(__align__(alignof(T)) T, s);"),
    ("extern __shared__ __attribute__((aligned(16))) T s[];", "HIP_DYNAMIC_SHARED(__attribute__((aligned(16))) T, s);"),
    ("extern __shared__ std::pair<int, int> s[];", "HIP_DYNAMIC_SHARED(__typeof__(std::pair<int, int>), s);"),
    ("extern __shared__ typename A<T>::B* s[];", "HIP_DYNAMIC_SHARED(typename A<T>::B*, s);"),
    ("extern \\\n __shared__ \\\n float\\\n s[];", "HIP_DYNAMIC_SHARED(\\\n \\\n float,\\\n s);"),
    ("__shared__ alignas(16) float s[3];", "alignas(16) __shared__ float s[3];"),
    ("static __shared__ alignas(sizeof(X)) T s;", "alignas(sizeof(X)) static __shared__ T s;"),
    ("__shared__ __align__(16) float s[3];", "__shared__ __align__(16) float s[3];"),
    ("__shared__ float s[3];", "__shared__ float s[3];"),
]


@pytest.mark.parametrize(("source", "wanted"), SHARED)
def test_shared_memory_takes_the_form_that_every_platform_compiles(engine: Engine, source: str, wanted: str) -> None:
    assert convert(engine, source).text == HEADER + wanted
    assert convert(engine, HEADER + wanted).text == HEADER + wanted  # stable


def test_lines_keep_their_numbers(engine: Engine) -> None:
    source = "\n".join(pair[0] for pair in [*LAUNCHES, *SHARED]) + "\nint last;\n"
    done = convert(engine, source)
    assert done.text.removeprefix(HEADER).split("\n").index("int last;") == source.split("\n").index("int last;")


def test_a_cu_file_gets_the_runtime_header_that_nvcc_would_add(engine: Engine) -> None:
    assert convert(engine, "__device__ int f();\n", "a.cu").text == HEADER + "__device__ int f();\n"
    assert convert(engine, "__device__ int f();\n", "a.cuh").text == "__device__ int f();\n"
    there = "#include <cuda_runtime.h>\n__global__ void k();\n"
    assert convert(engine, there, "a.cu").text == there.replace("cuda_runtime.h", "hip/hip_runtime.h")


def test_outputs_never_collide() -> None:
    outputs = layout.outputs_of(["a.cu", "a.hip", "b/a.cu", "c_cuda/a.cuh", "a_hip.hip"])
    assert outputs == {
        "a.cu": "a_hip_hip.hip",
        "a.hip": "a.hip",
        "a_hip.hip": "a_hip.hip",
        "b/a.cu": "b/a.hip",
        "c_cuda/a.cuh": "c_cuda/a.cuh",
    }


def test_tables_of_the_first_layout_are_read(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "constants.py").write_text("API_CAFFE2 = 1\nAPI_SPECIAL = 2\nAPI_RUNTIME = 3\n")
    (tmp_path / "cuda_to_hip_mappings.py").write_text(
        "from .constants import *\nCUDA_TO_HIP_MAPPINGS = ["
        "{'cudaA': ('hipA', API_RUNTIME), 'cuB': ('rocB', 0)}, "
        "{'cuB': ('hipB', API_SPECIAL), 'cuC': ('hipC', API_CAFFE2)}]\n"
    )
    assert tables.load_engine(str(tmp_path)).names == {"cudaA": "hipA", "cuB": "rocB"}


ORIGINAL = """
import importlib.util, json, sys, types
folder, tree = sys.argv[1:]
package = types.ModuleType("engine"); package.__path__ = [folder]; sys.modules["engine"] = package
hipify = importlib.import_module("engine.hipify_python")
done = hipify.hipify(tree, output_directory=tree, includes=[tree + "/*"], extra_files=[], show_detailed=False,
                     header_include_dirs=["csrc"], is_pytorch_extension=True, show_progress=False)
print(json.dumps({name: result.hipified_path for name, result in done.items()}))
"""


def test_the_result_is_the_engines_own_where_that_is_right(engine: Engine, root: Path, tmp_path: Path) -> None:
    """The kernels' tree, by the engine's whole driver and by ours: the same code, but for names of files and std::."""
    tree = tmp_path / "tree"
    shutil.copytree(root / "kernels" / "csrc", tree / "csrc")
    folder = find_torch_sdk().hipify
    ran = subprocess.run(
        [sys.executable, "-I", "-c", ORIGINAL, folder, tree], check=True, capture_output=True, text=True, cwd=tree
    )
    theirs = json.loads(ran.stdout)
    names = [str(path.relative_to(root / "kernels")) for path in sorted((root / "kernels" / "csrc").rglob("*.*"))]
    outputs = layout.outputs_of(names)
    resolve = conversion.resolving(layout.Resolver(outputs, ["csrc"]), engine)

    def plain(code: str) -> str:
        code = re.sub(r"#\s*include.*|#line 1\n", "", text.flatten(text.mask(code)))
        return re.sub(r"\s+|\bstd(?=::(?:max|min|ceil|floor|exp|log|pow|fabs|fmod|remainder|frexp)\()", "", code)

    compared = launches = 0
    for name in names:
        source = (root / "kernels" / name).read_text()
        ours = conversion.convert(source, name, engine, resolve)
        launches += ours.launches
        their_path = theirs.get(str(tree / name))
        if their_path is None:
            continue
        compared += 1
        twin = conversion.convert(Path(their_path).read_text(), name, engine, lambda _, include, __: (include, ""))
        assert plain(ours.text) == plain(twin.text), name
    assert compared >= 10
    assert launches >= 4
