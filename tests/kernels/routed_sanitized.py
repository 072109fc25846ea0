"""Routed experts through the C functions, on buffers of exact size, results poisoned."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import oracle
import routed_oracle
from native import TYPES, NativeLibrary, Place, read
from routed_native import DownParams, GateUpParams
from routed_oracle import q8_k

__all__ = ["run_routed"]


def _scratch(library: NativeLibrary, name: str, params: ctypes.Structure, place: Place) -> None:
    size = int(library.size(name, params))
    params.scratch_bytes = size  # type: ignore[attr-defined]
    whole = -(-size // 16) * 16  # so that it begins at a multiple of 16 where its end is what is placed
    params.scratch = place(np.full(whole, 0xA5, np.uint8))  # type: ignore[attr-defined]


def run_routed(library: NativeLibrary, place: Place, variants: tuple[int, ...], tokens: int = 6) -> None:
    """Gate and up, then down, of each variant; ids in range, -1 and past the end; rows and columns of one odd shape."""
    rng = np.random.default_rng(tokens)
    experts, rows, cols, top_k = 5, 19, 256, 3
    gate, up = (oracle.random_blocks(rng, "MXFP4", experts, rows, cols) for _ in range(2))
    down = oracle.random_blocks(rng, "MXFP4", experts, rows, cols)
    row_bytes = gate.shape[-1]
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    h = rng.standard_normal((tokens * top_k, cols)).astype(np.float32)
    ids = rng.integers(-1, experts + 1, size=(tokens, top_k))
    ids[0] = (experts - 1, -1, experts)
    factors = rng.uniform(size=ids.shape).astype(np.float32)
    for variant in variants:
        shape: dict[str, Any] = {
            "ids": place(ids),
            "ids_bits": 64,
            "experts": experts,
            "tokens": tokens,
            "top_k": top_k,
            "rows": rows,
            "cols": cols,
            "x_stride": cols,
            "type": TYPES["MXFP4"],
            "variant": variant,
        }
        strides = {f"{name}_expert_stride": rows * row_bytes for name in ("gate", "up")}
        strides |= {f"{name}_row_stride": row_bytes for name in ("gate", "up")}
        out = place(np.full((ids.size, rows), np.nan, np.float32))
        limits = {"alpha": 1.0, "limit": 2.0, "up_offset": 0.0, "activations": TYPES["Q8_K"]}
        first = GateUpParams(gate=place(gate), up=place(up), x=place(x), out=out, **shape, **strides, **limits)
        _scratch(library, "gguf_moe_gate_up_bytes", first, place)
        library.call("gguf_moe_gate_up", first)
        found = read(out, (ids.size, rows))
        wanted, bound = routed_oracle.gate_up(x, gate, up, ids, "MXFP4", q8_k, limit=2.0)
        assert (np.abs(found - wanted) <= bound).all(), variant

        out = place(np.full((tokens, rows), np.nan, np.float32))
        strides = {"down_expert_stride": rows * row_bytes, "down_row_stride": row_bytes}
        second = DownParams(down=place(down), x=place(h), weights=place(factors), out=out, **shape, **strides)
        _scratch(library, "gguf_moe_down_bytes", second, place)
        library.call("gguf_moe_down", second)
        found = read(out, (tokens, rows))
        wanted, bound = routed_oracle.down(h, down, ids, factors)
        assert (np.abs(found - wanted) <= bound).all(), variant
