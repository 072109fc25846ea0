"""What the checks find, where, and what they leave alone."""

from __future__ import annotations

import pytest
from support import needs_torch_sdk

from rocmbuild.staging import checks, convert, findings, layout, tables
from rocmbuild.staging.convert import Engine
from rocmbuild.staging.facts import Facts, Macros
from rocmbuild.toolchain.torch_sdk import find_torch_sdk

pytestmark = needs_torch_sdk


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tables.load_engine(str(find_torch_sdk().hipify))


def check(
    engine: Engine, files: dict[str, str], allow: tuple[str, ...] = (), defines: dict[str, str] | None = None
) -> tuple[list[tuple[str, int, int, str, str]], dict[str, int]]:
    """(path, line, column, rule, severity) of each finding, and the leftovers of each file."""
    resolve = convert.resolving(layout.Resolver(layout.outputs_of(files), ["include"]), engine)
    done = {path: convert.convert(text, path, engine, resolve) for path, text in files.items()}

    def facts(path: str, macros: Macros | None = None) -> Facts:
        one = done[path]
        return checks.examine(
            path,
            files[path],
            one.text,
            masked=None if macros else one.masked,
            shift=one.shift,
            problems=one.problems,
            includes=one.includes,
            defines=defines,
            macros=macros,
        )

    current, _ = findings.settle({path: facts(path) for path in files}, facts)
    found, leftovers = findings.combine(current, allow=allow, defines=defines or ())
    assert all(finding.message and finding.hint and finding.rule in findings.RULES for finding in found)
    return [(f.path, f.line, f.column, f.rule, f.severity) for f in found], dict(leftovers)


def rules(engine: Engine, text: str, path: str = "a.cu") -> list[tuple[int, int, str, str]]:
    return [found[1:] for found in check(engine, {path: text})[0]]


def test_a_call_without_a_twin_is_left_over_and_told(engine: Engine) -> None:
    text = (
        "cudaMalloc(&p, 1);\n  cudaFree(p); cudaGraphConditionalHandleCreate(&h, g, 0, 0);\n// cudaGraphConditionalX\n"
    )
    assert rules(engine, text) == [(2, 16, "leftover", "error")]
    assert check(engine, {"a.cu": text}, allow=("cudaGraphConditionalHandleCreate",)) == ([], {"a.cu": 1})


def test_names_of_the_project_itself_are_no_cuda_names(engine: Engine) -> None:
    own = """
#define cudaMine(x) x
static inline void cuFillAll(float* p) {}
struct cudaThing { int cuCount = 0; };
template <typename T> T cuRound(T x);
void f(cudaThing& cuRef, const cudaThing *cuPointer, int cudaDepth[3]);
void g() { cudaMine(1); cuFillAll(0); cuRound<int>(2); auto cudaLocal = 1; cudaLocal + cuCount; cuRef, cuPointer; }
"""
    assert rules(engine, own) == []
    used = (
        "int x = flags & cudaFlagUnknown; return cudaCallUnknown(x);\n#define C cudaMacroUnknown(1)\na > cuOther(2);\n"
    )
    assert [found[2] for found in rules(engine, used)] == ["leftover"] * 4
    # a name that only begins like one
    assert rules(engine, "int cumsum, cur, custom, cubic, current, nvals, cuda, cu; cumsum = cuda;") == []


@pytest.mark.parametrize(
    "mask",
    [
        "0xffffffff",
        "0xFFFFFFFFu",
        "-1",
        "~0u",
        "0",
        "(unsigned)-1",
        "MASK",
        "kMask",
        "local",
        "(0xffffffff)",
        "037777777777",
    ],
)
def test_a_shuffle_mask_of_32_bits_is_told(engine: Engine, mask: str) -> None:
    text = (
        "#define MASK 0xffffffffu\nconstexpr unsigned kMask = 0xffffffff;\n"
        f"__device__ int f(int v) {{ unsigned local = __activemask();\n  return __shfl_xor_sync({mask}, v, 16);\n}}\n"
    )
    assert rules(engine, text) == [(4, 10, "shuffle-mask", "error")]


@pytest.mark.parametrize(
    "mask",
    [
        "0xffffffffull",
        "0xffffffffUL",
        "~0ull",
        "-1ll",
        "MASK",
        "kMask",
        "local",
        "0xffffffffffffffff",
        "Traits::mask",
        "lane_mask()",
    ],
)
def test_a_mask_of_64_bits_or_of_unknown_width_is_not(engine: Engine, mask: str) -> None:
    text = (
        "#ifdef USE_ROCM\n#define MASK 0xffffffffffffffffull\n#else\n#define MASK 0xffffffff\n#endif\n"
        "constexpr unsigned long long kMask = 0xffffffff;\n"
        f"__device__ int f(int v) {{ auto local = __activemask();\n  return __shfl_xor_sync({mask}, v, 16);\n}}\n"
    )
    assert rules(engine, text) == []


