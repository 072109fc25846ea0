"""Memory: nothing outside of a buffer is touched, nothing of a result is left unwritten, offsets have 64 bits."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import oracle
import pytest
import torch
from cases import FORMATS, NMSE_F32, block_of, fit
from native import DTYPES, TYPES, DequantizeParams, MoeVecParams, MulMatVecParams, NativeError, NativeLibrary, guarded
from packages import csrc_folder, formats_of, trimmed_copy
from test_products import activations, assert_close, rng_of

by_format = pytest.mark.parametrize("type_name", FORMATS)
POISON = 0xFF  # bytes of NaN in float32, float16 and bfloat16


def poisoned(*shape: int) -> np.ndarray:
    return np.full(shape, POISON, dtype=np.uint8)


def at(address: int, like: np.ndarray) -> np.ndarray:
    """What lies at an address, in the dtype and shape of an array."""
    return np.frombuffer(ctypes.string_at(address, like.nbytes), dtype=like.dtype).reshape(like.shape)


# --- guard pages ------------------------------------------------------------------------------------------------------


@by_format
@pytest.mark.parametrize(
    ("rows", "cols", "vectors"), [(1, 32, 1), (3, 96, 1), (127, 32, 2), (129, 160, 3), (5, 1056, 8), (2, 1024, 9)]
)
def test_products_stay_inside_exact_buffers(
    bare: NativeLibrary, type_name: str, rows: int, cols: int, vectors: int
) -> None:
    """Trap 5: every buffer ends where a forbidden page begins, and the result was poisoned."""
    cols = fit(type_name, cols)
    rng = rng_of(type_name, rows, cols)
    weight = oracle.random_blocks(rng, type_name, rows, cols)
    x = rng.standard_normal((vectors, cols)).astype(np.float32)
    out = poisoned(vectors, rows, 4)
    scratch = poisoned(bare.activation_bytes(vectors, cols))
    scratch = np.resize(scratch, -(-scratch.size // 16) * 16)
    with guarded(weight, x, out, scratch) as (w_at, x_at, out_at, scratch_at):
        params = MulMatVecParams(
            weight=w_at,
            x=x_at,
            out=out_at,
            scratch=scratch_at,
            scratch_bytes=scratch.nbytes,
            x_stride=cols,
            vectors=vectors,
            rows=rows,
            cols=cols,
            type=TYPES[type_name],
            dtype=DTYPES["float32"],
            stream=None,
        )
        bare.call("gguf_mul_mat_vec_a8", params)
        found = at(out_at, np.empty((vectors, rows), dtype=np.float32))
    assert_close(torch.from_numpy(found.copy()), oracle.mat_vec(weight, type_name, x), "float32")


@by_format
@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
def test_routed_products_write_every_row(bare: NativeLibrary, type_name: str, ids_dtype: type) -> None:
    """Trap 1: rows of skipped experts are zeros, not what was there before; the weights are guarded on both sides."""
    rng = rng_of(type_name)
    experts, rows, cols, tokens, top_k = 3, 7, fit(type_name, 96), 4, 2
    weight = oracle.random_blocks(rng, type_name, experts, rows, cols)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    ids = np.array([[0, -1], [-1, -1], [2, 3], [1, 2**31 - 1]], dtype=ids_dtype)
    out = poisoned(tokens * top_k, rows, 4)
    scratch = np.resize(poisoned(1), -(-bare.activation_bytes(tokens, cols) // 16) * 16)
    with guarded(weight, x, ids, out, scratch) as (w_at, x_at, ids_at, out_at, scratch_at):
        params = MoeVecParams(
            weight=w_at,
            x=x_at,
            ids=ids_at,
            out=out_at,
            scratch=scratch_at,
            scratch_bytes=scratch.nbytes,
            x_stride=cols,
            experts=experts,
            tokens=tokens,
            top_k=top_k,
            rows=rows,
            cols=cols,
            ids_bits=ids.itemsize * 8,
            type=TYPES[type_name],
            dtype=DTYPES["float32"],
            stream=None,
        )
        bare.call("gguf_moe_a8_vec", params)
        found = at(out_at, np.empty((tokens * top_k, rows), dtype=np.float32))
    wanted = oracle.moe_vec(x, weight, ids, top_k, type_name)
    assert np.array_equal(found == 0, wanted == 0)
    assert oracle.nmse(found, wanted) <= NMSE_F32


@by_format
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dequantize_stays_inside_exact_buffers(bare: NativeLibrary, type_name: str, dtype: str) -> None:
    rng = rng_of(type_name)
    block = block_of(type_name)
    for blocks in (1, 3, 65):
        weight = oracle.random_blocks(rng, type_name, 1, block * blocks)
        size = 4 if dtype == "float32" else 2
        with guarded(weight, poisoned(block * blocks, size)) as (w_at, out_at):
            params = DequantizeParams(
                weight=w_at,
                out=out_at,
                block_begin=0,
                block_end=blocks,
                type=TYPES[type_name],
                out_dtype=DTYPES[dtype],
                stream=None,
            )
            bare.call("gguf_dequantize", params)
            raw = bytearray(ctypes.string_at(out_at, block * blocks * size))
            found = torch.frombuffer(raw, dtype=getattr(torch, dtype))
        assert torch.equal(found, torch.from_numpy(oracle.dequantize(weight, type_name)[0]).to(found.dtype))


@by_format
def test_dequantize_writes_its_range_of_blocks_only(bare: NativeLibrary, type_name: str) -> None:
    block = block_of(type_name)
    weight = oracle.random_blocks(rng_of(type_name), type_name, 1, block * 9)
    out = np.full(block * 9, np.nan, dtype=np.float32)
    with guarded(weight, out) as (w_at, out_at):
        params = DequantizeParams(
            weight=w_at, out=out_at, block_begin=3, block_end=7, type=TYPES[type_name], out_dtype=0, stream=None
        )
        bare.call("gguf_dequantize", params)
        found = at(out_at, out)
    wanted = oracle.dequantize(weight, type_name)[0]
    begin, end = 3 * block, 7 * block
    assert np.array_equal(found[begin:end], wanted[begin:end])
    assert np.isnan(found[:begin]).all() and np.isnan(found[end:]).all()


# --- 64-bit offsets ---------------------------------------------------------------------------------------------------


class Sparse:
    """Gigabytes of zeros that no memory stands behind, until written."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python names from 3.13 on
        self._area = mmap.mmap(-1, size, flags=flags)
        self.tensor = torch.frombuffer(self._area, dtype=torch.uint8)


