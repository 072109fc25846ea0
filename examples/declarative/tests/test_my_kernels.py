"""Run with pytest where the wheel is installed; the card is used where there is one."""

import my_kernels
import pytest
import torch


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_scale(device: str) -> None:
    x = torch.randn(1000, 3, device=device)
    assert torch.equal(my_kernels.scale(x.t(), 2.5), x.t() * 2.5)
    assert my_kernels.scale(x[:0], 2.5).shape == (0, 3)
    with pytest.raises(RuntimeError, match="must be float32"):
        my_kernels.scale(x.double(), 2.5)
