"""Routed experts: gate and up fused with SwiGLU, down with the routing weights, every variant against the oracle."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import numpy as np
import oracle
import pytest
import routed_oracle
import torch
from cases import FORMATS, NMSE_F32, fit, ulps
from native import NativeLibrary, guarded
from on_device import DEVICE_VARIABLE, OnDevice
from packages import ROOT
from routed_oracle import blocks_of_32, q8_k
from routed_sanitized import run_routed
from test_products import activations, rng_of

TILES = ("tiles", "dot_tiles")
VARIANTS = ("direct", *TILES)
TOKENS = (1, 2, 3, 4, 5, 8, 16, 32)
MANY = (64, 128, 512)
OPTIONS = ({}, {"alpha": 1.702, "limit": 7.0, "up_offset": 1.0}, {"limit": 0.5})
by_format = pytest.mark.parametrize("type_name", FORMATS)
by_variant = pytest.mark.parametrize("variant", VARIANTS)

if "MXFP4" not in FORMATS:
    pytest.skip("the sources under test have no MXFP4", allow_module_level=True)


def check(found: torch.Tensor, wanted: np.ndarray, bound: np.ndarray, dtype: str = "float32") -> None:
    """Each element within its bound, and half a unit in the last place more where it is rounded; NMSE over all."""
    assert found.dtype == getattr(torch, dtype)
    assert tuple(found.shape) == wanted.shape
    got = found.double().numpy()
    rounding = 0.0 if dtype == "float32" else ulps(dtype) * 1.001
    error = np.abs(got - wanted)
    assert (error <= bound + np.abs(wanted) * rounding + (2.0**-25 if dtype == "float16" else 0)).all(), error.max()
    if dtype == "float32":
        assert oracle.nmse(got, wanted) <= NMSE_F32


def experts(rng: np.random.Generator, count: int, rows: int, cols: int) -> np.ndarray:
    return oracle.random_blocks(rng, "MXFP4", count, rows, cols)


def routed(rng: np.random.Generator, count: int, tokens: int, top_k: int) -> np.ndarray:
    """Ids of distinct experts for each token, as a router gives them; expert 0 has none where it can be spared."""
    least = 1 if count > top_k else 0
    return np.stack([rng.permutation(np.arange(least, count))[:top_k] for _ in range(tokens)])


def layer_case(
    tokens: int, *, count: int = 8, model: int = 512, ffn: int = 256, top_k: int = 3
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray, np.ndarray]:
    """x, [gate, up, down], ids, factors."""
    rng = rng_of(tokens, count, model, ffn)
    x = (rng.standard_normal((tokens, model)) * 10.0 ** rng.uniform(-1, 1, size=(tokens, 1))).astype(np.float32)
    weights = [experts(rng, count, ffn, model), experts(rng, count, ffn, model), experts(rng, count, model, ffn)]
    ids = routed(rng, count, tokens, top_k)
    factors = rng.uniform(0.05, 1.0, size=ids.shape).astype(np.float32)
    return x, weights, ids, factors


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def check_layer(kernels: ModuleType, tokens: int, variant: str, **shape: int) -> None:
    """Both steps; the second against the oracle of the first one's own result (trap 16)."""
    x, weights, ids, factors = layer_case(tokens, **shape)
    tx, gate, up, down, tids, tfactors = tensors(x, *weights, ids, factors)
    options = OPTIONS[tokens % len(OPTIONS)]
    hidden = kernels.mxfp4_moe_gate_up(tx, gate, up, tids, variant=variant, **options)
    check(hidden, *routed_oracle.gate_up(x, weights[0], weights[1], ids, "MXFP4", q8_k, **options))
    found = kernels.mxfp4_moe_down(hidden, down, tids, tfactors, variant=variant)
    check(found, *routed_oracle.down(hidden.numpy(), weights[2], ids, factors))


@by_variant
@pytest.mark.parametrize("tokens", TOKENS)
def test_a_layer(kernels: ModuleType, tokens: int, variant: str) -> None:
    small = {} if tokens <= 8 else {"model": 256, "ffn": 256}
    check_layer(kernels, tokens, variant, **small)


