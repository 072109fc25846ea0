"""The operators, with the names and the order of arguments that users of GGUF kernels know, and their fake kernels.

W is uint8, contiguous: the blocks of a GGUF tensor as its file holds them. `type` is an id or a name of a GGUF type.
What an operator cannot take it refuses at once, in a RuntimeError that names the argument, what was found and what is
wanted. Nothing here waits for a GPU, but for `check=True`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gguf_kernels._library import require_device
from gguf_kernels._types import type_id

__all__ = ["ggml_dequantize", "ggml_moe_a8_vec", "ggml_mul_mat_vec_a8"]

_READY: set[torch.device] = {torch.device("meta")}
"""Devices that need not be asked again."""


def require(op: str, tensor: Tensor, argument: str = "W") -> None:
    """Refuse a device that no library serves; asked once a device, and not while a graph is traced or captured."""
    if torch.compiler.is_compiling() or tensor.device in _READY:
        return
    if tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return  # no time to ask the runtime; a launch that cannot be tells its own error
    require_device(op, argument, tensor.device)
    _READY.add(tensor.device)


def _check_ids(op: str, ids: Tensor, experts: int) -> None:
    wrong = (ids < -1) | (ids >= experts)
    if bool(wrong.any()):
        at = [int(index) for index in wrong.nonzero()[0]]
        raise RuntimeError(
            f"{op}: topk_ids{at} is {int(ids[tuple(at)])}; wanted: 0 to {experts - 1} for W with {experts} experts, "
            "or -1 for no expert"
        )


def ggml_dequantize(W: Tensor, type: int | str, m: int, n: int, dtype: torch.dtype | None = None) -> Tensor:
    """The values of W as [m, n]: exact in float32, rounded to nearest even in float16 (the default) and bfloat16.

    W: the bytes of m rows of n elements, in any shape. n: a multiple of the block of the type.
    """
    require("ggml_dequantize", W)
    result: Tensor = torch.ops.gguf_kernels.ggml_dequantize(W, type_id(type), m, n, dtype)
    return result


def ggml_mul_mat_vec_a8(W: Tensor, X: Tensor, type: int | str, row: int) -> Tensor:
    """X times the transpose of W: [n, row], in the dtype of X. Made for few vectors; any number is right.

    W: [row, bytes of a row]. X: [n, col], float32, float16 or bfloat16, any strides. X is quantised in blocks of 32
    elements to 8 bits with a float32 scale: d = max|x| / 127, q = round(x / d), halves away from zero. A NaN or an
    infinity in a vector makes that vector's results NaN.
    """
    require("ggml_mul_mat_vec_a8", W)
    result: Tensor = torch.ops.gguf_kernels.ggml_mul_mat_vec_a8(W, X, type_id(type), row)
    return result


def ggml_moe_a8_vec(  # noqa: PLR0917  (the order is the contract)
    X: Tensor, W: Tensor, topk_ids: Tensor, top_k: int, type: int | str, row: int, tokens: int, *, check: bool = False
) -> Tensor:
    """Row z of the result is X[z // top_k] times the transpose of W[topk_ids[z]]: [tokens * top_k, row], dtype of X.

    X: [tokens, col], as for ggml_mul_mat_vec_a8. W: [experts, row, bytes of a row]. topk_ids: int32 or int64,
    tokens * top_k elements in any shape; an id below 0 or past the last expert gives a row of zeros. A down
    projection, whose input has one row a slot, calls with top_k = 1 and tokens = tokens * top_k.

    check: raise a RuntimeError for an id that names no expert and is not -1. This waits for the GPU, so it is for
    debugging, and illegal while a graph is captured.
    """
    require("ggml_moe_a8_vec", W)
    if check:
        _check_ids("ggml_moe_a8_vec", topk_ids, W.shape[0])
    result: Tensor = torch.ops.gguf_kernels.ggml_moe_a8_vec(X, W, topk_ids, top_k, type_id(type), row, tokens)
    return result


def _fake_dequantize(W: Tensor, type: int, m: int, n: int, dtype: torch.dtype | None = None) -> Tensor:
    return W.new_empty((m, n), dtype=torch.float16 if dtype is None else dtype)


def same_device(op: str, W: Tensor, **others: Tensor) -> None:
    for name, other in others.items():
        torch._check(  # type: ignore[no-untyped-call]
            other.device == W.device,
            lambda name=name, other=other: f"{op}: {name} is on {other.device} and W on {W.device}; wanted: one device",
        )


def _fake_mul_mat_vec(W: Tensor, X: Tensor, type: int, row: int) -> Tensor:
    same_device("ggml_mul_mat_vec_a8", W, X=X)
    return X.new_empty((X.shape[0], row))


def _fake_moe_vec(  # noqa: PLR0917
    X: Tensor, W: Tensor, topk_ids: Tensor, top_k: int, type: int, row: int, tokens: int
) -> Tensor:
    same_device("ggml_moe_a8_vec", W, X=X, topk_ids=topk_ids)
    return X.new_empty((tokens * top_k, row))


torch.library.register_fake("gguf_kernels::ggml_dequantize", _fake_dequantize)
torch.library.register_fake("gguf_kernels::ggml_mul_mat_vec_a8", _fake_mul_mat_vec)
torch.library.register_fake("gguf_kernels::ggml_moe_a8_vec", _fake_moe_vec)
