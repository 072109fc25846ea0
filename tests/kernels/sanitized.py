"""Runs a sanitized library's launch functions on buffers of exact size from malloc. A script: no torch.

Arguments: the library. Exit 0 when every result is right; a sanitizer ends the process with its report.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import oracle
from cases import FORMATS, MAT_MAT_FORMATS, MOE_CASES, NMSE_F32, PRODUCT_CASES, block_of, fit
from mat_mat_sanitized import run_mat_mat
from native import DTYPES, TYPES, DequantizeParams, MoeVecParams, MulMatVecParams, NativeLibrary
from routed_sanitized import run_routed

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)


class Buffers:
    """Copies in memory of their own, so that a sanitizer sees each byte past an end."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def of(self, array: np.ndarray) -> int:
        address = libc.malloc(max(array.nbytes, 1))
        ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        self.taken.append(address)
        return int(address)

    def __enter__(self) -> Buffers:
        return self

    def __exit__(self, *_: object) -> None:
        for address in self.taken:
            libc.free(address)


def stored(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """x as it lies in memory, and the float32 values of that."""
    if dtype == "float32":
        return x, x
    if dtype == "float16":
        return x.astype(np.float16), x.astype(np.float16).astype(np.float32)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def loaded(address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    size = int(np.prod(shape))
    raw = ctypes.string_at(address, size * (4 if dtype == "float32" else 2))
    if dtype == "bfloat16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(raw, np.dtype(dtype)).astype(np.float32).reshape(shape)


def check(found: np.ndarray, wanted: np.ndarray, dtype: str, what: object) -> None:
    bound = {"float32": NMSE_F32, "float16": 1e-6, "bfloat16": 1e-4}[dtype]
    if not wanted.any():
        assert not found.any(), what
    else:
        assert oracle.nmse(found, wanted) <= bound, (what, dtype, oracle.nmse(found, wanted))


def main(library: NativeLibrary) -> None:
    rng = np.random.default_rng(7)
    for type_name in FORMATS:
        for number, case in enumerate(PRODUCT_CASES):
            dtype = ("float32", "float16", "bfloat16")[number % 3]
            cols = fit(type_name, case.cols)
            weight = oracle.random_blocks(rng, type_name, case.rows, cols)
            x, values = stored(rng.standard_normal((case.vectors, cols)).astype(np.float32), dtype)
            scratch_bytes = library.activation_bytes(case.vectors, cols)
            with Buffers() as buffers:
                out = buffers.of(np.full((case.vectors, case.rows), 1, x.dtype))
                params = MulMatVecParams(
                    weight=buffers.of(weight),
                    x=buffers.of(x),
                    out=out,
                    scratch=buffers.of(np.zeros(scratch_bytes, np.uint8)),
                    scratch_bytes=scratch_bytes,
                    x_stride=cols,
                    vectors=case.vectors,
                    rows=case.rows,
                    cols=cols,
                    type=TYPES[type_name],
                    dtype=DTYPES[dtype],
                )
                library.call("gguf_mul_mat_vec_a8", params)
                found = loaded(out, (case.vectors, case.rows), dtype)
            check(found, oracle.mat_vec(weight, type_name, values), dtype, case)
            with Buffers() as buffers:
                out = buffers.of(np.zeros((case.rows, cols), x.dtype))
                blocks = case.rows * cols // block_of(type_name)
                parts = {"block_end": blocks, "type": TYPES[type_name], "out_dtype": DTYPES[dtype]}
                library.call("gguf_dequantize", DequantizeParams(weight=buffers.of(weight), out=out, **parts))
                found = loaded(out, (case.rows, cols), dtype)
            check(found, oracle.dequantize(weight, type_name), dtype, case)
        for routed in MOE_CASES:
            cols = fit(type_name, routed.cols)
            weight = oracle.random_blocks(rng, type_name, routed.experts, routed.rows, cols)
            x = rng.standard_normal((routed.tokens, cols)).astype(np.float32)
            ids = rng.integers(-1, routed.experts + 1, size=(routed.tokens, routed.top_k))
            scratch_bytes = library.activation_bytes(routed.tokens, cols)
            with Buffers() as buffers:
                out = buffers.of(np.full((ids.size, routed.rows), -1, np.float32))
                params = MoeVecParams(
                    weight=buffers.of(weight),
                    x=buffers.of(x),
                    ids=buffers.of(ids),
                    out=out,
                    scratch=buffers.of(np.zeros(scratch_bytes, np.uint8)),
                    scratch_bytes=scratch_bytes,
                    x_stride=cols,
                    experts=routed.experts,
                    tokens=routed.tokens,
                    top_k=routed.top_k,
                    rows=routed.rows,
                    cols=cols,
                    ids_bits=64,
                    type=TYPES[type_name],
                    dtype=0,
                )
                library.call("gguf_moe_a8_vec", params)
                found = loaded(out, (ids.size, routed.rows), "float32")
            check(found, oracle.moe_vec(x, weight, ids, routed.top_k, type_name), "float32", routed)
        cols = block_of(type_name)
        odd = np.repeat(np.array([[np.nan], [np.inf], [3e38], [1e-45], [0]], dtype=np.float32), cols, axis=1)
        weight = oracle.random_blocks(rng, type_name, 3, cols)
        with Buffers() as buffers:
            params = MulMatVecParams(
                weight=buffers.of(weight),
                x=buffers.of(odd),
                out=buffers.of(np.zeros((5, 3), np.float32)),
                scratch=buffers.of(np.zeros(library.activation_bytes(5, cols), np.uint8)),
                scratch_bytes=library.activation_bytes(5, cols),
                x_stride=cols,
                vectors=5,
                rows=3,
                cols=cols,
                type=TYPES[type_name],
                dtype=0,
            )
            library.call("gguf_mul_mat_vec_a8", params)
    if "MXFP4" in FORMATS:
        with Buffers() as buffers:
            run_routed(library, buffers.of, (1, 2, 3))
    for type_name in FORMATS:
        if type_name in MAT_MAT_FORMATS:
            with Buffers() as buffers:
                run_mat_mat(library, buffers.of, type_name)
    sys.stdout.write("all right\n")


if __name__ == "__main__":
    main(NativeLibrary(Path(sys.argv[1])))
