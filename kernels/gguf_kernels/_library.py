"""The native libraries: loaded once, at import, and asked what they hold."""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

import torch

from gguf_kernels._types import GGMLType, type_id

__all__ = [
    "OPERATORS",
    "REPORT",
    "block_sizes",
    "capabilities",
    "device_fault",
    "devices",
    "require_device",
    "supports",
]

OPERATORS = (  # by their number in csrc/api.h
    "ggml_dequantize",
    "ggml_mul_mat_vec_a8",
    "ggml_moe_a8_vec",
    "ggml_moe_gate_up_a8",
    "mxfp4_moe_gate_up",
    "mxfp4_moe_down",
    "ggml_mul_mat_a8",
    "ggml_moe_a8",
)

HELPERS = ("moe_align_block_size", "ggml_quantize_q8_0", "ggml_quantize_q8_k")
"""Operators without weights."""


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
    missing = [name for name in (*OPERATORS, *HELPERS) if not hasattr(torch.ops.gguf_kernels, name)]
    if missing:
        raise ImportError(
            f"gguf_kernels loaded {', '.join(report.loaded.values())}, but torch knows no operator "
            f"{', '.join(missing)}; install the wheel again",
            name="gguf_kernels",
        )
    return report


REPORT = _load()
_HANDLES = {platform: ctypes.CDLL(path) for platform, path in REPORT.loaded.items()}  # each is loaded already


def block_sizes() -> dict[int, int]:
    """Type id -> entries of sorted_token_ids that share an expert in ggml_moe_a8, for the types that it takes."""
    found: dict[int, int] = {}
    entries = ctypes.c_int32()
    for kind in GGMLType:
        if any(each.gguf_moe_block_size(int(kind), ctypes.byref(entries), None) == 0 for each in _HANDLES.values()):
            found[int(kind)] = entries.value
    return found


def devices() -> tuple[torch.device, ...]:
    """The CPU and each GPU that torch sees."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return (torch.device("cpu"), *(torch.device("cuda", index) for index in range(count)))


def device_fault(device: torch.device | str) -> str | None:
    """Why no library of this package can run on a device, or None when one can.

    device: "cpu", or a GPU as torch names it; "cuda" is the current one. The first question about a GPU asks its
    runtime whether the library holds code for it, which takes that GPU into use; the answer is kept.
    """
    place = torch.device(device)
    if place.type == "cpu":
        return None if "host" in _HANDLES else f"the host library is not loaded: {_refusal('host')}"
    if place.type != "cuda":
        return f"there are no kernels for devices of type {place.type!r}"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    index = torch.cuda.current_device() if place.index is None else place.index
    count = torch.cuda.device_count()
    return f"torch sees {count} GPUs" if index >= count else _gpu_fault(index)


@functools.cache
def _gpu_fault(index: int) -> str | None:
    platform = "rocm" if torch.version.hip else "cuda"
    if platform not in _HANDLES:
        return f"the {platform} library is not loaded: {_refusal(platform)}"
    properties = torch.cuda.get_device_properties(index)
    if platform == "rocm":
        target = str(properties.gcnArchName).partition(":")[0]
        served = REPORT.targets
        if served and target not in served and f"{target[:5]}-generic" not in served:
            return f"GPU {index} ({properties.name}) is {target}, and this wheel is for {', '.join(served)}"
    error = ctypes.create_string_buffer(512)
    with torch.cuda.device(index):
        code = _HANDLES[platform].gguf_device_ready(error)
    return None if code == 0 else f"GPU {index} ({properties.name}): {error.value.decode()}"


def _refusal(platform: str) -> str:
    return str(REPORT.refused.get(platform, "this wheel was built without it"))


def _serves(place: torch.device) -> ctypes.CDLL | None:
    """The library that runs on a device."""
    if device_fault(place) is not None:
        return None
    return _HANDLES["host"] if place.type == "cpu" else _HANDLES.get("rocm") or _HANDLES["cuda"]


def supports(op: str, type: int | str, device: torch.device | str) -> bool:
    """Whether an operator (by its name) takes weights of a type on a device: it is compiled in, and it can run there.

    A loader asks this before it keeps weights packed. device: "cpu", or a GPU as torch names it; False when torch sees
    no such GPU, or when the library has no code for that card. ValueError for an unknown operator or name of a type.
    """
    if op not in OPERATORS:
        raise ValueError(f"op is {op!r}; wanted one of {', '.join(OPERATORS)}")
    number = type_id(type)
    handle = _serves(torch.device(device))
    return handle is not None and bool(handle.gguf_supports(OPERATORS.index(op), number, None) == 0)


def capabilities() -> dict[str, dict[str, tuple[str, ...]]]:
    """Device -> operator -> names of the types that it takes there, for the CPU and each GPU that torch sees.

    {"cpu": {"ggml_dequantize": ("Q4_0", ...), ...}, "cuda:0": {...}}: what `supports` says of each. A device that no
    library serves has operators without types; `device_fault` says why.
    """
    return {
        str(place): {op: tuple(kind.name for kind in GGMLType if supports(op, kind, place)) for op in OPERATORS}
        for place in devices()
    }


def require_device(op: str, argument: str, place: torch.device) -> None:
    """RuntimeError that names what there is, unless a library runs on the device of an argument."""
    fault = device_fault(place)
    if fault is not None:
        good = ", ".join(str(each) for each in devices() if device_fault(each) is None)
        raise RuntimeError(
            f"{op}: {argument} is on {place}, where nothing can run: {fault}; supported: {good or 'no device'}"
        )
