"""The package under test on another device, for tests that are written with tensors and arrays of the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from native import NativeLibrary

__all__ = ["DEVICE_VARIABLE", "DeviceLibrary", "OnDevice", "moved"]

DEVICE_VARIABLE = "GGUF_KERNELS_TEST_DEVICE"
"""A device as torch names it ("cuda"): the tests of results run there, on the same cases, with the same bounds."""


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on a device, with the same strides and the same place in its storage."""
    if tensor.numel() == 0:
        return tensor.to(device)
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return whole.to(device).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class OnDevice:
    """A stand-in for the module: its operators take their tensors to the device and bring their results back."""

    def __init__(self, module: ModuleType, device: str) -> None:
        self._module = module
        self._device = device

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not name.startswith(("ggml_", "mxfp4_", "moe_")):
            return found

        def there(*arguments: Any, **options: Any) -> Any:
            result = found(
                *(moved(item, self._device) if isinstance(item, torch.Tensor) else item for item in arguments),
                **{
                    key: moved(item, self._device) if isinstance(item, torch.Tensor) else item
                    for key, item in options.items()
                },
            )
            if isinstance(result, tuple):
                return tuple(each.cpu() for each in result)
            return result.cpu() if isinstance(result, torch.Tensor) else result

        return there


class DeviceLibrary(NativeLibrary):
    """The launch functions of a device's library, called with copies of arrays on the device."""

    def __init__(self, path: Path, device: str) -> None:
        super().__init__(path)
        self._device = device
        self._placed: list[tuple[torch.Tensor, np.ndarray | None]] = []

    def place(self, array: np.ndarray, *, result: bool = False) -> int:
        there = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8)).to(self._device)
        self._placed.append((there, array if result else None))
        return there.data_ptr()

    def call(self, name: str, params: ctypes.Structure) -> None:
        placed, self._placed = self._placed, []
        super().call(name, params)
        for there, array in placed:
            if array is not None:
                array[...] = there.cpu().numpy().view(array.dtype).reshape(array.shape)  # waits for the device
