"""The native libraries: loaded once, at import, and asked what they hold."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import torch

from gguf_kernels._types import type_id

__all__ = ["OPERATORS", "REPORT", "supports"]

OPERATORS = ("ggml_dequantize", "ggml_mul_mat_vec_a8", "ggml_moe_a8_vec")  # by their number in csrc/api.h


def _load() -> Any:
    try:
        loader = importlib.import_module("gguf_kernels.lib._rocmbuild_loader")
    except ModuleNotFoundError as err:
        if err.name != "gguf_kernels.lib._rocmbuild_loader":
            raise
        raise ImportError(
            "gguf_kernels has no native libraries beside it: this is its source folder, not a build of it; "
            "install a wheel (`rocmbuild build kernels`, or `pip install ./kernels`)",
            name="gguf_kernels",
        ) from None
    report = loader.load("gguf").require()
    missing = [name for name in OPERATORS if not hasattr(torch.ops.gguf_kernels, name)]
    if missing:
        raise ImportError(
            f"gguf_kernels loaded {', '.join(report.loaded.values())}, but torch knows no operator "
            f"{', '.join(missing)}; install the wheel again",
            name="gguf_kernels",
        )
    return report


REPORT = _load()
_HANDLES = {platform: ctypes.CDLL(path) for platform, path in REPORT.loaded.items()}  # each is loaded already


def supports(op: str, type: int | str, device: torch.device | str) -> bool:
    """Whether an operator (by its name) has a kernel for a type of weights, in a library that is loaded for a device.

    device: "cpu", or a GPU as torch names it. False when torch sees no such GPU. ValueError for an unknown operator
    or name.
    """
    if op not in OPERATORS:
        raise ValueError(f"op is {op!r}; wanted one of {', '.join(OPERATORS)}")
    place = torch.device(device)
    if place.type == "cuda":
        handle = _HANDLES.get("rocm") or _HANDLES.get("cuda")
        if handle is None or not torch.cuda.is_available() or (place.index or 0) >= torch.cuda.device_count():
            return False
    elif place.type == "cpu":
        handle = _HANDLES.get("host")
    else:
        return False
    return handle is not None and bool(handle.gguf_supports(OPERATORS.index(op), type_id(type), None) == 0)
