"""The 32-lane host executor, by C++ programs that real compilers build, plain and sanitized."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support import ROOT, needs_torch_sdk, require

from rocmbuild.host import compile_flags, include_dir, link_flags, runtime_sources

SOURCES = ROOT / "tests" / "host"
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
DRIVER_FLAGS = ("-std=c++17", "-ldl")
NAMES = [
    name
    for path in sorted(SOURCES.glob("*.hip"))
    if path.name not in {"suite.hip", "file_scope.hip", "second.hip", "speed.hip"}
    for name in re.findall(r"^TEST\((\w+)\)", path.read_text(), re.MULTILINE)
]
TESTS = [name for name in NAMES if not name.startswith(("fault_", "print_"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A way to compile: with which compiler, with which flags."""

    name: str
    clang: bool
    flags: tuple[str, ...]

    @property
    def sanitized(self) -> bool:
        return "-fsanitize=address,undefined" in self.flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The suite as a library and the program that calls its functions."""

    config: Config
    driver: Path
    library: Path

    def run(self, *names: str, **env: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ROCMBUILD_HOST_")}
        return subprocess.run(
            [self.driver, self.library, *names],
            env=environ | env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


CONFIGS = {
    config.name: config
    for config in (
        Config(name="gnu", clang=False, flags=("-O2",)),
        Config(name="gnu-sanitized", clang=False, flags=("-O0", *SANITIZERS)),
        Config(name="clang", clang=True, flags=("-O2",)),
        Config(name="gnu-O0", clang=False, flags=("-O0",)),
        Config(name="gnu-O3-native", clang=False, flags=("-O3", "-march=native")),
        Config(name="gnu-sanitized-O1", clang=False, flags=("-O1", *SANITIZERS)),
        Config(name="clang-O0", clang=True, flags=("-O0",)),
        Config(name="clang-O3-native", clang=True, flags=("-O3", "-march=native")),
        Config(name="clang-sanitized", clang=True, flags=("-O1", *SANITIZERS)),
    )
}
FAST = ("gnu", "gnu-sanitized", "clang")
ALL_CONFIGS = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CONFIGS]


def gnu() -> str:
    return shutil.which("g++") or require("g++")


def compiler_of(config: Config, request: pytest.FixtureRequest) -> list[str]:
    if not config.clang:
        return [gnu()]
    clang = [str(request.getfixturevalue("toolchain").clang), *os.environ.get("ROCMBUILD_TEST_CLANG_FLAGS", "").split()]
    if config.sanitized:
        runtime = subprocess.run(
            [*clang, "-print-file-name=libclang_rt.asan-x86_64.a"], capture_output=True, text=True, check=True
        ).stdout.strip()
        beside = subprocess.run(
            [*clang, "-print-runtime-dir"], capture_output=True, text=True, check=True
        ).stdout.strip()
        if not Path(runtime).is_file() and not list(Path(beside).glob("libclang_rt.asan*.a")):
            require("clang's sanitizer runtime (libclang-rt)")
    return clang


def compile_library(compiler: list[str], config: Config, source: Path, output: Path, *flags: str) -> None:
    words = [*compiler, *compile_flags(clang=config.clang), *config.flags, *flags, "-Wall", "-Wextra", "-Werror"]
    words += [
        "-Wno-unused-parameter",
        *link_flags(),
        "-x",
        "c++",
        str(source),
        *map(str, runtime_sources()),
        "-o",
        str(output),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    made: dict[str, Built] = {}

    def make(name: str) -> Built:
        if name not in made:
            config = CONFIGS[name]
            folder = tmp_path_factory.mktemp(name)
            compiler = compiler_of(config, request)
            driver = folder / "driver"
            subprocess.run(
                [*compiler, *config.flags, str(SOURCES / "driver.cpp"), *DRIVER_FLAGS, "-o", str(driver)], check=True
            )
            compile_library(compiler, config, SOURCES / "suite.hip", folder / "suite.so")
            made[name] = Built(config=config, driver=driver, library=folder / "suite.so")
        return made[name]

    return make


@pytest.fixture(scope="session")
def plain(build: Callable[[str], Built]) -> Built:
    return build("gnu")


def test_the_names_are_found() -> None:
    assert len(TESTS) >= 35
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("config", ALL_CONFIGS)
def test_suite(config: str, build: Callable[[str], Built]) -> None:
    """Every test function of the suite, in one process."""
    done = build(config).run(*TESTS)
    failed = [line for line in done.stdout.splitlines() if not line.endswith(" 0")]
    assert (done.returncode, failed, done.stderr) == (0, [], "")
    assert len(done.stdout.splitlines()) == len(TESTS)


@pytest.mark.parametrize("config", ["gnu", pytest.param("gnu-sanitized", marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ["reverse", "1", "2", "18446744073709551615"])
@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_suite_in_any_order_on_any_number_of_threads(
    config: str, order: str, threads: str, build: Callable[[str], Built]
) -> None:
    done = build(config).run(*TESTS, ROCMBUILD_HOST_ORDER=order, ROCMBUILD_HOST_THREADS=threads)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_without_poison(plain: Built) -> None:
    names = [name for name in TESTS if name != "every_block_finds_poison"]
    done = plain.run(*names, ROCMBUILD_HOST_POISON="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert plain.run("every_block_finds_poison", ROCMBUILD_HOST_POISON="0").returncode == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("THREADS", "0"), ("THREADS", "many"), ("THREADS", "-1"), ("ORDER", "backwards"), ("POISON", "2")],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str, plain: Built) -> None:
    done = plain.run("launch_forms", **{f"ROCMBUILD_HOST_{name}": value})
    assert done.returncode == 0
    assert f"ROCMBUILD_HOST_{name}={value} is not a number" in done.stderr


# ---- what is wrong shows ----


def printed(built: Built, name: str, **env: str) -> list[float]:
    done = built.run(name, **env)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.splitlines()[0].split()]


def test_an_absent_barrier_reads_poison(plain: Built) -> None:
    """A kernel that stores, then loads its neighbour's element with no barrier between."""
    right = [63.0 - i for i in range(64)]
    for order in ("forward", "reverse", "3"):
        values = printed(plain, "print_no_barrier", ROCMBUILD_HOST_ORDER=order)
        assert values != right
        assert any(np.isnan(values)), order