@by_format
def test_experts_past_2_to_the_31_bytes(kernels: ModuleType, type_name: str) -> None:
    """Trap 3: small experts, since one is computed whole; what counts is where the last one lies."""
    rows, cols = 2, fit(type_name, 32)
    size = oracle.row_bytes(type_name, cols)
    experts = 2**32 // (rows * size) + 10
    weight = Sparse(experts * rows * size).tensor.reshape(experts, rows, size)
    some = torch.from_numpy(oracle.random_blocks(rng_of(type_name), type_name, 3, rows, cols))
    ids = torch.tensor([[0, experts - 1, experts - 2]])
    weight[ids[0]] = some
    x, values = activations(rng_of(type_name), 1, cols, "float32")
    found = kernels.ggml_moe_a8_vec(x, weight, ids, 3, type_name, rows, 1)
    assert_close(found, oracle.moe_vec(values, some.numpy(), np.array([[0, 1, 2]]), 3, type_name), "float32")


def test_256_experts_of_more_than_16_megabytes(kernels: ModuleType) -> None:
    """Trap 3 as models meet it: real sizes, the last expert past 2^32 bytes, memory for two experts."""
    experts, rows, cols = 256, 2048, 7936
    size = oracle.row_bytes("Q8_0", cols)
    assert rows * size > 16.5e6 and (experts - 1) * rows * size > 2**32
    weight = Sparse(experts * rows * size).tensor.reshape(experts, rows, size)
    some = oracle.random_blocks(rng_of(), "Q8_0", 1, rows, cols)
    weight[255] = torch.from_numpy(some[0])
    x, values = activations(rng_of(), 1, cols, "float32")
    found = kernels.ggml_moe_a8_vec(x, weight, torch.tensor([[255, 1]]), 2, "Q8_0", rows, 1)
    assert_close(found[:1], oracle.mat_vec(some[0], "Q8_0", values), "float32")
    assert (found[1] == 0).all()


