"""Products with many vectors, plain and grouped by expert; slots sorted by expert; the activation quantisers.

A routed layer's product is `ggml_moe_a8(x, W, *moe_align_block_size(ids, ggml_moe_get_block_size(type), experts), type,
row, top_k, tokens)`. Nothing here reads routing on the host, and all of it may be captured in a graph.

A result has the same bits whatever else is in the call: whole numbers are summed exactly over 32 (or 16) columns, and
those sums are added in float32 in the order of columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gguf_kernels._library import block_sizes
from gguf_kernels._ops import require, same_device
from gguf_kernels._types import GGMLType, type_id

__all__ = [
    "ggml_moe_a8",
    "ggml_moe_get_block_size",
    "ggml_mul_mat_a8",
    "ggml_quantize_q8_0",
    "ggml_quantize_q8_k",
    "moe_align_block_size",
]

_BLOCK_SIZES = block_sizes()


def ggml_mul_mat_a8(W: Tensor, X: Tensor, type: int | str, row: int) -> Tensor:
    """X times the transpose of W: [n, row], in the dtype of X. Made for many vectors; any number is right.

    W: [row, bytes of a row]. X: [n, col], float32, float16 or bfloat16, any strides, quantised as for
    ggml_mul_mat_vec_a8. Scratch: about n * col * 1.25 bytes, from torch's allocator.
    """
    require("ggml_mul_mat_a8", W)
    result: Tensor = torch.ops.gguf_kernels.ggml_mul_mat_a8(W, X, type_id(type), row)
    return result


def ggml_moe_a8(  # noqa: PLR0917  (the order is the contract)
    X: Tensor,
    W: Tensor,
    sorted_token_ids: Tensor,
    expert_ids: Tensor,
    num_tokens_post_padded: Tensor,
    type: int | str,
    row: int,
    top_k: int,
    tokens: int,
) -> Tensor:
    """Row z of the result is X[z // top_k] times the transpose of W[expert of z]: [tokens * top_k, row], dtype of X.

    X: [tokens, col], as for ggml_mul_mat_a8. W: [experts, row, bytes of a row]. The routing is what
    moe_align_block_size gives for blocks of ggml_moe_get_block_size(type): int32, sorted_token_ids holds flat slots
    (token * top_k + slot), where tokens * top_k and more is padding; expert_ids has one expert a block, -1 for none;
    num_tokens_post_padded, one element, says how many entries of sorted_token_ids count. Rows of slots that have no
    expert, or are in no block, are zeros. A down projection calls with top_k = 1 and tokens = tokens * top_k.

    Scratch: about tokens * col * 1.25 bytes, from torch's allocator.
    """
    require("ggml_moe_a8", W)
    result: Tensor = torch.ops.gguf_kernels.ggml_moe_a8(
        X, W, sorted_token_ids, expert_ids, num_tokens_post_padded, type_id(type), row, top_k, tokens
    )
    return result


def ggml_moe_get_block_size(type: int | str) -> int:
    """How many entries of sorted_token_ids share an expert in ggml_moe_a8.

    RuntimeError for a type that it has no kernel for, with those that it has.
    """
    number = type_id(type)
    if number not in _BLOCK_SIZES:
        known = ", ".join(f"{GGMLType(each).name} ({each})" for each in sorted(_BLOCK_SIZES))
        raise RuntimeError(f"ggml_moe_get_block_size: type {type!r} has no kernel; supported: {known}")
    return _BLOCK_SIZES[number]


def moe_align_block_size(topk_ids: Tensor, block_size: int, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """(sorted_token_ids, expert_ids, num_tokens_post_padded), int32: flat slots by expert, each expert's in order.

    topk_ids: int32 or int64, any shape. Each expert's slots are padded with topk_ids.numel() to whole blocks, and
    expert_ids holds the expert of each block. Slots whose id names no expert come last, in blocks of expert -1, so that
    every slot occurs once. Sizes depend on shapes alone: sorted_token_ids has n + min(n, num_experts + 1) *
    (block_size - 1) entries for n ids; what lies past num_tokens_post_padded is padding, and of expert -1.
    """
    require("moe_align_block_size", topk_ids, "topk_ids")
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.gguf_kernels.moe_align_block_size(
        topk_ids, block_size, num_experts
    )
    return result


def ggml_quantize_q8_0(X: Tensor) -> Tensor:
    """X as blocks of Q8_0: [n, col] -> uint8 [n, col / 32 * 34], each block a float16 d and 32 signed bytes q.

    d = max|x| / 127 in float32, q = x / d rounded to the nearest whole number, halves away from zero, 0 where d = 0: as
    every ggml_* operator quantises. d is rounded to float16 as it is stored, after q was computed. A block that is not
    finite has d = NaN or infinity and q = 0.
    """
    require("ggml_quantize_q8_0", X, "X")
    result: Tensor = torch.ops.gguf_kernels.ggml_quantize_q8_0(X)
    return result


def ggml_quantize_q8_k(X: Tensor) -> Tensor:
    """X as blocks of Q8_K: [n, col] -> uint8 [n, col / 256 * 292], each float32 d, 256 signed bytes q, 16 int16 sums.

    m is the first element of the largest magnitude, with its sign; s = -127 / m; q = s * x rounded to the nearest whole
    number, halves to even, at most 127; d = 1 / s; each operation in float32; the sums are of 16 q each. That is
    quantize_row_q8_K of the ggml sources, and what the mxfp4_* operators multiply with. d and q are 0 where m is 0 or
    so small that s is infinite.
    """
    require("ggml_quantize_q8_k", X, "X")
    result: Tensor = torch.ops.gguf_kernels.ggml_quantize_q8_k(X)
    return result


def _fake_mul_mat(W: Tensor, X: Tensor, type: int, row: int) -> Tensor:
    same_device("ggml_mul_mat_a8", W, X=X)
    return X.new_empty((X.shape[0], row))


def _fake_moe(  # noqa: PLR0917
    X: Tensor,
    W: Tensor,
    sorted_token_ids: Tensor,
    expert_ids: Tensor,
    num_tokens_post_padded: Tensor,
    type: int,
    row: int,
    top_k: int,
    tokens: int,
) -> Tensor:
    same_device("ggml_moe_a8", W, X=X, sorted_token_ids=sorted_token_ids, expert_ids=expert_ids)
    return X.new_empty((tokens * top_k, row))


def _fake_align(topk_ids: Tensor, block_size: int, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    slots = topk_ids.numel()
    entries = slots + min(slots, num_experts + 1) * (block_size - 1)
    blocks = (entries + block_size - 1) // block_size
    empty = topk_ids.new_empty
    return empty((entries,), dtype=torch.int32), empty((blocks,), dtype=torch.int32), empty((1,), dtype=torch.int32)


def _fake_q8_0(X: Tensor) -> Tensor:
    return X.new_empty((X.shape[0], X.shape[1] // 32 * 34), dtype=torch.uint8)


def _fake_q8_k(X: Tensor) -> Tensor:
    return X.new_empty((X.shape[0], X.shape[1] // 256 * 292), dtype=torch.uint8)


torch.library.register_fake("gguf_kernels::ggml_mul_mat_a8", _fake_mul_mat)
torch.library.register_fake("gguf_kernels::ggml_moe_a8", _fake_moe)
torch.library.register_fake("gguf_kernels::moe_align_block_size", _fake_align)
torch.library.register_fake("gguf_kernels::ggml_quantize_q8_0", _fake_q8_0)
torch.library.register_fake("gguf_kernels::ggml_quantize_q8_k", _fake_q8_k)