def test_a_wrapper_of_the_project_takes_any_mask(engine: Engine) -> None:
    text = "#define __shfl_xor_sync(mask, v, lanes) __shfl_xor(v, lanes)\n__shfl_xor_sync(0xffffffff, v, 16);\n"
    assert rules(engine, text) == []
    assert (
        check(engine, {"a.cu": "__shfl_sync(-1, v, 1);\n", "b.h": "#define __shfl_sync(m, v, l) __shfl(v, l)\n"})[0]
        == []
    )


@pytest.mark.parametrize(("kind", "bad"), [("const unsigned", True), ("uint32_t", True), ("unsigned long long", False)])
def test_an_overload_of_a_shuffle_calls_the_shuffle(engine: Engine, kind: str, bad: bool) -> None:
    """As torch-scatter 2.1.2 and torch-sparse 0.6.18 have it: the call in the overload cannot mean the overload."""
    text = f"""__device__ Half __shfl_up_sync({kind} mask, Half v, int d) {{
  if (d) {{ v = v + v; }}
  return __shfl_up_sync(mask, v.operator __half(), d);
}}
__device__ Half f(Half v) {{ return __shfl_up_sync(0xffffffff, v, 1); }}
"""
    assert rules(engine, text) == ([(3, 10, "shuffle-overload", "error")] if bad else [])


def test_waves_of_64_lanes_are_told(engine: Engine) -> None:
    text = """#define WARP_SIZE 64
constexpr int kWaveSize = 64;
enum { warp_size = 64 };
constexpr int a = warpSize;
__shared__ float tile[warpSize];
int wave = threadIdx.x >> 6; int lane = (threadIdx.x) % 64;
f<warpSize>();
"""
    assert rules(engine, text) == [
        (1, 9, "wave-size", "error"),
        (2, 15, "wave-size", "error"),
        (3, 8, "wave-size", "error"),
        (4, 19, "warp-size-constant", "error"),
        (5, 23, "warp-size-constant", "error"),
        (6, 24, "lane-arithmetic", "warning"),
        (6, 55, "lane-arithmetic", "warning"),
        (7, 3, "warp-size-constant", "error"),
    ]
    fine = (
        "#define WARP_SIZE 32\nx[threadIdx.x / warpSize] = f(a, warpSize, b); for (i = 0; i < warpSize; ++i) n = 64;\n"
    )
    assert rules(engine, fine) == []


def test_operators_that_hip_s_vector_types_have_are_told_once_a_file(engine: Engine) -> None:
    """As CUDA's samples define them in helper_math.h: the compiler finds both and calls each use ambiguous."""
    text = """inline __host__ __device__ float3 operator*(float3 a, float3 b) { return a; }
inline __device__ void operator+=(const float4 &a, const float4& b) {}
"""
    assert rules(engine, text) == [(1, 35, "vector-operator", "warning")]
    fine = """float3 operator*(float a, float3 b);
float3 operator*(float3 a, float2 b);
my_float3 operator*(my_float3 a, my_float3 b);
#ifndef USE_ROCM
float3 operator-(float3 a, float3 b);
#endif
float3 mul(float3 a, float3 b) { return a * b; }
"""
    assert rules(engine, fine) == []


def test_inline_ptx_is_told_and_other_assembly_is_not(engine: Engine) -> None:
    assert rules(engine, 'void f() {\n  asm volatile("mov.u32 %0, %laneid;" : "=r"(x));\n}\n') == [
        (2, 3, "inline-ptx", "error")
    ]
    assert rules(engine, '__device__ void f() { asm("trap;"); }', "a.h") == [(1, 23, "inline-ptx", "error")]
    # another processor's, on the host
    assert (
        rules(engine, 'void f() { asm volatile("cpuid" : "=a"(a)); asm("b.eq 1f; fmla v0.4s, v1.4s"); }', "a.cpp") == []
    )
    fine = 'asm volatile("" ::: "memory"); asm("v_dot4_i32_iu8 %0, %1, %2, %3" : "=v"(x)); /* asm("mov") */ int asm_x;'
    assert rules(engine, fine) == []


def test_includes_that_lead_nowhere_are_told(engine: Engine) -> None:
    text = (
        '#include <cutlass/gemm.h>\n#include "gone.cuh"\n#include "here.cuh"\n#include <vector>\n#include "torch.h"\n'
    )
    assert check(engine, {"a.cu": text, "here.cuh": ""})[0] == [
        ("a.cu", 1, 10, "cuda-include", "error"),
        ("a.cu", 2, 10, "include", "error"),
    ]
    assert check(engine, {"a.cu": text.replace("gone", "here"), "here.cuh": ""}, allow=("cutlass/gemm.h",))[0] == []


