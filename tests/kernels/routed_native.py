"""The C interface of routed experts (kernels/csrc/api.h) through ctypes."""

from __future__ import annotations

import ctypes

from native import I32, I64, PTR

__all__ = ["DownParams", "GateUpParams"]

F32 = ctypes.c_float


class GateUpParams(ctypes.Structure):
    _fields_ = (
        ("gate", PTR),
        ("up", PTR),
        ("x", PTR),
        ("ids", PTR),
        ("out", PTR),
        ("scratch", PTR),
        ("scratch_bytes", I64),
        ("x_stride", I64),
        ("gate_expert_stride", I64),
        ("gate_row_stride", I64),
        ("up_expert_stride", I64),
        ("up_row_stride", I64),
        ("experts", I64),
        ("tokens", I64),
        ("top_k", I64),
        ("rows", I64),
        ("cols", I64),
        ("alpha", F32),
        ("limit", F32),
        ("up_offset", F32),
        ("ids_bits", I32),
        ("type", I32),
        ("activations", I32),
        ("variant", I32),
        ("dtype", I32),
        ("out_dtype", I32),
        ("stream", PTR),
    )


class DownParams(ctypes.Structure):
    _fields_ = (
        ("down", PTR),
        ("x", PTR),
        ("ids", PTR),
        ("weights", PTR),
        ("out", PTR),
        ("scratch", PTR),
        ("scratch_bytes", I64),
        ("x_stride", I64),
        ("down_expert_stride", I64),
        ("down_row_stride", I64),
        ("experts", I64),
        ("tokens", I64),
        ("top_k", I64),
        ("rows", I64),
        ("cols", I64),
        ("ids_bits", I32),
        ("type", I32),
        ("weights_dtype", I32),
        ("variant", I32),
        ("dtype", I32),
        ("out_dtype", I32),
        ("stream", PTR),
    )
