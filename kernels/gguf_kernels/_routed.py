"""Routed experts: gate and up projections in one launch with SwiGLU, and the down projection with the routing weights.

A routed layer is `mxfp4_moe_down(mxfp4_moe_gate_up(x, gate, up, ids), down, ids, weights)`, or `mxfp4_experts`, which
is just that. Weights stay as a GGUF file holds them. Experts and rows may lie apart in memory, so that gate and up can
be the halves of one tensor (`W[:, :row]`, `W[:, row:]`) or its even and odd rows (`W[:, ::2]`, `W[:, 1::2]`).

The mxfp4_* operators quantise activations as GGUF's Q8_K has them, in blocks of 256: m is the first element of the
largest magnitude, with its sign; s = -127 / m; q = s * x rounded to the nearest whole number, halves to even, at most
127; d = 1 / s; each operation in float32. That is quantize_row_q8_K of the ggml sources. d and q are 0 where m is 0 or
so small that s is infinite. A NaN or an infinity makes the results of its own token NaN and touches no other's.

Scratch comes from torch's allocator and is given back at the end of the call. Every operator takes 1.25 bytes for each
activation (a multiple of 64 columns; else up to 8 bytes a vector more). Where slots are sorted by expert the mxfp4_*
operators take on top of that, with S = tokens * top_k slots, 8 * S * row bytes in mxfp4_moe_gate_up and 4 * S * row in
mxfp4_moe_down for products in float32, and less than 5 * (S + 15 * min(S, experts + 1)) + 1024 for the sorting.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gguf_kernels import _library  # noqa: F401  (loads the libraries that define the operators)
from gguf_kernels._types import type_id

__all__ = ["VARIANTS", "ggml_moe_gate_up_a8", "mxfp4_experts", "mxfp4_moe_down", "mxfp4_moe_gate_up"]

VARIANTS = ("auto", "direct", "tiles", "dot_tiles")
"""How a routed MXFP4 product is computed, by number in csrc/api.h: by the number of tokens; each slot by itself; the
tokens of an expert together on matrix cores; the same by dot products of four bytes. The last two give the same bits.
Within one of the last three a token's result does not depend on the other tokens of the call."""


def _variant(name: str) -> int:
    if name not in VARIANTS:
        raise ValueError(f"variant is {name!r}; wanted one of {', '.join(VARIANTS)}")
    return VARIANTS.index(name)


def ggml_moe_gate_up_a8(  # noqa: PLR0917  (the order is that of ggml_moe_a8_vec)
    X: Tensor,
    W_gate: Tensor,
    W_up: Tensor,
    topk_ids: Tensor,
    top_k: int,
    type: int | str,
    row: int,
    tokens: int,
    *,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Tensor:
    """SwiGLU of two routed products, in one launch for any format: [tokens * top_k, row], dtype of X.

    With gate and up row z of ggml_moe_a8_vec on W_gate and W_up, in float32, row z of the result is
    silu(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset), where silu(g) = g / (1 + exp(-alpha * g)). Without
    options that is SiLU(gate) * up; gpt-oss has alpha = 1.702, limit = 7, up_offset = 1. Made for few tokens; any
    number is right. An id that names no expert gives a row of zeros.
    """
    result: Tensor = torch.ops.gguf_kernels.ggml_moe_gate_up_a8(
        X, W_gate, W_up, topk_ids, top_k, type_id(type), row, tokens, alpha, limit, up_offset
    )
    return result


def mxfp4_moe_gate_up(
    X: Tensor,
    W_gate: Tensor,
    W_up: Tensor,
    topk_ids: Tensor,
    *,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    dtype: torch.dtype | None = None,
    variant: str = "auto",
) -> Tensor:
    """The same for MXFP4 weights with Q8_K activations: [tokens * top_k, row] in dtype, which is X's without one.

    X: [tokens, col], col a multiple of 256. W_gate, W_up: uint8 [experts, row, col / 32 * 17]. topk_ids: [tokens,
    top_k], int32 or int64. float32 results keep what the down projection then quantises exact.
    """
    result: Tensor = torch.ops.gguf_kernels.mxfp4_moe_gate_up(
        X, W_gate, W_up, topk_ids, alpha, limit, up_offset, dtype, _variant(variant)
    )
    return result


def mxfp4_moe_down(
    H: Tensor,
    W: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    *,
    dtype: torch.dtype | None = None,
    variant: str = "auto",
) -> Tensor:
    """Row t of the result is the sum over t's slots z of topk_weights[z] times (W[topk_ids[z]] times H[z]).

    H: [tokens * top_k, col], col a multiple of 256. W: uint8 [experts, row, col / 32 * 17]. topk_weights: [tokens,
    top_k], float32, float16 or bfloat16. The result is [tokens, row] in dtype, which is H's without one. A slot whose
    id names no expert adds nothing, whatever its weight. Sums are float32, slots in order.
    """
    result: Tensor = torch.ops.gguf_kernels.mxfp4_moe_down(H, W, topk_ids, topk_weights, dtype, _variant(variant))
    return result


def mxfp4_experts(  # noqa: PLR0917
    X: Tensor,
    W_gate: Tensor,
    W_up: Tensor,
    W_down: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    *,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    variant: str = "auto",
) -> Tensor:
    """The expert path of a routed layer: [tokens, model] in the dtype of X, with float32 between the two steps."""
    hidden = mxfp4_moe_gate_up(
        X,
        W_gate,
        W_up,
        topk_ids,
        alpha=alpha,
        limit=limit,
        up_offset=up_offset,
        dtype=torch.float32,
        variant=variant,
    )
    return mxfp4_moe_down(hidden, W_down, topk_ids, topk_weights, dtype=X.dtype, variant=variant)


def _fake_gate_up(  # noqa: PLR0917
    X: Tensor,
    W_gate: Tensor,
    W_up: Tensor,
    topk_ids: Tensor,
    top_k: int,
    type: int,
    row: int,
    tokens: int,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Tensor:
    return X.new_empty((tokens * top_k, row))


def _fake_mxfp4_gate_up(  # noqa: PLR0917
    X: Tensor,
    W_gate: Tensor,
    W_up: Tensor,
    topk_ids: Tensor,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
    dtype: torch.dtype | None = None,
    variant: int = 0,
) -> Tensor:
    return X.new_empty((X.shape[0] * topk_ids.shape[1], W_gate.shape[1]), dtype=dtype or X.dtype)


def _fake_mxfp4_down(  # noqa: PLR0917
    H: Tensor,
    W: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    dtype: torch.dtype | None = None,
    variant: int = 0,
) -> Tensor:
    return H.new_empty((topk_ids.shape[0], W.shape[1]), dtype=dtype or H.dtype)


torch.library.register_fake("gguf_kernels::ggml_moe_gate_up_a8", _fake_gate_up)
torch.library.register_fake("gguf_kernels::mxfp4_moe_gate_up", _fake_mxfp4_gate_up)
torch.library.register_fake("gguf_kernels::mxfp4_moe_down", _fake_mxfp4_down)