@by_variant
@pytest.mark.parametrize("tokens", MANY)
@pytest.mark.slow
def test_a_layer_of_many_tokens(kernels: ModuleType, tokens: int, variant: str) -> None:
    check_layer(kernels, tokens, variant, model=512 if tokens < 512 else 256, ffn=256, top_k=2)


@by_variant
def test_shapes_that_are_no_multiples(kernels: ModuleType, variant: str) -> None:
    """Rows of 1, 127 and 129 at odd places, one block of K, more slots than experts' tokens."""
    rng = rng_of(variant)
    for rows, cols, tokens, top_k in ((1, 256, 7, 1), (127, 256, 9, 2), (129, 768, 6, 5)):
        gate, up, down = (experts(rng, 6, rows, cols) for _ in range(3))
        x, values = activations(rng, tokens, cols, "float32")
        ids = routed(rng, 6, tokens, top_k)
        hidden = kernels.mxfp4_moe_gate_up(x, *tensors(gate, up, ids), variant=variant)
        check(hidden, *routed_oracle.gate_up(values, gate, up, ids, "MXFP4", q8_k))
        h, factors = rng.standard_normal((ids.size, cols)).astype(np.float32), rng.uniform(size=ids.shape)
        found = kernels.mxfp4_moe_down(*tensors(h, down, ids, factors.astype(np.float32)), variant=variant)
        check(found, *routed_oracle.down(h, down, ids, factors.astype(np.float32)))