def test_dead_branches_are_not_checked(engine: Engine) -> None:
    bad = 'asm("mov.u32 %0, %1;"); cudaNoTwin(); __shfl_sync(-1, x, 0);\n#include <cutlass/x.h>\nbad(1)<<<2>>>(3);\n'
    for condition in [
        "#ifndef USE_ROCM",
        "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700",
        "#if __CUDA_ARCH__ >= 700 || 0",
        "#if !defined(MINE_HIP) && __CUDA_ARCH__ >= MINE_TURING",
        "#if !defined(__HIP_PLATFORM_AMD__) && UNKNOWN",
        "#ifdef __NVCC__",
        "#if ROCMBUILD_PLATFORM_CUDA",
        "#if 0",
        "#ifdef USE_ROCM\n#elif UNKNOWN",
        "#ifdef __HIPCC__\n#else",
        "#if UNKNOWN\n#elif 1\n#else",
        "#ifdef __CUDA_ARCH__\n#define MINE\n#endif\n#ifdef MINE",
        "#if 0\n#if 1\n#endif",
        "#  if defined __CUDA_ARCH__ \\\n && 1",
    ]:
        assert rules(engine, f"{condition}\n{bad}#endif\n", "a.cuh") == [], condition
    for condition in [
        "#ifdef USE_ROCM",
        "#if UNKNOWN",
        "#if UNKNOWN\n#else",
        "#ifndef __CUDA_ARCH__",
        "#if f(1)",
        "#if 1 +",
    ]:
        found = {rule for _, _, rule, _ in rules(engine, f"{condition}\n{bad}#endif\n", "a.cuh")}
        assert found == {"inline-ptx", "leftover", "shuffle-mask", "cuda-include", "launch"}, condition


def test_conditions_themselves_name_what_they_want(engine: Engine) -> None:
    assert rules(engine, '#if defined(cudaFooBar) && cudaX\n#endif\n#pragma cudaY\n#error "cudaZ" cudaZ\n') == []


def test_launches_that_could_not_be_converted_are_findings(engine: Engine) -> None:
    assert rules(engine, "void f() {\n  k<<<CONFIG>>>(p);\n}\n") == [(2, 4, "launch", "error")]
    assert rules(engine, "extern __shared__ float s[][32];") == [(1, 8, "dynamic-shared", "warning")]


def test_names_that_end_in_no_word_begin_others(engine: Engine) -> None:
    assert rules(engine, "cub::DoubleBuffer<int> b; nvcuda::wmma::x();") == [(1, 27, "leftover", "error")]


def test_constants_are_left_over_too_and_includes_told_once(engine: Engine) -> None:
    text = "#include <cudaTypedefs.h>\nint a = CU_TENSOR_MAP_SWIZZLE_NONE + CUBLAS_NO_SUCH_MODE + CU_OURS;\n"
    text += "#define CU_OURS 1\n"
    assert rules(engine, text) == [
        (1, 10, "cuda-include", "error"),
        (2, 9, "leftover", "error"),
        (2, 38, "leftover", "error"),
    ]


def test_types_that_the_tree_defines_are_its_own(engine: Engine) -> None:
    header = "typedef struct { int x; } cudaTmaThing;\nusing __nv_own = int;\n"
    assert check(engine, {"a.h": header, "b.cu": '#include "a.h"\ncudaTmaThing t; __nv_own o;\n'})[0] == []


def test_a_header_that_only_dead_code_includes_is_not_checked(engine: Engine) -> None:
    bad = "inline void bad() { cudaNoTwin(); }\n#define FROM_CUDA\n"
    main = '#ifdef USE_ROCM\n#else\n#include "cuda_only.h"\n#endif\n#ifdef FROM_CUDA\ncudaNoTwin2();\n#endif\n'
    files = {"main.cu": main, "cuda_only.h": '#include "deeper.h"\n', "deeper.h": bad}
    assert check(engine, files) == ([], {})
    # but one that nobody includes is: who knows who uses it
    assert [found[0] for found in check(engine, {**files, "cuda_only.h": ""})[0]] == ["deeper.h", "main.cu"]
    # and where a macro names an include, every file may be meant
    files["other.cu"] = "#include WHICH\n"
    assert [found[::3] for found in check(engine, files)[0]] == [
        ("deeper.h", "leftover"), ("main.cu", "leftover"), ("other.cu", "include-computed"),
    ]  # fmt: skip


