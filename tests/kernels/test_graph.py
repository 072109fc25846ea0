"""Graphs and streams of a GPU: capture and replay, torch.compile, inference mode, streams. Skipped where there is none.

cuda_run.py runs these with the rest on a machine with a GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import oracle
import pytest
import torch
from cases import FORMATS, fit
from on_device import OnDevice
from test_products import activations, rng_of

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use; cuda_run.py runs it there", allow_module_level=True)

by_format = pytest.mark.parametrize("type_name", FORMATS)
ROWS, TOKENS, TOP_K, EXPERTS = 129, 5, 3, 7


@pytest.fixture(scope="module")
def there(kernels: ModuleType) -> ModuleType:
    """The package itself: tensors here are on the GPU from the start."""
    return kernels._module if isinstance(kernels, OnDevice) else kernels


def layer(there: ModuleType, type_name: str) -> tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor]:
    """A function of X and ids that runs every operator, with weights on the GPU; X and ids."""
    rng = rng_of(type_name)
    cols = fit(type_name, 640)
    weight = torch.from_numpy(oracle.random_blocks(rng, type_name, EXPERTS, ROWS, cols)).cuda()
    x = activations(rng, TOKENS, cols, "float32")[0].cuda()
    ids = torch.from_numpy(rng.integers(-1, EXPERTS, size=(TOKENS, TOP_K))).cuda()

    def run(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        dense = there.ggml_mul_mat_vec_a8(weight[0], x, type_name, ROWS)
        routed = there.ggml_moe_a8_vec(x, weight, ids, TOP_K, type_name, ROWS, TOKENS)
        values = there.ggml_dequantize(weight[1], type_name, ROWS, cols, torch.float32)
        return torch.cat([dense, routed.reshape(TOKENS, TOP_K, ROWS).sum(1), x @ values.T])

    return run, x, ids


@by_format
def test_captured_and_replayed(there: ModuleType, type_name: str) -> None:
    """One graph, replayed on new inputs; nothing in it waits, allocates outside of its pool, or reads on the host."""
    run, x, ids = layer(there, type_name)
    run(x, ids)
    torch.cuda.synchronize()
    importlib.import_module("gguf_kernels._ops")._READY.discard(x.device)  # as if the capture were the first call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(x, ids)
    for seed in range(3):
        generator = torch.Generator("cuda").manual_seed(seed)
        x.copy_(torch.randn(x.shape, generator=generator, device="cuda"))
        ids.copy_(torch.randint(-1, EXPERTS, ids.shape, generator=generator, device="cuda"))
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured[: 2 * TOKENS], run(x, ids)[: 2 * TOKENS])


@by_format
def test_compiled_whole(there: ModuleType, type_name: str) -> None:
    torch._dynamo.reset()  # or the formats before this one count as recompilations
    run, x, ids = layer(there, type_name)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, ids)[: 2 * TOKENS], run(x, ids)[: 2 * TOKENS])


def test_inference_mode_on_a_stream_of_its_own(there: ModuleType) -> None:
    """The kernels run on torch's current stream: behind what was put on it before, ahead of what comes after."""
    run, x, ids = layer(there, "Q8_0")
    wanted = run(x, ids)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    late = torch.zeros_like(x)
    with torch.inference_mode(), torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)  # behind the sleep: another stream would read zeros
        found = run(late, ids)
    stream.synchronize()
    assert torch.equal(found, wanted)


def test_no_call_waits_for_the_gpu(there: ModuleType) -> None:
    """torch's own guard against synchronisation; and calls return while the GPU still sleeps."""
    run, x, ids = layer(there, "Q8_0")
    run(x, ids)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        begin, end = torch.cuda.Event(), torch.cuda.Event()
        begin.record()
        torch.cuda._sleep(500_000_000)
        run(x, ids)
        end.record()
        assert not end.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def test_a_weight_on_another_card(there: ModuleType) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    weight = torch.zeros(2, 34, dtype=torch.uint8, device="cuda:1")
    with pytest.raises(RuntimeError, match="ggml_mul_mat_vec_a8: X is on GPU 0 and W on GPU 1; wanted: one device"):
        there.ggml_mul_mat_vec_a8(weight, torch.ones(1, 32, device="cuda:0"), "Q8_0", 2)


def test_a_tensor_of_the_cpu_beside_a_weight_on_the_gpu(there: ModuleType) -> None:
    weight = torch.zeros(1, 2, 34, dtype=torch.uint8, device="cuda")
    with pytest.raises(RuntimeError, match="ggml_mul_mat_vec_a8: X is on the CPU and W on GPU 0; wanted: one device"):
        there.ggml_mul_mat_vec_a8(weight[0], torch.ones(1, 32), "Q8_0", 2)
    ids = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="topk_ids is on the CPU and W on GPU 0; wanted: one device"):
        there.ggml_moe_a8_vec(torch.ones(1, 32, device="cuda"), weight, ids, 1, "Q8_0", 2, 1)


@pytest.mark.parametrize("type_name", [name for name in ("Q4_0", "Q8_0", "Q4_K") if name in FORMATS])
def test_weights_past_2_to_the_31_elements(there: ModuleType, type_name: str) -> None:
    """Trap 3 in real memory: rows, results and values whose place in their tensor needs more than 31 bits."""
    cols = 16384
    rows = 2**31 // cols + 64
    size = oracle.row_bytes(type_name, cols)
    some = torch.from_numpy(oracle.random_blocks(rng_of(type_name), type_name, 64, cols))
    weight = some.cuda().repeat(rows // 64, 1)
    assert weight.shape == (rows, size)
    x, values = activations(rng_of(type_name), 2, cols, "float32")
    wanted = oracle.mat_vec(some.numpy(), type_name, values)
    found = there.ggml_mul_mat_vec_a8(weight, x.cuda(), type_name, rows)
    assert torch.equal(found.reshape(2, -1, 64), found[:, None, -64:].expand(2, rows // 64, 64))
    assert oracle.nmse(found[:, -64:].cpu().numpy(), wanted) <= 1e-9
    every = there.ggml_dequantize(weight, type_name, rows, cols, torch.float16)
    exact = torch.from_numpy(oracle.dequantize(some.numpy(), type_name)).half()
    assert torch.equal(every[-64:].cpu(), exact)
    assert torch.equal(every[: rows // 2 // 64 * 64].reshape(-1, 64, cols)[-1].cpu(), exact)