@by_format
def test_dequantize_past_2_to_the_31_elements(bare: NativeLibrary, type_name: str) -> None:
    """Trap 3: the last blocks of more than 2^32 elements, in memory that exists only where it is touched."""
    block = block_of(type_name)
    blocks = 2**32 // block + 10
    size = oracle.row_bytes(type_name, block)
    weight, out = Sparse(blocks * size), Sparse(blocks * block * 2)
    some = oracle.random_blocks(rng_of(type_name), type_name, 1, block * 8)
    weight.tensor[-8 * size :] = torch.from_numpy(some[0])
    params = DequantizeParams(
        weight=weight.tensor.data_ptr(),
        out=out.tensor.data_ptr(),
        block_begin=blocks - 8,
        block_end=blocks,
        type=TYPES[type_name],
        out_dtype=DTYPES["float16"],
        stream=None,
    )
    bare.call("gguf_dequantize", params)
    found = out.tensor[-8 * block * 2 :].view(torch.float16)
    assert torch.equal(found, torch.from_numpy(oracle.dequantize(some, type_name)[0]).half())


def test_vectors_more_than_2_to_the_31_elements_apart(kernels: ModuleType) -> None:
    """Trap 3: the stride of X has 64 bits."""
    stride = 2**31 + 64
    area = Sparse((stride + 64) * 2)
    x = area.tensor.view(torch.float16).as_strided((2, 64), (stride, 1))
    x[0], x[1] = torch.randn(64), torch.randn(64)
    weight = oracle.random_blocks(rng_of(), "Q8_0", 3, 64)
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), x, "Q8_0", 3)
    assert_close(found, oracle.mat_vec(weight, "Q8_0", x.float().numpy()), "float16")


# --- scratch and errors of launches -----------------------------------------------------------------------------------


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def test_scratch_is_freed(kernels: ModuleType) -> None:
    """Trap 13: scratch of 40 MB a call, which nothing fills since there are no rows, is given back each time."""
    weight = torch.zeros(0, 34 * 1024, dtype=torch.uint8)
    x = torch.ones(1, 32 * 1024, dtype=torch.float16).expand(1000, -1)
    kernels.ggml_mul_mat_vec_a8(weight, x, "Q8_0", 0)
    before = mapped_bytes()
    for _ in range(50):
        kernels.ggml_mul_mat_vec_a8(weight, x, "Q8_0", 0)
    assert mapped_bytes() - before < 400e6


def supported() -> str:
    """The formats with kernels as messages list them, in the order of the sources."""
    return ", ".join(f"{name} ({TYPES[name]})" for name in formats_of(csrc_folder()))