def test_an_absent_barrier_at_the_end_of_a_loop_depends_on_the_order(plain: Built) -> None:
    right = [float(sum(63 - i + 100 * r for r in range(3))) for i in range(64)]
    forward = printed(plain, "print_no_barrier_after")
    reverse = printed(plain, "print_no_barrier_after", ROCMBUILD_HOST_ORDER="reverse")
    assert forward != reverse
    assert right not in (forward, reverse)


@pytest.mark.parametrize("config", ["gnu", "clang"])
def test_shared_memory_that_nobody_wrote_is_nan(config: str, build: Callable[[str], Built]) -> None:
    values = printed(build(config), "print_uninitialised")
    assert np.isnan(values).tolist() == ([False] * 16 + [True] * 16) * 2


FAULTS = {
    "some_have_ended": (
        r"divergent barrier: some lanes have ended",
        r"kernel some_have_ended, block \(\d,\d,0\) of grid \(2,3,1\), 64 x 1 x 1 threads",
        r"wave 1, lanes 0-7: wait at __syncthreads \(.*faults\.hip:\d+, in some_have_ended\)",
        r"wave 1, lanes 8-31: have ended",
    ),
    "one_branch_waits": (
        r"barriers of different kinds",
        r"lanes 0-7: wait at __syncthreads ",
        r"lanes 8-31: wait at __syncthreads_count ",
    ),
    "two_places": (
        r"lanes of one wave wait at different barriers",
        r"wave 1, lanes 0-7: .*:\d+",
        r"wave 1, lanes 8-31: ",
    ),
    "shuffle_in_a_branch": (
        r"lanes of a wave diverge",
        r"lanes 0-15: wait at __shfl_xor with mask 0xffffffff",
        r"lanes 16-31: wait at __syncthreads",
    ),
    "two_shuffles": (r"lanes of a wave diverge", r"lanes 0-15: wait at __shfl_xor", r"lanes 16-31: wait at __shfl_xor"),
    "outside_its_mask": (r"a lane calls __shfl with a mask that does not hold itself", r"mask 0x0000ffff"),
    "vote_at_a_barrier": (
        r"lanes of a wave diverge",
        r"lanes 0-2,4-31: wait at __any",
        r"lanes 3: wait at __syncthreads",
    ),
    "launches_itself": (r"a kernel launches a kernel \(outside_its_mask\)", r"kernel launches_itself<float>"),
    "asserts": (r"Assertion `int\(threadIdx\.x\) != n' failed",),
}