@by_format
def test_gate_and_up_of_every_format(kernels: ModuleType, type_name: str) -> None:
    rng = rng_of(type_name)
    for number, (rows, least, tokens, top_k) in enumerate(((5, 32, 1, 1), (9, 1120, 3, 2), (1, 2080, 2, 3))):
        cols = fit(type_name, least)
        gate, up = (oracle.random_blocks(rng, type_name, 4, rows, cols) for _ in range(2))
        x = rng.standard_normal((tokens, cols)).astype(np.float32)
        ids = rng.integers(-1, 4, size=(tokens, top_k))
        ids[0, 0] = 3
        found = kernels.ggml_moe_gate_up_a8(
            torch.from_numpy(x), *tensors(gate, up, ids), top_k, type_name, rows, tokens, **OPTIONS[number]
        )
        check(found, *routed_oracle.gate_up(x, gate, up, ids, type_name, blocks_of_32, **OPTIONS[number]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@by_variant
def test_dtypes(kernels: ModuleType, dtype: str, variant: str) -> None:
    """Of X, of the result and of the routing weights, each by itself; ids of 32 bits."""
    rng = rng_of(dtype)
    gate, up, down = experts(rng, 4, 17, 256), experts(rng, 4, 17, 256), experts(rng, 4, 19, 256)
    x, values = activations(rng, 6, 256, dtype)
    ids = routed(rng, 4, 6, 2).astype(np.int32)
    wanted = routed_oracle.gate_up(values, gate, up, ids, "MXFP4", q8_k)
    for out in (dtype, "float32"):
        found = kernels.mxfp4_moe_gate_up(
            x, *tensors(gate, up, ids), dtype=None if out == dtype else torch.float32, variant=variant
        )
        check(found, *wanted, out)
    hidden, h_values = activations(rng, ids.size, 256, dtype)
    factors = torch.from_numpy(rng.uniform(-1, 1, size=ids.shape)).to(getattr(torch, dtype))
    wanted = routed_oracle.down(h_values, down, ids, factors.double().numpy())
    found = kernels.mxfp4_moe_down(hidden, *tensors(down, ids), factors, dtype=torch.float32, variant=variant)
    check(found, *wanted)
    check(kernels.mxfp4_moe_down(hidden, *tensors(down, ids), factors, variant=variant), *wanted, dtype)


# --- routing ---------------------------------------------------------------------------------------------------------


@by_variant
@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
def test_ids_at_the_edges_of_bytes(kernels: ModuleType, ids_dtype: type, variant: str) -> None:
    """Trap 1: ids 0, 127, 128 and 255 of 256 experts, -1, one past the end, and one that 32 bits cut to 0."""
    rng = rng_of(variant)
    gate, up, down = (experts(rng, 256, 3, 256) for _ in range(3))
    beyond = 2**32 if ids_dtype is np.int64 else 2**31 - 1
    ids = np.array([[0, 127], [128, 255], [-1, 255], [256, -1], [beyond, 0], [-1, -1]], ids_dtype)
    x, values = activations(rng, len(ids), 256, "float32")
    hidden = kernels.mxfp4_moe_gate_up(x, *tensors(gate, up, ids), variant=variant)
    check(hidden, *routed_oracle.gate_up(values, gate, up, ids, "MXFP4", q8_k))
    no_expert = (ids < 0).reshape(-1) | (ids > 255).reshape(-1)
    assert no_expert.sum() == 6 and not hidden[torch.from_numpy(no_expert)].any()
    h = rng.standard_normal((ids.size, 256)).astype(np.float32)
    h[no_expert] = np.nan  # never looked at, as little as its weight
    factors = rng.uniform(size=ids.shape).astype(np.float32)
    factors.reshape(-1)[no_expert] = np.inf
    found = kernels.mxfp4_moe_down(*tensors(h, down, ids, factors), variant=variant)
    check(found, *routed_oracle.down(h, down, ids, factors))
    assert not found[-1].any()


@by_variant
def test_all_tokens_on_one_expert_and_every_token_on_none(kernels: ModuleType, variant: str) -> None:
    rng = rng_of(variant)
    gate, up, down = (experts(rng, 5, 6, 256) for _ in range(3))
    for ids in (np.full((37, 1), 3), np.full((37, 1), -1), np.full((3, 4), 2)):
        x, values = activations(rng, len(ids), 256, "float32")
        hidden = kernels.mxfp4_moe_gate_up(x, *tensors(gate, up, ids), variant=variant)
        factors = rng.uniform(size=ids.shape).astype(np.float32)
        h = rng.standard_normal((ids.size, 256)).astype(np.float32)
        found = kernels.mxfp4_moe_down(*tensors(h, down, ids, factors), variant=variant)
        if (ids < 0).all():
            assert not hidden.any() and not found.any()
            continue
        check(hidden, *routed_oracle.gate_up(values, gate, up, ids, "MXFP4", q8_k))
        check(found, *routed_oracle.down(h, down, ids, factors))


@by_variant
def test_empty_calls(kernels: ModuleType, variant: str) -> None:
    weight = torch.zeros(2, 3, 136, dtype=torch.uint8)
    for tokens, top_k in ((0, 2), (3, 0)):
        ids = torch.zeros(tokens, top_k, dtype=torch.int64)
        hidden = kernels.mxfp4_moe_gate_up(torch.ones(tokens, 256), weight, weight, ids, variant=variant)
        assert tuple(hidden.shape) == (0, 3)
        found = kernels.mxfp4_moe_down(torch.ones(0, 256), weight, ids, torch.ones(tokens, top_k), variant=variant)
        assert tuple(found.shape) == (tokens, 3) and not found.any()
    none = kernels.mxfp4_moe_gate_up(torch.ones(2, 256), weight[:, :0], weight[:, :0], ids[:2, :0], variant=variant)
    assert none.numel() == 0


@by_variant
def test_a_result_does_not_depend_on_the_batch(kernels: ModuleType, variant: str) -> None:
    """Within a variant: each token by itself, and the tokens in another order, give the same bits."""
    x, weights, ids, factors = layer_case(24, model=256, ffn=256)
    gate, up, down, tx, tids, tfactors = tensors(*weights, x, ids, factors)

    def run(which: torch.Tensor) -> torch.Tensor:
        hidden = kernels.mxfp4_moe_gate_up(tx[which], gate, up, tids[which], variant=variant)
        return kernels.mxfp4_moe_down(hidden, down, tids[which], tfactors[which], variant=variant)  # type: ignore[no-any-return]

    whole = run(torch.arange(24))
    order = torch.from_numpy(rng_of().permutation(24))
    assert torch.equal(run(order), whole[order])
    assert torch.equal(run(torch.arange(7, 20)), whole[7:20])
    assert torch.equal(torch.cat([run(torch.tensor([t])) for t in range(5)]), whole[:5])


@pytest.mark.parametrize("tokens", [9, *(pytest.param(many, marks=pytest.mark.slow) for many in (128, 512))])
def test_tiles_give_the_same_bits_with_and_without_matrix_cores(kernels: ModuleType, tokens: int) -> None:
    x, weights, ids, factors = layer_case(tokens, model=256, ffn=256, top_k=2)
    gate, up, down, tx, tids, tfactors = tensors(*weights, x, ids, factors)
    hidden = [kernels.mxfp4_moe_gate_up(tx, gate, up, tids, variant=each) for each in TILES]
    assert torch.equal(*hidden) and hidden[0].any()
    found = [kernels.mxfp4_moe_down(hidden[0], down, tids, tfactors, variant=each) for each in TILES]
    assert torch.equal(*found) and found[0].any()


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 9])
def test_auto_is_one_of_the_variants(kernels: ModuleType, tokens: int) -> None:
    x, weights, ids, factors = layer_case(tokens, model=256, ffn=256, top_k=2)
    gate, up, down, tx, tids, tfactors = tensors(*weights, x, ids, factors)
    hidden = {each: kernels.mxfp4_moe_gate_up(tx, gate, up, tids, variant=each) for each in ("auto", *VARIANTS)}
    assert any(torch.equal(hidden["auto"], hidden[each]) for each in VARIANTS)
    found = kernels.mxfp4_experts(tx, gate, up, down, tids, tfactors)
    assert any(
        torch.equal(found, kernels.mxfp4_moe_down(hidden["auto"], down, tids, tfactors, variant=each))
        for each in VARIANTS
    )


