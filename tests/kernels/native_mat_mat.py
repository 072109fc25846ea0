"""The C interface of products with many vectors, through ctypes: their parameters, and calls on numpy arrays."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from native import DTYPES, I32, I64, PTR, TYPES, NativeLibrary

__all__ = [
    "ALIGN_BLOCK",
    "KERNELS",
    "AlignParams",
    "Aligned",
    "MoeParams",
    "MulMatParams",
    "QuantizeParams",
    "align",
    "call_moe",
    "call_mul_mat",
]

ALIGN_BLOCK = 16
KERNELS = {"auto": 0, "dot": 1, "small": 2, "medium": 3, "large": 4}


class MulMatParams(ctypes.Structure):
    _fields_ = (
        ("weight", PTR),
        ("x", PTR),
        ("out", PTR),
        ("scratch", PTR),
        ("scratch_bytes", I64),
        ("x_stride", I64),
        ("vectors", I64),
        ("rows", I64),
        ("cols", I64),
        ("type", I32),
        ("dtype", I32),
        ("kernel", I32),
        ("stream", PTR),
    )


class MoeParams(ctypes.Structure):
    _fields_ = (
        ("weight", PTR),
        ("x", PTR),
        ("sorted_ids", PTR),
        ("expert_ids", PTR),
        ("padded", PTR),
        ("out", PTR),
        ("scratch", PTR),
        ("scratch_bytes", I64),
        ("x_stride", I64),
        ("sorted_count", I64),
        ("expert_count", I64),
        ("experts", I64),
        ("tokens", I64),
        ("top_k", I64),
        ("rows", I64),
        ("cols", I64),
        ("type", I32),
        ("dtype", I32),
        ("kernel", I32),
        ("stream", PTR),
    )


class AlignParams(ctypes.Structure):
    _fields_ = (
        ("ids", PTR),
        ("sorted_ids", PTR),
        ("expert_ids", PTR),
        ("padded", PTR),
        ("slots", I64),
        ("sorted_count", I64),
        ("expert_count", I64),
        ("experts", I64),
        ("block", I64),
        ("ids_bits", I32),
        ("stream", PTR),
    )


class QuantizeParams(ctypes.Structure):
    _fields_ = (
        ("x", PTR),
        ("out", PTR),
        ("scratch", PTR),
        ("scratch_bytes", I64),
        ("x_stride", I64),
        ("vectors", I64),
        ("cols", I64),
        ("type", I32),
        ("dtype", I32),
        ("stream", PTR),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """What moe_align_block_size gives."""

    sorted_ids: np.ndarray
    expert_ids: np.ndarray
    padded: int


def align(ids: np.ndarray, experts: int, block: int = ALIGN_BLOCK) -> Aligned:
    """The obvious, slow reference: slots by expert in their order, each expert's padded; ids of no expert last."""
    flat = ids.reshape(-1).tolist()
    groups: list[list[int]] = [[] for _ in range(experts + 1)]
    for slot, expert in enumerate(flat):
        groups[expert if 0 <= expert < experts else experts].append(slot)
    entries: list[int] = []
    owners: list[int] = []
    for expert, slots in enumerate(groups):
        blocks = -(-len(slots) // block)
        entries += slots + [len(flat)] * (blocks * block - len(slots))
        owners += [expert if expert < experts else -1] * blocks
    size = len(flat) + min(len(flat), experts + 1) * (block - 1)
    padded = len(entries)
    entries += [len(flat)] * (size - padded)
    owners += [-1] * (-(-size // block) - len(owners))
    return Aligned(
        sorted_ids=np.array(entries, dtype=np.int32), expert_ids=np.array(owners, dtype=np.int32), padded=padded
    )


def call_mul_mat(
    library: NativeLibrary, weight: np.ndarray, type_name: str, x: np.ndarray, kernel: str = "auto"
) -> np.ndarray:
    """float32 [vectors, rows]; the result was poisoned before."""
    out = np.full((len(x), len(weight)), np.nan, dtype=np.float32)
    scratch = _scratch(library, *x.shape)
    library.call(
        "gguf_mul_mat_a8",
        MulMatParams(
            weight=library.place(weight),
            x=library.place(x),
            out=library.place(out, result=True),
            scratch=library.place(scratch),
            scratch_bytes=scratch.nbytes,
            x_stride=x.shape[1],
            vectors=len(x),
            rows=len(weight),
            cols=x.shape[1],
            type=TYPES[type_name],
            dtype=DTYPES["float32"],
            kernel=KERNELS[kernel],
        ),
    )
    return out


def call_moe(
    library: NativeLibrary,
    weight: np.ndarray,
    type_name: str,
    x: np.ndarray,
    routing: Aligned,
    top_k: int,
    kernel: str = "auto",
) -> np.ndarray:
    """float32 [tokens * top_k, rows]; the result was poisoned before."""
    experts, rows, _ = weight.shape
    out = np.full((len(x) * top_k, rows), np.nan, dtype=np.float32)
    scratch = _scratch(library, *x.shape)
    padded = np.array([routing.padded], dtype=np.int32)
    library.call(
        "gguf_moe_a8",
        MoeParams(
            weight=library.place(weight),
            x=library.place(x),
            sorted_ids=library.place(routing.sorted_ids),
            expert_ids=library.place(routing.expert_ids),
            padded=library.place(padded),
            out=library.place(out, result=True),
            scratch=library.place(scratch),
            scratch_bytes=scratch.nbytes,
            x_stride=x.shape[1],
            sorted_count=routing.sorted_ids.size,
            expert_count=routing.expert_ids.size,
            experts=experts,
            tokens=len(x),
            top_k=top_k,
            rows=rows,
            cols=x.shape[1],
            type=TYPES[type_name],
            dtype=DTYPES["float32"],
            kernel=KERNELS[kernel],
        ),
    )
    return out


def _scratch(library: NativeLibrary, vectors: int, cols: int) -> np.ndarray:
    """Poisoned, and aligned to 16 bytes."""
    size = library.activation_bytes(vectors, cols)
    area = np.full(size + 16, 0xFF, dtype=np.uint8)
    start = -area.ctypes.data % 16
    return area[start : start + size]