def test_the_launch_functions_check_for_themselves(bare: NativeLibrary) -> None:
    """Callers without the binding get the same clear refusals, and nothing runs."""
    buffer = np.zeros(4096, dtype=np.uint8)
    base = -(-buffer.ctypes.data // 64) * 64
    good = {
        "weight": base,
        "x": base + 512,
        "out": base + 1024,
        "scratch": base + 2048,
        "scratch_bytes": 1024,
        "x_stride": 32,
        "vectors": 1,
        "rows": 1,
        "cols": 32,
        "type": 2,
        "dtype": 0,
    }
    bare.call("gguf_mul_mat_vec_a8", MulMatVecParams(**good))
    cases = {
        "weight": (base + 1, "the address of weight modulo 2 is 1; wanted: 0"),
        "x": (base + 514, "the address of x modulo its element is 1; wanted: 0"),
        "scratch": (base + 2052, "the address of scratch modulo 16 is 4; wanted: 0"),
        "scratch_bytes": (39, f"scratch_bytes is 39; wanted: {bare.activation_bytes(1, 32)} or more"),
        "out": (None, "out is 0; wanted: a pointer"),
        "rows": (-1, "rows is -1; wanted: 0 or more"),
        "vectors": (-1, "the number of vectors is -1; wanted: 0 or more"),
        "cols": (33, "cols is 33; wanted: a multiple of 32, the block of Q4_0"),
        "dtype": (2, "dtype is 2; wanted: 0 (F32), 1 (F16) or 30 (BF16)"),
        "type": (9, f"type Q8_1 (9) is a format of activations, never of weights; supported: {supported()}"),
    }
    for name, (value, text) in cases.items():
        with pytest.raises(NativeError) as caught:
            bare.call("gguf_mul_mat_vec_a8", MulMatVecParams(**{**good, name: value}))
        assert str(caught.value) == f"ggml_mul_mat_vec_a8: {text}"
        assert caught.value.code == (2 if name == "type" else 1)
    huge = {**good, "cols": 2**31}
    with pytest.raises(NativeError, match="cols is 2147483648; wanted: 0 to 2147483647"):
        bare.call("gguf_mul_mat_vec_a8", MulMatVecParams(**huge))


@pytest.fixture(scope="module")
def two_formats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with Q4_0 and Q8_0 alone, for libraries that are built for one test."""
    copy = tmp_path_factory.mktemp("sources") / "csrc"
    trimmed_copy(csrc_folder(), copy, {"Q4_0", "Q8_0"})
    return copy


@pytest.fixture(scope="module")
def unsplit(build: Callable[..., Path], two_formats: Path) -> NativeLibrary:
    """A library that never splits a launch, so that a grid can be too large for the device."""
    package = build(two_formats, defines=("GGUF_MAX_GRID_YZ=0x7fffffffll",), binding=False)
    return NativeLibrary(package / "gguf_kernels" / "lib" / "gguf_host.so")


@pytest.mark.slow
def test_a_failed_launch_is_an_error(unsplit: NativeLibrary) -> None:
    """Trap 4: what the runtime says about a launch reaches the caller, and a later good call is good."""
    vectors = 65536
    weight = oracle.random_blocks(rng_of(), "Q8_0", 1, 32)
    x = np.ones((vectors, 32), dtype=np.float32)
    out = np.zeros((vectors, 1), dtype=np.float32)
    scratch = np.zeros(unsplit.activation_bytes(vectors, 32) + 16, dtype=np.uint8)
    base = -(-scratch.ctypes.data // 16) * 16
    arguments = {
        "weight": weight.ctypes.data,
        "x": x.ctypes.data,
        "out": out.ctypes.data,
        "scratch": base,
        "scratch_bytes": scratch.size - 16,
        "x_stride": 32,
        "rows": 1,
        "cols": 32,
        "type": 8,
        "dtype": 0,
    }
    with pytest.raises(
        NativeError, match=r"ggml_mul_mat_vec_a8: launching the activation quantiser failed: .*error 9"
    ) as caught:
        unsplit.call("gguf_mul_mat_vec_a8", MulMatVecParams(**arguments, vectors=vectors))
    assert caught.value.code == 3
    unsplit.call("gguf_mul_mat_vec_a8", MulMatVecParams(**arguments, vectors=2))
    assert oracle.nmse(out[:2], oracle.mat_vec(weight, "Q8_0", x[:2])) <= NMSE_F32


@pytest.mark.slow
def test_launches_split_in_every_direction(build: Callable[..., Path], two_formats: Path) -> None:
    """With grids of at most 2 x 3 x 3 blocks each operation takes many launches, and no row, vector or slot is lost."""
    package = build(two_formats, defines=("GGUF_MAX_GRID_YZ=3ll", "GGUF_MAX_GRID_X_THREADS=512"), binding=False)
    small = NativeLibrary(package / "gguf_kernels" / "lib" / "gguf_host.so")
    rng = rng_of()
    rows, cols, vectors, top_k, experts = 45, 2080, 61, 5, 3
    weight = oracle.random_blocks(rng, "Q4_0", experts, rows, cols)
    x = rng.standard_normal((vectors, cols)).astype(np.float32)
    scratch = np.zeros(small.activation_bytes(vectors, cols) + 16, dtype=np.uint8)
    shared = {
        "weight": weight.ctypes.data,
        "x": x.ctypes.data,
        "scratch": -(-scratch.ctypes.data // 16) * 16,
        "scratch_bytes": scratch.size - 16,
        "x_stride": cols,
        "rows": rows,
        "cols": cols,
        "type": 2,
        "dtype": 0,
    }
    out = np.full((vectors, rows), np.nan, dtype=np.float32)
    small.call("gguf_mul_mat_vec_a8", MulMatVecParams(**shared, out=out.ctypes.data, vectors=vectors))
    assert oracle.nmse(out, oracle.mat_vec(weight[0], "Q4_0", x)) <= NMSE_F32
    ids = rng.integers(0, experts, size=(vectors, top_k)).astype(np.int32)
    out = np.full((vectors * top_k, rows), np.nan, dtype=np.float32)
    routed = {"ids": ids.ctypes.data, "ids_bits": 32, "experts": experts, "tokens": vectors, "top_k": top_k}
    small.call("gguf_moe_a8_vec", MoeVecParams(**shared, **routed, out=out.ctypes.data))
    assert oracle.nmse(out, oracle.moe_vec(x, weight, ids, top_k, "Q4_0")) <= NMSE_F32
    storage = np.full(weight.size // 18 * 32 + 8, np.nan, dtype=np.float32)
    start = (-storage.ctypes.data // 4) % 4
    values = storage[start : start + weight.size // 18 * 32]
    small.call(
        "gguf_dequantize",
        DequantizeParams(
            weight=weight.ctypes.data,
            out=values.ctypes.data,
            block_begin=0,
            block_end=weight.size // 18,
            type=2,
            out_dtype=0,
        ),
    )
    assert np.array_equal(values.reshape(experts, rows, cols), oracle.dequantize(weight, "Q4_0"))


# --- what the sources may not contain ---------------------------------------------------------------------------------


def test_the_launch_layer_neither_allocates_nor_synchronises() -> None:
    """Traps 12, 13 and 18: calls that are illegal under graph capture, and device properties asked for at each call."""
    forbidden = re.compile(
        r"\b(cuda(Malloc|Free|HostAlloc|MallocHost)\w*|cuda\w*Synchronize|cuda(Memcpy|Memset)(?!Async)\w*|cuda\w*Memcpy\w*|"
        r"cudaGetDeviceProperties\w*|cudaDeviceGetAttribute|cuda(Event|Stream)Create\w*|malloc|calloc|new\b(?=\s+\w)|std::vector|make_unique)\s*[<(]?"
    )
    folder = csrc_folder()
    sources = [path for path in sorted(folder.rglob("*")) if path.suffix in {".cu", ".cuh", ".h"}]
    assert len(sources) > 8
    found = []
    for path in sources:
        code = re.sub(r"//.*", "", path.read_text())
        found += [f"{path.relative_to(folder)}: {match[0]}" for match in forbidden.finditer(code)]
    assert found == ["launch/staged.cuh: cudaDeviceGetAttribute("], (
        "the only one is device_traits, which asks once a device"
    )


def test_every_buffer_of_an_operator_comes_from_torch() -> None:
    """Traps 12 and 13: results and scratch are tensors, owned by value, so a check that throws frees them."""
    code = re.sub(r"//.*", "", (csrc_folder() / "binding.cpp").read_text())
    assert re.findall(r"\bnew\s+\w|\bmalloc\b|\bcalloc\b|\bdelete\b|\.release\(|static\s+Tensor", code) == []
    written = re.findall(r"(\w+)\.mutable_data_ptr\(\)", code)
    assert set(written) == {"out", "scratch", "sorted", "experts", "padded"}
    assert code.count("const Tensor scratch = empty(") == written.count("scratch") >= 2
    assert code.count("Tensor out = empty(") == written.count("out") >= 3


def test_waves_are_32_lanes_in_one_place_only() -> None:
    """Trap 14: no warpSize, no literal mask and no shuffle outside of platform.cuh, no torch header in device code."""
    folder = csrc_folder()
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".cu", ".cuh", ".h"}:
            code = re.sub(r"//.*", "", path.read_text())
            assert "warpSize" not in code and "torch/" not in code, path
            if path.name != "platform.cuh":
                assert not re.search(r"__shfl|__ballot|_sync\(|0xffffffff", code), path