# --- weights where they lie ------------------------------------------------------------------------------------------


@by_variant
def test_gate_and_up_as_parts_of_one_tensor(kernels: ModuleType, variant: str) -> None:
    """Halves, and even and odd rows; neither is copied, and both give what two tensors give."""
    rng = rng_of(variant)
    both = torch.from_numpy(experts(rng, 4, 26, 256))
    x, _ = activations(rng, 6, 256, "float32")
    ids = torch.from_numpy(routed(rng, 4, 6, 2))
    for gate, up in ((both[:, :13], both[:, 13:]), (both[:, ::2], both[:, 1::2])):
        wanted = kernels.mxfp4_moe_gate_up(x, gate.contiguous(), up.contiguous(), ids, variant=variant)
        assert torch.equal(kernels.mxfp4_moe_gate_up(x, gate, up, ids, variant=variant), wanted)
    gate, up = both[1:3, 3:9], both[2:4, ::2][:, :6]
    wanted = kernels.mxfp4_moe_gate_up(x, gate.contiguous(), up.contiguous(), ids % 2, variant=variant)
    assert torch.equal(kernels.mxfp4_moe_gate_up(x, gate, up, ids % 2, variant=variant), wanted)
    hidden = torch.from_numpy(rng.standard_normal((12, 256)).astype(np.float32))
    factors = torch.ones(6, 2)
    down = both[:, ::2]
    wanted = kernels.mxfp4_moe_down(hidden, down.contiguous(), ids, factors, variant=variant)
    assert torch.equal(kernels.mxfp4_moe_down(hidden, down, ids, factors, variant=variant), wanted)