def test_a_well_known_macro_that_the_tree_defines_is_not_known(engine: Engine) -> None:
    used = "#if __CUDA_ARCH__ >= 700\ncudaNoTwin();\n#endif\n"
    assert check(engine, {"a.cu": used})[0] == []
    vendor = "#ifdef __HIP_PLATFORM_AMD__\n#define __CUDA_ARCH__ 1300\n#endif\n"
    assert len(check(engine, {"a.cu": '#include "v.h"\n' + used, "v.h": vendor})[0]) == 1
    dead = "#ifdef __NVCC__\n#define __CUDA_ARCH__ 1300\n#endif\n"
    assert check(engine, {"a.cu": '#include "v.h"\n' + used, "v.h": dead})[0] == []


def test_macros_of_the_build_decide(engine: Engine) -> None:
    text = "#if OURS\n#else\ncudaNoTwin();\n#endif\n#if LEVEL < 3\ncudaNoTwin();\n#endif\n"
    text += "#if NAMED == 1\ncudaOdd();\n#endif\n"
    defines = {"OURS": "1", "LEVEL": "0x3", "NAMED": "word", "cudaGiven": ""}
    assert [found[1] for found in check(engine, {"a.cu": text + "cudaGiven x;\n"}, defines=defines)[0]] == [9]
    # a macro of the build is defined, whatever the tree's dead code says
    both = "#ifdef __NVCC__\n#define OURS 1\n#endif\n#ifdef OURS\ncudaNoTwin();\n#endif\n"
    assert len(check(engine, {"a.cu": both}, defines=defines)[0]) == 1
    assert check(engine, {"a.cu": both})[0] == []


def test_a_mask_that_another_file_defines(engine: Engine) -> None:
    use = '#include "m.h"\n__device__ int f(int v) { return __shfl_sync(kMask, v, 0); }\n'
    for definition, told in [
        ("constexpr unsigned kMask = 0xffffffff;\n", True),
        ("static constexpr uint32_t kMask{0xffffffffu};\n", True),
        ("#define kMask 0xffffffff\n", True),
        ("constexpr unsigned long long kMask = 0xffffffff;\n", False),
        ("constexpr auto kMask = all();\n", False),
        ("#define kMask (all_lanes())\n", False),
        ("#ifdef USE_ROCM\n#define kMask 0xffffffffull\n#else\n#define kMask 0xffffffffu\n#endif\n", False),
        ("#ifdef OTHER\n#define kMask 0xffffffffull\n#else\n#define kMask 0xffffffffu\n#endif\n", False),
        ("", False),
    ]:
        found = check(engine, {"a.cu": use, "m.h": definition})[0]
        assert [one[3] for one in found] == ["shuffle-mask"] * told, definition


def test_a_function_of_the_projects_own_takes_any_mask(engine: Engine) -> None:
    own = "template <typename T> __device__ T __shfl_sync(unsigned mask, T v, int lane);\n"
    assert check(engine, {"a.cu": '#include "own.h"\nx = __shfl_sync(0xffffffff, v, 1);\n', "own.h": own})[0] == []
    assert check(engine, {"a.cu": "#define __shfl_sync shuffle\n__shfl_sync(0xffffffff, v, 1);\n"})[0] == []


def test_headers_of_torch_are_not_the_projects(engine: Engine) -> None:
    text = '#include "ATen/cuda/detail/IndexUtils.cuh"\n#include "c10/util/x.cuh"\n#include "torch/x.cuh"\n'
    assert [found[2] for found in rules(engine, text)] == []


def test_a_string_that_conversion_would_rewrite_is_told(engine: Engine) -> None:
    """The guard itself: the converter never does it, so its table is given a name that leads into a literal."""
    from rocmbuild.staging.convert import _changed_literals
    from rocmbuild.staging.text import mask

    before, after = 'int a;\nf("cudaMalloc"); g(\'"\');', 'int a;\nf("hipMalloc"); g(\'"\');'
    [problem] = _changed_literals(before, mask(before), after, mask(after))
    assert (problem.line, problem.column, problem.rule) == (2, 4, "string-literal")
    assert "'cudaMalloc' to 'hipMalloc'" in problem.detail
    assert _changed_literals(before, mask(before), before, mask(before)) == []
    assert len(_changed_literals(before, mask(before), "int a;", "int a;")) == 1
    include = '#include "a.cu"\nf("x");', '#include "a.hip"\nf("x");'
    assert _changed_literals(include[0], mask(include[0]), include[1], mask(include[1])) == []


def test_every_rule_says_what_to_do() -> None:
    for name, rule in findings.RULES.items():
        assert name == name.lower()
        assert rule.severity in ("error", "warning")
        assert rule.summary[0].isupper()
        assert not rule.summary.endswith(".")
        assert rule.hint
        findings.finding("a.cu", name, name="n", detail="d")
