"""moe_align_block_size: equal to the obvious loop in Python, for every shape of routing that goes wrong elsewhere."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from native_mat_mat import ALIGN_BLOCK, align

RNG = np.random.default_rng(20)

ROUTINGS = {
    "nothing": (np.zeros((0, 2)), 4),
    "one slot": (np.array([[2]]), 3),
    "ids 0, 127, 128, 255": (np.array([[0, 127], [128, 255]]), 256),
    "no id names an expert": (np.array([[-1, 8], [2**31 + 1, -(2**40)]]), 8),
    "low halves that would name one": (np.array([[2**32 + 1, 2**33]]), 4),
    "all on one expert": (np.full((50, 2), 5), 8),
    "whole blocks": (np.arange(64).reshape(32, 2) // 16, 4),
    "one more than whole blocks": (np.concatenate([np.arange(64) // 16, [3]]).reshape(65, 1), 4),
    "random, with -1": (RNG.integers(-1, 8, size=(97, 2)), 8),
    "1,000 experts": (RNG.integers(-1, 1001, size=(9, 6)), 1000),
    "more than a chunk": (RNG.integers(0, 5, size=(1031, 9)), 5),
    "no expert at all": (np.array([[0, 1]]), 0),
}


@pytest.mark.parametrize("ids, experts", ROUTINGS.values(), ids=ROUTINGS.keys())
@pytest.mark.parametrize("block", [1, ALIGN_BLOCK, 40])
def test_slots_are_sorted_as_a_loop_in_python_does(
    kernels: ModuleType, ids: np.ndarray, experts: int, block: int
) -> None:
    wanted = align(ids, experts, block)
    for dtype in (np.int64, np.int32):
        if np.abs(ids).max(initial=0) >= 2**31 and dtype is np.int32:
            continue
        found = kernels.moe_align_block_size(torch.from_numpy(ids.astype(dtype)), block, experts)
        assert [each.dtype for each in found] == [torch.int32] * 3
        assert np.array_equal(found[0].numpy(), wanted.sorted_ids)
        assert np.array_equal(found[1].numpy(), wanted.expert_ids)
        assert found[2].tolist() == [wanted.padded]


def test_ids_may_have_strides(kernels: ModuleType) -> None:
    ids = torch.arange(12).reshape(3, 4).t()
    assert not ids.is_contiguous()
    wanted = align(ids.numpy(), 12)
    assert np.array_equal(kernels.moe_align_block_size(ids, ALIGN_BLOCK, 12)[0].numpy(), wanted.sorted_ids)


@pytest.mark.parametrize(
    ("ids", "block", "experts", "message"),
    [
        (torch.zeros(2, 2), 16, 4, "topk_ids has dtype Float; wanted: Int (int32) or Long (int64)"),
        (torch.zeros(2, 2, dtype=torch.int32), 0, 4, "block_size is 0; wanted: 1 to 65536"),
        (torch.zeros(2, 2, dtype=torch.int32), 16, -1, "num_experts is -1; wanted: 0 to 8192"),
        (torch.zeros(2, 2, dtype=torch.int32), 16, 8193, "num_experts is 8193; wanted: 0 to 8192"),
    ],
)
def test_wrong_input_is_refused_in_words(
    kernels: ModuleType, ids: torch.Tensor, block: int, experts: int, message: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        kernels.moe_align_block_size(ids, block, experts)
    assert f"moe_align_block_size: {message}" in str(caught.value)