@by_variant
def test_other_layouts_of_the_rest(kernels: ModuleType, variant: str) -> None:
    """Trap 6: X as a chunk, transposed and expanded; ids and weights as columns of something wider."""
    rng = rng_of(variant)
    gate, up, down = tensors(*(experts(rng, 4, 9, 256) for _ in range(3)))
    wide, _ = activations(rng, 6, 512, "float32")
    ids = torch.from_numpy(routed(rng, 4, 6, 3))
    chunk = wide[:, 128:384]
    for x in (chunk, chunk.t().contiguous().t(), chunk[:1].expand(6, -1)):
        wanted = kernels.mxfp4_moe_gate_up(x.contiguous(), gate, up, ids[:, 1:].contiguous(), variant=variant)
        assert torch.equal(kernels.mxfp4_moe_gate_up(x, gate, up, ids[:, 1:], variant=variant), wanted)
    factors = torch.rand(6, 3)
    hidden = torch.randn(12, 512)
    wanted = kernels.mxfp4_moe_down(
        hidden[:, :256].contiguous(), down, ids[:, 1:].contiguous(), factors[:, 1:].contiguous(), variant=variant
    )
    assert torch.equal(
        kernels.mxfp4_moe_down(hidden[:, :256], down, ids[:, 1:], factors[:, 1:], variant=variant), wanted
    )


def test_nothing_outside_of_the_buffers_is_touched(library: Path) -> None:
    """Trap 5, and 1 again: pages that nobody may touch around each buffer, results and scratch poisoned."""
    with ExitStack() as stack:
        run_routed(
            NativeLibrary(library),
            lambda array: stack.enter_context(guarded(array))[0],
            (1, 2, 3),
        )


# --- numbers at the edges --------------------------------------------------------------------------------------------


