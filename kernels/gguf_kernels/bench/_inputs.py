"""Weights, activations as the kernels see them, and routings."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

import gguf_kernels
from gguf_kernels import _library

__all__ = ["block_shape", "columns", "copied", "nmse", "quantised", "quantised_q8_k", "random_weights", "routing"]

TAIL = 4096
"""Bytes of zeros behind weights: llama.cpp's mmq reads past the last row where cols are no multiple of 512."""


def block_shape(type_name: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    handle = next(iter(_library._HANDLES.values()))
    elements, size = ctypes.c_int32(), ctypes.c_int32()
    number = int(gguf_kernels.GGMLType[type_name])
    if handle.gguf_block_shape(number, ctypes.byref(elements), ctypes.byref(size), None) != 0:
        raise RuntimeError(f"type {type_name} has no kernels")
    return elements.value, size.value


def columns(type_name: str, weight: Tensor) -> tuple[int, int]:
    """Weights of a row, and bytes of a block."""
    elements, size = block_shape(type_name)
    return weight.shape[-1] // size * elements, size


def copied(weight: Tensor) -> Tensor:
    """The same bytes elsewhere, with zeros behind them."""
    memory = torch.empty(weight.numel() + TAIL, dtype=torch.uint8, device=weight.device)
    memory[weight.numel() :].zero_()
    return memory[: weight.numel()].view(weight.shape).copy_(weight)


def random_weights(type_name: str, device: torch.device, *shape: int) -> Tensor:
    """uint8 [..., bytes of a row] for weights [..., cols]: random blocks whose values are of ordinary size.

    Blocks of random bytes, of which those with a NaN, an infinity or a scale out of proportion are not used.
    """
    elements, size = block_shape(type_name)
    *rows, cols = shape
    pool = torch.empty(0, size, dtype=torch.uint8)
    while len(pool) < 512:
        some = torch.randint(0, 256, (8192, size), dtype=torch.uint8)
        if type_name == "MXFP4":  # of a whole byte of exponent nearly every value is out of proportion
            some[:, 0] = torch.randint(122, 130, (len(some),), dtype=torch.uint8)
        values = gguf_kernels.ggml_dequantize(some, type_name, len(some), elements, torch.float32)
        largest = values.abs().amax(1)
        good = torch.isfinite(values).all(1) & (largest < 64.0) & (largest > 2.0**-6)
        pool = torch.cat([pool, some[good]])
    pool = pool.to(device)
    count = math.prod(rows) * (cols // elements)
    picked = torch.randint(0, len(pool), (count,), device=device)
    return copied(pool[picked].reshape(*rows, cols // elements * size))


def routing(calls: int, tokens: int, experts: int, top_k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, weights), int32 and float32 [calls, tokens, top_k]: different experts for a token, its weights add to one.

    The same for the same numbers, whatever was drawn before.
    """
    generator = torch.Generator(device).manual_seed(tokens)
    scores = torch.rand(calls, tokens, experts, device=device, generator=generator)
    best = scores.topk(top_k, dim=-1)
    return best.indices.int(), best.values.softmax(-1)


def quantised(x: Tensor) -> Tensor:
    """X as the kernels see it, in float64: blocks of 32, d = max|x| / 127, q = x / d rounded half away from zero."""
    blocks = x.float().reshape(x.shape[0], -1, 32)
    d = blocks.abs().amax(-1, keepdim=True) / 127.0
    quotient = (blocks / d).double()
    q = torch.where(d > 0, torch.trunc(quotient + torch.copysign(torch.full_like(quotient, 0.5), quotient)), 0.0)
    return (q * d.double()).reshape(x.shape)


def quantised_q8_k(x: Tensor) -> Tensor:
    """X as the mxfp4_* operators see it, in float64: blocks of 256, s = -127 / m with m the largest by magnitude and
    its sign, q = s * x rounded half to even and at most 127, d = 1 / s.
    """
    blocks = x.float().reshape(x.shape[0], -1, 256)
    m = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    s = -127.0 / m
    return ((s * blocks).round().clamp(max=127.0).double() / s.double()).nan_to_num(0.0).reshape(x.shape)


def nmse(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).square().sum() / wanted.square().sum())