@pytest.mark.parametrize("config", ["gnu", "gnu-sanitized", "clang"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_divergent_kernel_ends_with_a_message(fault: str, config: str, build: Callable[[str], Built]) -> None:
    done = build(config).run(f"fault_{fault}")
    assert done.returncode == -signal.SIGABRT
    for pattern in FAULTS[fault]:
        assert re.search(pattern, done.stderr), done.stderr


def test_a_trap_ends_the_process(plain: Built) -> None:
    assert plain.run("fault_traps").returncode == -signal.SIGILL


def test_lanes_that_have_ended_may_be_taken_as_arrived(plain: Built) -> None:
    done = plain.run("fault_some_have_ended", ROCMBUILD_HOST_EXITED_LANES="allow")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("fault", ["too_deep", "far_past_dynamic"])
def test_guard_pages_stop_a_stack_and_shared_memory(fault: str, plain: Built) -> None:
    assert plain.run(f"fault_{fault}").returncode == -signal.SIGSEGV


MEMORY_FAULTS = {
    "too_deep": "stack-overflow",
    "past_dynamic": "use-after-poison",
    "past_a_buffer": "heap-buffer-overflow",
    "past_a_local": "stack-buffer-overflow|insufficient space",
    "misaligned": "misaligned address",
}


@pytest.mark.parametrize(
    "config",
    [
        "gnu-sanitized",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gnu-sanitized-O1", "clang-sanitized")),
    ],
)
@pytest.mark.parametrize("fault", MEMORY_FAULTS)
def test_sanitizers_see_memory_errors_in_lanes(fault: str, config: str, build: Callable[[str], Built]) -> None:
    done = build(config).run(f"fault_{fault}")
    assert done.returncode != 0
    assert re.search(MEMORY_FAULTS[fault], done.stderr), done.stderr
    assert re.search(r"faults\.hip|suite\.so", done.stderr)  # the latter where no symbolizer is at hand


# ---- conversions, over every value ----


@pytest.fixture(scope="session")
def numbers(plain: Built) -> ctypes.CDLL:
    return ctypes.CDLL(str(plain.library))


def convert(function: Callable[..., None], values: np.ndarray, *more: object) -> np.ndarray:
    values = np.ascontiguousarray(values)
    out = np.empty(values.size, np.uint16)
    function(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_long(values.size), *more)
    return out


def bfloat_of(values: np.ndarray) -> np.ndarray:
    """f64 -> bf16 to nearest even, by exact arithmetic on the spacing of bf16 at each value."""
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        exponent = np.floor(np.log2(np.abs(wide)))
        exponent = np.where(np.exp2(exponent) > np.abs(wide), exponent - 1, exponent)
        exponent = np.where(np.exp2(exponent + 1) <= np.abs(wide), exponent + 1, exponent)
        spacing = np.exp2(np.maximum(exponent, -126) - 7)
        near = np.where(wide == 0, wide, np.rint(wide / spacing) * spacing)
        near = np.where(np.isfinite(wide), near, wide)
        single = near.astype(np.float32)
    return (single.view(np.uint32) >> 16).astype(np.uint16)


def test_every_half_and_bfloat_as_float(numbers: ctypes.CDLL) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    numbers.all_halves(ctypes.c_void_p(out.ctypes.data))
    want = bits.view(np.float16).astype(np.float32)
    nan = np.isnan(want)
    assert np.array_equal(out.view(np.uint32)[~nan], want.view(np.uint32)[~nan])
    assert np.isnan(out[nan]).all()
    assert np.array_equal(np.signbit(out), np.signbit(want))
    numbers.all_bfloats(ctypes.c_void_p(out.ctypes.data))
    assert np.array_equal(out.view(np.uint32), bits.astype(np.uint32) << 16)


def interesting_floats() -> np.ndarray:
    """Every half and bfloat, the middles between neighbours and what lies just beside them, then random patterns."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    middles = (np.sort(halves)[1:] + np.sort(halves)[:-1]) / np.float32(2)
    bfloats = np.arange(65536, dtype=np.uint32) << 16
    around = [(bfloats + step).astype(np.uint32).view(np.float32) for step in (0, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    edges = np.array([65519.996, 65520, 65504, 65536, 2**-24, 2**-25, 2**-26, 3.4e38, 0.0, -0.0], np.float32)
    random = np.random.default_rng(7).integers(0, 2**32, 500_000, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        parts = [halves, middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))]
    return np.concatenate([*parts, *around, edges, -edges, random])


def assert_same_bits(got: np.ndarray, want: np.ndarray, values: np.ndarray, nan_above: int) -> None:
    """Equal but for the payload of a NaN, which must stay one, of its sign."""
    nan = np.isnan(values)
    wrong = np.flatnonzero(~nan & (got != want))
    assert wrong.size == 0, [(values[i], hex(got[i]), hex(want[i])) for i in wrong[:5]]
    assert ((got[nan] & 0x7FFF) > nan_above).all()
    assert np.array_equal(got[nan] >> 15, np.signbit(values[nan]).astype(np.uint16))


def test_floats_to_halves_and_bfloats(numbers: ctypes.CDLL) -> None:
    values = interesting_floats()
    with np.errstate(over="ignore", invalid="ignore"):
        want = values.astype(np.float16).view(np.uint16)
    assert_same_bits(convert(numbers.to_halves, values), want, values, 0x7C00)
    want = bfloat_of(values)
    assert_same_bits(convert(numbers.to_bfloats, values), want, values, 0x7F80)
    assert_same_bits(convert(numbers.to_old_bfloats, values), want, values, 0x7F80)


def test_floats_to_halves_in_other_directions(numbers: ctypes.CDLL) -> None:
    values = interesting_floats()
    values = values[np.isfinite(values)]
    for way in (-1, 0, 1):
        got = convert(numbers.to_halves_towards, values, ctypes.c_int(way)).view(np.float16)
        wide = got.astype(np.float64)
        exact = values.astype(np.float64)
        with np.errstate(all="ignore"):
            up, down = np.nextafter(got, np.float16(np.inf)), np.nextafter(got, np.float16(-np.inf))
        low = np.where(exact < 0, way >= 0, way > 0) if way == 0 else np.full(exact.shape, way > 0)
        assert (wide[low] >= exact[low]).all()
        assert (wide[~low] <= exact[~low]).all()
        assert (down.astype(np.float64)[low] < exact[low]).all()
        assert (up.astype(np.float64)[~low] > exact[~low]).all()


def test_doubles_are_rounded_once(numbers: ctypes.CDLL) -> None:
    """Halfway cases that a step through f32 would round to the wrong side."""
    base = interesting_floats()
    base = base[np.isfinite(base)].astype(np.float64)
    values = np.concatenate([base, base * (1 + 2.0**-40), base * (1 - 2.0**-40), np.nextafter(base, np.inf)])
    with np.errstate(over="ignore"):
        want = values.astype(np.float16).view(np.uint16)
    assert_same_bits(convert(numbers.doubles_to_halves, values), want, values, 0x7C00)
    assert_same_bits(convert(numbers.doubles_to_bfloats, values), bfloat_of(values), values, 0x7F80)


def is_nearest(got: np.float16, exact: Fraction) -> bool:
    """Whether no half is nearer, and at a tie the mantissa is even."""
    own = abs(Fraction(float(got)) - exact)
    with np.errstate(all="ignore"):
        beside = [np.nextafter(got, np.float16(np.inf)), np.nextafter(got, np.float16(-np.inf))]
    others = [abs(Fraction(float(other)) - exact) for other in beside if np.isfinite(other)]
    even = int(got.view(np.uint16)) % 2 == 0
    return all(own < other or (own == other and even) for other in others)


def test_half_arithmetic(numbers: ctypes.CDLL) -> None:
    rng = np.random.default_rng(11)
    a, b, c = (rng.integers(0, 65536, 400_000, dtype=np.uint16) for _ in range(3))
    x, y, z = (v.view(np.float16) for v in (a, b, c))
    with np.errstate(all="ignore"):
        # f64 holds each product exactly and nearly each sum; where rounding twice shows, exact arithmetic decides.
        fused = (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(np.float16)
        wants = [x + y, x - y, x * y, x / y, fused]
    for which, want in enumerate(wants):
        out = np.empty(a.size, np.uint16)
        numbers.half_arithmetic(
            *(ctypes.c_void_p(v.ctypes.data) for v in (a, b, c, out)), ctypes.c_long(a.size), ctypes.c_int(which)
        )
        got = out.view(np.float16)
        nan = np.isnan(want)
        assert np.array_equal(np.isnan(got), nan)
        wrong = np.flatnonzero(~nan & (out != want.view(np.uint16)))
        if which == 4:
            assert wrong.size < 100
            exact = [Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(z[i])) for i in wrong]
            wrong = np.array([i for i, value in zip(wrong, exact, strict=True) if not is_nearest(got[i], value)])
        assert wrong.size == 0, [(which, x[i], y[i], z[i], got[i], want[i]) for i in wrong[:5]]


@pytest.mark.slow
def test_every_float_against_the_processors_own_conversion(numbers: ctypes.CDLL) -> None:
    if "f16c" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("needs a processor with F16C")
    numbers.differs_from_f16c.restype = ctypes.c_long
    assert numbers.differs_from_f16c(ctypes.c_ulong(0), ctypes.c_ulong(2**32)) == 0


# ---- libraries ----


@pytest.mark.parametrize("config", ALL_CONFIGS)
def test_nothing_is_exported_but_the_entry_points(config: str, build: Callable[[str], Built]) -> None:
    nm = shutil.which("nm") or require("nm (binutils)")
    built = build(config)
    text = subprocess.run([nm, "-D", built.library], capture_output=True, text=True, check=True).stdout
    rows = [line.split()[-2:] for line in text.splitlines()]
    exported = {name for kind, name in rows if kind not in {"U", "w", "v"}}
    entries = set(NAMES) | set(re.findall(r"^EXPORT \w+ (\w+)\(", (SOURCES / "numbers.hip").read_text(), re.MULTILINE))
    sanitizers = {name for name in exported if re.match(r"__(start_|stop_|odr_)?(asan|ubsan)", name)}
    assert exported - sanitizers == entries
    if not built.config.sanitized:
        assert not sanitizers
    undefined = {name for kind, name in rows if kind == "U"}
    assert not {name for name in undefined if "hip" in name.lower() or "rocmbuild" in name}


def test_two_libraries_do_not_share_state(plain: Built, tmp_path: Path) -> None:
    """The same kernel and runtime names in two libraries of one process, also where the first is loaded globally."""
    second = tmp_path / "second.so"
    compile_library([gnu()], CONFIGS["gnu"], SOURCES / "second.hip", second)
    script = (
        "import ctypes, sys\n"
        "first = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)\n"
        "second = ctypes.CDLL(sys.argv[2])\n"
        "calls = [second.second_library, first.launch_forms, first.last_error_is_a_threads_own, "
        "second.second_library_again, first.atomics_from_many_blocks]\n"
        "sys.exit(sum(call() for call in calls))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, plain.library, second], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_dynamic_shared_memory_at_file_scope(plain: Built, tmp_path: Path) -> None:
    library = tmp_path / "file_scope.so"
    compile_library([gnu()], CONFIGS["gnu"], SOURCES / "file_scope.hip", library)
    built = Built(config=plain.config, driver=plain.driver, library=library)
    done = built.run("shared_memory_at_file_scope", ROCMBUILD_HOST_THREADS="4")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_headers_compile_alone_and_in_any_order(tmp_path: Path) -> None:
    """Each header by itself, then before and after the standard library, as C++17 and C++20."""
    headers = sorted(path.relative_to(include_dir()).as_posix() for path in include_dir().rglob("*.h"))
    assert "hip/hip_runtime.h" in headers
    for header in headers:
        (tmp_path / "alone.cpp").write_text(f"#include <{header}>\n")
        words = [gnu(), *compile_flags(), "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]
        done = subprocess.run([*words, str(tmp_path / "alone.cpp")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    standard_headers = ("algorithm", "cmath", "functional", "memory", "shared_mutex", "vector")
    library = "".join(f"#include <{header}>\n" for header in standard_headers)
    hip = "".join(f"#include <{header}>\n" for header in headers)
    use = "int main() { std::vector<float> v(3); return int(std::max(1, 0)) - max(1, 0) + int(std::sqrt(v[0])); }\n"
    for text in (library + hip, hip + library):
        (tmp_path / "both.cpp").write_text(text + use)
        for standard in ("c++17", "c++20"):
            words = [gnu(), *compile_flags(), f"-std={standard}", "-fsyntax-only", "-Wall", "-Werror", "-x", "c++"]
            done = subprocess.run([*words, str(tmp_path / "both.cpp")], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_speed(tmp_path: Path, plain: Built) -> None:
    """A lane that does not wait takes under 50 ns of one core, 20 million a second; the bounds suit busy machines."""
    library = tmp_path / "speed.so"
    compile_library([gnu()], CONFIGS["gnu"], SOURCES / "speed.hip", library)
    built = Built(config=plain.config, driver=plain.driver, library=library)
    lane, shuffle, barrier, launch = printed(built, "print_speed", ROCMBUILD_HOST_THREADS="1")
    assert lane < 50
    assert shuffle < 60
    assert barrier < 100
    assert launch < 50_000


# ---- a CUDA source, end to end ----


@needs_torch_sdk
@pytest.mark.parametrize("config", ["gnu", "clang"])
def test_a_cuda_source_is_hipified_and_runs(config: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk

    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(SOURCES / "scan.cu", project / "scan.cu")
    script = (
        "import importlib, sys\n"
        "from pathlib import Path\n"
        "engine, project = Path(sys.argv[1]), sys.argv[2]\n"
        "sys.path.insert(0, str(engine.parent))\n"
        "hipify = importlib.import_module(engine.name + '.hipify_python')\n"
        "hipify.hipify(project_directory=project, output_directory=project, includes=['*'], "
        "extra_files=[project + '/scan.cu'], is_pytorch_extension=True, hip_clang_launch=False)\n"
    )
    engine = find_torch_sdk().hipify
    done = subprocess.run([sys.executable, "-c", script, engine, project], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    hipified = project / "scan.hip"
    text = hipified.read_text()
    assert "hipLaunchKernelGGL((" in text
    assert "<<<" not in text
    assert "cuda" not in text.lower().replace("cuda source", "")

    library_path = tmp_path / "scan.so"
    compile_library(compiler_of(CONFIGS[config], request), CONFIGS[config], hipified, library_path)
    library = ctypes.CDLL(str(library_path))
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 777)).astype(np.float32)
    bfloats = (x.view(np.uint32) >> 16).astype(np.uint16)
    truncated = (bfloats.astype(np.uint32) << 16).view(np.float32)
    for kind, stored, exact in ((0, x, x), (1, x.astype(np.float16), x.astype(np.float16)), (2, bfloats, truncated)):
        out = np.empty(5, np.float32)
        code = library.norms(ctypes.c_void_p(stored.ctypes.data), ctypes.c_void_p(out.ctypes.data), 5, 777, kind)
        assert code == 0
        want = np.sqrt((exact.astype(np.float64) ** 2).sum(axis=1))
        np.testing.assert_allclose(out, want, rtol=1e-6)  # 777 additions in f32, most of them in a tree
    out = np.empty(5, np.float32)
    assert library.norms(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), 0, 777, 0) == 9
    numbers = rng.integers(-1000, 1000, 640, dtype=np.int32)
    sums = np.empty(640, np.int32)
    assert library.prefixes(ctypes.c_void_p(numbers.ctypes.data), ctypes.c_void_p(sums.ctypes.data), 640) == 0
    assert np.array_equal(sums.reshape(-1, 32), np.cumsum(numbers.reshape(-1, 32), axis=1))


def test_flags() -> None:
    assert "-fno-gnu-unique" in compile_flags()
    assert "-fno-gnu-unique" not in compile_flags(clang=True)
    assert {path.suffix for path in runtime_sources()} == {".cpp"}
    assert all(path.is_file() for path in runtime_sources())
    assert (include_dir() / "hip" / "hip_runtime.h").is_file()
