"""The package under test with its operators on another device, for tests that are written with tensors of the CPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

__all__ = ["DEVICE_VARIABLE", "OnDevice", "moved"]

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
        if not name.startswith(("ggml_", "mxfp4_")):
            return found

        def there(*arguments: Any, **options: Any) -> Any:
            result = found(
                *(moved(item, self._device) if isinstance(item, torch.Tensor) else item for item in arguments),
                **{
                    key: moved(item, self._device) if isinstance(item, torch.Tensor) else item
                    for key, item in options.items()
                },
            )
            return result.cpu() if isinstance(result, torch.Tensor) else result

        return there