def unit_rows(cols: int) -> torch.Tensor:
    """MXFP4 [1, cols, bytes]: row r is 1 at column r and 0 elsewhere, so a product shows one quantised activation."""
    rows = np.zeros((cols, cols // 32, 17), np.uint8)
    rows[..., 0] = 127
    at = np.arange(cols)
    within = at % 32
    rows[at, at // 32, 1 + within % 16] = np.where(within < 16, 2, 2 << 4)
    return torch.from_numpy(rows.reshape(1, cols, cols // 32 * 17))


@by_variant
def test_activations_are_those_of_q8_k(kernels: ModuleType, variant: str) -> None:
    """d and q to the last bit: ties, halves, the first of two largest, denormals, zeros, the ends of float32."""
    rng = rng_of(variant)
    x = rng.standard_normal((9, 256)).astype(np.float32)
    x[1, [17, 200]] = 8.0, -8.0
    x[2, [17, 200]] = -8.0, 8.0
    x[3] = np.arange(-128, 128) / 2  # every quotient a whole number or a half
    x[3, 0] = 63.5
    x[4] = 0.0
    x[5] *= np.float32(1e-39)
    x[6] *= np.float32(1e38) / np.abs(x[6]).max()
    x[7] *= np.float32(2e-37)
    x[8] = -0.0
    x[8, 255] = np.float32(1e-45)
    wanted = q8_k(x)
    assert (wanted[5] == 0).all() and wanted[7].any()
    found = kernels.mxfp4_moe_down(
        torch.from_numpy(x), unit_rows(256), torch.zeros(9, 1, dtype=torch.int64), torch.ones(9, 1), variant=variant
    )
    assert np.array_equal(found.numpy(), wanted.astype(np.float32))


@by_variant
def test_scales_of_0_and_255(kernels: ModuleType, variant: str) -> None:
    """E8M0 0 is 2^-127, a denormal that no flush may lose; 255 is NaN, of its own row alone."""
    rng = rng_of(variant)
    weight = experts(rng, 2, 4, 256)
    weight[0, 1].reshape(8, 17)[:, 0] = 0
    weight[0, 2].reshape(8, 17)[3, 0] = 255
    x = np.full((6, 256), 2.0**20, np.float32) * rng.choice([-1.0, 1.0], size=(6, 256)).astype(np.float32)
    ids = np.array([[0], [1], [0], [1], [0], [1]])
    found = kernels.mxfp4_moe_down(*tensors(x, weight, ids, np.ones((6, 1), np.float32)), variant=variant).numpy()
    assert np.isnan(found[0::2, 2]).all() and np.isfinite(np.delete(found, 2, axis=1)).all()
    assert np.isfinite(found[1::2]).all()
    wanted, bound = routed_oracle.down(x, weight, ids, np.ones((6, 1)))
    assert (np.abs(wanted[0::2, 1]) > 0).all() and (np.abs(wanted[0::2, 1]) < 1e-30).all()
    tiny = 2.0**-140  # sums of denormals are rounded to the spacing of those
    assert (np.abs(found - wanted)[~np.isnan(wanted)] <= (bound + tiny)[~np.isnan(wanted)]).all()
    assert (found[0::2, 1] != 0).all()


@by_variant
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_with_its_token(kernels: ModuleType, value: float, variant: str) -> None:
    """Trap 9, with a clamp, which must not turn NaN into its limit."""
    x, weights, ids, factors = layer_case(7, model=512, ffn=256)
    gate, up, down, tids, tfactors = tensors(*weights, ids, factors)
    x[3, 400] = value
    hidden = kernels.mxfp4_moe_gate_up(torch.from_numpy(x), gate, up, tids, limit=7.0, variant=variant)
    own = torch.arange(21) // 3 == 3
    assert hidden[own].isnan().all() and hidden[~own].isfinite().all()
    found = kernels.mxfp4_moe_down(hidden, down, tids, tfactors, variant=variant)
    assert found[3].isnan().all() and found[[0, 1, 2, 4, 5, 6]].isfinite().all()


# --- errors, registration --------------------------------------------------------------------------------------------


def test_the_operators_are_registered(kernels: ModuleType) -> None:
    """Trap 11."""
    for name in ("ggml_moe_gate_up_a8", "mxfp4_moe_gate_up", "mxfp4_moe_down"):
        assert getattr(torch.ops.gguf_kernels, name).overloads() == ["default"]
        for key in ("CPU", "Meta"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"gguf_kernels::{name}", key), (name, key)


def test_supports(kernels: ModuleType) -> None:
    for type_name in FORMATS:
        assert kernels.supports("ggml_moe_gate_up_a8", type_name, "cpu")
        for op in ("mxfp4_moe_gate_up", "mxfp4_moe_down"):
            assert kernels.supports(op, type_name, "cpu") == (type_name == "MXFP4")
    assert not kernels.supports("ggml_moe_gate_up_a8", "Q8_K", "cpu")


def test_opcheck_and_compile(kernels: ModuleType) -> None:
    x, weights, ids, factors = layer_case(5, model=256, ffn=256)
    device = os.environ.get(DEVICE_VARIABLE, "cpu")
    tx, gate, up, down, tids, tfactors = (one.to(device) for one in tensors(x, *weights, ids, factors))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    ops = torch.ops.gguf_kernels
    torch.library.opcheck(ops.mxfp4_moe_gate_up.default, (tx, gate, up, tids), test_utils=checks)
    torch.library.opcheck(
        ops.mxfp4_moe_down.default, (torch.ones(15, 256, device=device), down, tids, tfactors), test_utils=checks
    )
    torch.library.opcheck(ops.ggml_moe_gate_up_a8.default, (tx, gate, up, tids, 3, 39, 256, 5), test_utils=checks)
    experts = importlib.import_module(kernels.__name__).mxfp4_experts  # itself, not a stand-in that moves tensors
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
    wanted = experts(tx, gate, up, down, tids, tfactors)
    assert torch.equal(compiled(tx, gate, up, down, tids, tfactors), wanted)


def test_wrong_input_is_refused_in_words(kernels: ModuleType) -> None:
    x, weights, ids, factors = layer_case(2, model=256, ffn=256)
    tx, gate, up, down, tids, tfactors = tensors(x, *weights, ids, factors)
    hidden = torch.ones(6, 256)
    first, second, fused = kernels.mxfp4_moe_gate_up, kernels.mxfp4_moe_down, kernels.ggml_moe_gate_up_a8
    for call, text in (
        (lambda: first(tx.double(), gate, up, tids), "mxfp4_moe_gate_up: the dtype of X is Double; wanted: Float"),
        (lambda: first(tx, gate.char(), up, tids), "mxfp4_moe_gate_up: W_gate has dtype Char; wanted: Byte (uint8)"),
        (
            lambda: first(tx, gate, up[:, :5], tids),
            "mxfp4_moe_gate_up: W_up has shape [8, 5, 136]; wanted: [8, 256, 136]",
        ),
        (
            lambda: first(tx[:, :224], gate[..., :119], up[..., :119], tids),
            "mxfp4_moe_gate_up: cols is 224; wanted: a multiple of 256, the block of Q8_K activations",
        ),
        (
            lambda: first(tx, gate.mT.contiguous().mT, up, tids),
            "mxfp4_moe_gate_up: W_gate has stride 256 within a row; wanted: 1, rows without gaps",
        ),
        (lambda: first(tx, gate, up, tids[0]), "mxfp4_moe_gate_up: topk_ids has shape [3]; wanted: [tokens, top_k]"),
        (
            lambda: first(tx, gate, up, tids.short()),
            "mxfp4_moe_gate_up: topk_ids has dtype Short; wanted: Int (int32) or Long (int64)",
        ),
        (lambda: first(tx, gate, up, tids, limit=-1.0), "mxfp4_moe_gate_up: limit is -1; wanted: 0 or more"),
        (lambda: first(tx, gate, up, tids, variant="fast"), "variant is 'fast'; wanted one of auto, direct, tiles"),
        (
            lambda: second(hidden[:5], down, tids, tfactors),
            "mxfp4_moe_down: topk_ids has shape [2, 3]; wanted: [tokens, top_k] for H of shape [5, 256]",
        ),
        (
            lambda: second(hidden, down, tids, tfactors[:, :2]),
            "mxfp4_moe_down: topk_weights has shape [2, 2]; wanted: that of topk_ids, [2, 3]",
        ),
        (
            lambda: second(hidden, down, tids, tids),
            "mxfp4_moe_down: the dtype of topk_weights is Long; wanted: Float, Half or BFloat16",
        ),
        (
            lambda: fused(tx, gate, up, tids, 3, "Q8_K", 256, 2),
            "ggml_moe_gate_up_a8: type Q8_K (15) is a format of activations",
        ),
        (
            lambda: fused(tx, gate, up, tids, 3, "MXFP4", 256, 3),
            "ggml_moe_gate_up_a8: X has shape [2, 256]; wanted: [3, col] for tokens = 3",
        ),
    ):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call()
        assert str(caught.value).startswith(text), str(caught.value)


@pytest.mark.parametrize("name", ["routed_layer", "moe_drop_in"])
def test_examples(package: Path, name: str) -> None:
    """They judge their results themselves."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        env={"PYTHONPATH": os.pathsep.join([str(package), *sys.path]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "% from " in done.stdout


# --- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use; cuda_run.py runs it there")
@pytest.mark.parametrize("tokens", [1, 4, 24])
@by_variant
def test_a_captured_layer_takes_new_routing(kernels: ModuleType, tokens: int, variant: str) -> None:
    """A whole routed layer in one graph, replayed on other tokens, other ids (-1 among them) and other weights."""
    there = kernels._module if isinstance(kernels, OnDevice) else kernels
    _, weights, _, _ = layer_case(tokens, model=512, ffn=256)
    gate, up, down = (each.cuda() for each in tensors(*weights))
    x = torch.zeros(tokens, 512, device="cuda")
    ids = torch.zeros(tokens, 3, dtype=torch.int64, device="cuda")
    factors = torch.zeros(tokens, 3, device="cuda")

    def layer() -> torch.Tensor:
        return there.mxfp4_experts(x, gate, up, down, ids, factors, variant=variant)  # type: ignore[no-any-return]

    layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer()
    for seed in range(4):
        generator = torch.Generator("cuda").manual_seed(seed)
        x.copy_(torch.randn(x.shape, generator=generator, device="cuda"))
        ids.copy_(torch.randint(-1, 8, ids.shape, generator=generator, device="cuda"))
        factors.copy_(torch.rand(factors.shape, generator=generator, device="cuda"))
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, layer()) and captured.any()
