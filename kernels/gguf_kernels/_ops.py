"""The operators, with the names and the order of arguments that users of GGUF kernels know, and their fake kernels.

W is uint8, contiguous: the blocks of a GGUF tensor as its file holds them. `type` is an id or a name of a GGUF type.
What an operator cannot take it refuses at once, in a RuntimeError that names the argument, what was found and what is
wanted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gguf_kernels import _library  # noqa: F401  (loads the libraries that define the operators)
from gguf_kernels._types import type_id

__all__ = ["ggml_dequantize", "ggml_moe_a8_vec", "ggml_mul_mat_vec_a8"]


def ggml_dequantize(W: Tensor, type: int | str, m: int, n: int, dtype: torch.dtype | None = None) -> Tensor:
    """The values of W as [m, n]: exact in float32, rounded to nearest even in float16 (the default) and bfloat16.

    W: the bytes of m rows of n elements, in any shape. n: a multiple of the block of the type.
    """
    result: Tensor = torch.ops.gguf_kernels.ggml_dequantize(W, type_id(type), m, n, dtype)
    return result


def ggml_mul_mat_vec_a8(W: Tensor, X: Tensor, type: int | str, row: int) -> Tensor:
    """X times the transpose of W: [n, row], in the dtype of X. Made for few vectors; any number is right.

    W: [row, bytes of a row]. X: [n, col], float32, float16 or bfloat16, any strides. X is quantised in blocks of 32
    elements to 8 bits with a float32 scale: d = max|x| / 127, q = round(x / d), halves away from zero. A NaN or an
    infinity in a vector makes that vector's results NaN.
    """
    result: Tensor = torch.ops.gguf_kernels.ggml_mul_mat_vec_a8(W, X, type_id(type), row)
    return result


def ggml_moe_a8_vec(  # noqa: PLR0917  (the order is the contract)
    X: Tensor, W: Tensor, topk_ids: Tensor, top_k: int, type: int | str, row: int, tokens: int
) -> Tensor:
    """Row z of the result is X[z // top_k] times the transpose of W[topk_ids[z]]: [tokens * top_k, row], dtype of X.

    X: [tokens, col], as for ggml_mul_mat_vec_a8. W: [experts, row, bytes of a row]. topk_ids: int32 or int64,
    tokens * top_k elements in any shape; an id below 0 or past the last expert gives a row of zeros. A down
    projection, whose input has one row a slot, calls with top_k = 1 and tokens = tokens * top_k.
    """
    result: Tensor = torch.ops.gguf_kernels.ggml_moe_a8_vec(X, W, topk_ids, top_k, type_id(type), row, tokens)
    return result


def _fake_dequantize(W: Tensor, type: int, m: int, n: int, dtype: torch.dtype | None = None) -> Tensor:
    return W.new_empty((m, n), dtype=torch.float16 if dtype is None else dtype)


def _fake_mul_mat_vec(W: Tensor, X: Tensor, type: int, row: int) -> Tensor:
    return X.new_empty((X.shape[0], row))


def _fake_moe_vec(  # noqa: PLR0917
    X: Tensor, W: Tensor, topk_ids: Tensor, top_k: int, type: int, row: int, tokens: int
) -> Tensor:
    return X.new_empty((tokens * top_k, row))


torch.library.register_fake("gguf_kernels::ggml_dequantize", _fake_dequantize)
torch.library.register_fake("gguf_kernels::ggml_mul_mat_vec_a8", _fake_mul_mat_vec)
torch.library.register_fake("gguf_kernels::ggml_moe_a8_vec", _fake_moe_vec)
