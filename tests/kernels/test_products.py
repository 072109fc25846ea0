"""Results against the oracle: dequantised values exactly, products to the rounding of float32 additions."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import oracle
import pytest
import torch
from cases import FORMATS, MOE_CASES, NMSE_F32, PRODUCT_CASES, SCALARS, MoeCase, ProductCase, block_of, fit, ulps

by_format = pytest.mark.parametrize("type_name", FORMATS)
by_simple_format = pytest.mark.parametrize("type_name", sorted({"Q4_0", "Q8_0"} & set(FORMATS)))
by_dtype = pytest.mark.parametrize("dtype", SCALARS)


def rng_of(*key: object) -> np.random.Generator:
    return np.random.default_rng([ord(letter) for letter in repr(key)])


def activations(rng: np.random.Generator, n: int, cols: int, dtype: str) -> tuple[torch.Tensor, np.ndarray]:
    """X and its exact float32 values. Magnitudes differ by 1e3 from vector to vector, so a scale used twice shows."""
    x = rng.standard_normal((n, cols)) * 10.0 ** rng.uniform(-1.5, 1.5, size=(n, 1))
    tensor = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype))
    return tensor, tensor.float().numpy()


def assert_close(found: torch.Tensor, wanted: np.ndarray, dtype: str) -> None:
    """Each vector by itself within NMSE_F32, and half a unit in the last place more where the result is rounded."""
    assert found.dtype == getattr(torch, dtype)
    assert tuple(found.shape) == wanted.shape
    got = found.double().numpy()
    for row in range(len(wanted)):
        error = np.abs(got[row] - wanted[row])
        if dtype == "float32":
            assert oracle.nmse(got[row], wanted[row]) <= NMSE_F32, row
        else:
            rms = np.sqrt(np.square(wanted[row]).mean())
            tiny = 2.0**-25 if dtype == "float16" else 0.0  # half the spacing of float16's denormals
            slack = np.sqrt(NMSE_F32) * rms
            assert (error <= np.abs(wanted[row]) * ulps(dtype) * 1.001 + tiny + slack).all(), (row, error.max())


# --- dequantise ------------------------------------------------------------------------------------------------------


@by_format
@pytest.mark.parametrize(("m", "n"), [(1, 32), (3, 96), (129, 640), (7, 1056)])
def test_dequantize_is_exactly_the_gguf_packages(kernels: ModuleType, type_name: str, m: int, n: int) -> None:
    n = fit(type_name, n)
    weight = oracle.random_blocks(rng_of(type_name, m, n), type_name, m, n)
    found = kernels.ggml_dequantize(torch.from_numpy(weight), type_name, m, n, torch.float32)
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), oracle.dequantize(weight, type_name))


@by_format
def test_dequantize_rounds_once_to_nearest_even(kernels: ModuleType, type_name: str) -> None:
    weight = oracle.random_blocks(rng_of(type_name), type_name, 64, 256)
    exact = torch.from_numpy(oracle.dequantize(weight, type_name))
    for dtype in (torch.float16, torch.bfloat16):
        found = kernels.ggml_dequantize(torch.from_numpy(weight), type_name, 64, 256, dtype)
        assert torch.equal(found, exact.to(dtype)), dtype
    assert kernels.ggml_dequantize(torch.from_numpy(weight), type_name, 64, 256).dtype == torch.float16


@by_format
def test_dequantize_every_scale_that_a_half_can_hold(kernels: ModuleType, type_name: str) -> None:
    """Denormal, infinite and negative scales and minima; NaN where gguf says NaN. Every code occurs with each."""
    bits = np.arange(0, 65536, 7, dtype=np.uint16)
    rng = rng_of(type_name)
    cols = block_of(type_name)
    for at in oracle.HALVES[type_name]:
        weight = oracle.random_blocks(rng, type_name, len(bits), cols)
        oracle.put_half(weight, type_name, at, bits)
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = oracle.dequantize(weight, type_name)
        found = kernels.ggml_dequantize(torch.from_numpy(weight), type_name, len(bits), cols, torch.float32).numpy()
        assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("type_name", sorted({"MXFP4", "NVFP4"} & set(FORMATS)))
def test_dequantize_every_scale_of_8_bits(kernels: ModuleType, type_name: str) -> None:
    """MXFP4: 0 is the denormal 2^-127, kept, and 255 is NaN. NVFP4: 0x7f is 0, and the top bit does not count."""
    cols = 32 if type_name == "MXFP4" else 64
    weight = oracle.random_blocks(rng_of(type_name), type_name, 256, cols)
    weight[:, : cols // 16 if type_name == "NVFP4" else 1] = np.arange(256)[:, None]
    weight[:, -1] = 0x17  # 0.5 and 6
    with np.errstate(over="ignore"):
        wanted = oracle.dequantize(weight, type_name)
    found = kernels.ggml_dequantize(torch.from_numpy(weight), type_name, 256, cols, torch.float32).numpy()
    assert np.array_equal(found, wanted, equal_nan=True)
    if type_name == "MXFP4":
        assert set(np.abs(found[0]).tolist()) >= {2.0**-128, 6 * 2.0**-127}
        assert np.isnan(found[255]).all() and not np.isnan(found[:255]).any()


@by_format
def test_dequantize_takes_weights_of_any_rank(kernels: ModuleType, type_name: str) -> None:
    cols = fit(type_name, 64)
    weight = oracle.random_blocks(rng_of(type_name), type_name, 2, 3, cols)
    found = kernels.ggml_dequantize(torch.from_numpy(weight), type_name, 6, cols, torch.float32)
    assert np.array_equal(found.numpy(), oracle.dequantize(weight, type_name).reshape(6, cols))


# --- products --------------------------------------------------------------------------------------------------------


@by_format
@by_dtype
@pytest.mark.parametrize("case", PRODUCT_CASES, ids=lambda case: case.id)
def test_mul_mat_vec(kernels: ModuleType, type_name: str, dtype: str, case: ProductCase) -> None:
    rng = rng_of(type_name, dtype, case)
    cols = fit(type_name, case.cols)
    weight = oracle.random_blocks(rng, type_name, case.rows, cols)
    x, values = activations(rng, case.vectors, cols, dtype)
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), x, type_name, case.rows)
    assert_close(found, oracle.mat_vec(weight, type_name, values), dtype)


@by_simple_format
def test_a_product_by_hand(kernels: ModuleType, type_name: str) -> None:
    """Small whole numbers: no rounding anywhere, so the result is exact and was worked out on paper.

    W is one row: scale 0.5, codes 8 + 1, 8 + 2 and 8 + 0 for the rest of Q4_0; 1, 2, 0... of Q8_0. X is 127, 1, 0...,
    so d = 1 and the product is 0.5 * (1 * 127 + 2 * 1) = 64.5.
    """
    block = np.zeros(34 if type_name == "Q8_0" else 18, dtype=np.uint8)
    block[:2] = np.frombuffer(np.float16(0.5).tobytes(), dtype=np.uint8)
    if type_name == "Q8_0":
        block[2:4] = (1, 2)
    else:
        block[2:] = 0x88
        block[2:4] = (0x89, 0x8A)
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1] = 127, 1
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(block[None]), x, type_name, 1)
    assert found.item() == 64.5


@by_simple_format
def test_activations_round_halves_away_from_zero(kernels: ModuleType, type_name: str) -> None:
    """With 127 in the block d is 1, so q is x rounded; only one rounding rule gives these sums."""
    x = torch.zeros(1, 32)
    x[0, :6] = torch.tensor([127.0, 0.5, -0.5, 1.5, 2.5, 0.49999997])
    rows = np.zeros((6, 32), dtype=np.float32)
    np.fill_diagonal(rows, 1.0)
    weight = np.stack([oracle.encode(row * 7 if type_name == "Q4_0" else row * 127, type_name) for row in rows])
    values = oracle.dequantize(weight, type_name)
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), x, type_name, 6).double().numpy()[0]
    unit = values[np.arange(6), np.arange(6)].astype(np.float64)
    others = np.array([127.0, 1, -1, 2, 3, 0])
    assert np.allclose(found, unit * others, rtol=1e-6), found / unit


def test_quotients_next_to_a_half(kernels: ModuleType) -> None:
    """x / d by true division: where x * (1 / d) falls on the other side of a half, the quotient decides."""
    rng = rng_of()
    x = rng.standard_normal((200_000, 32)).astype(np.float32)
    amax = np.abs(x).max(axis=1, keepdims=True)
    by_division, _ = oracle.quantize_activations(x)
    product = x * (np.float32(127) / amax)
    by_reciprocal = np.sign(product) * np.floor(np.abs(product).astype(np.float64) + 0.5)
    blocks = np.flatnonzero((by_division != by_reciprocal).any(axis=1))
    assert len(blocks) >= 2
    eye = np.stack([oracle.encode(row, "Q8_0") for row in np.eye(32, dtype=np.float32) * 127])
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(eye), torch.from_numpy(x[blocks]), "Q8_0", 32).double().numpy()
    q = found / (127 * (amax[blocks] / np.float32(127)).astype(np.float64))
    assert np.abs(q - by_division[blocks]).max() < 1e-4


@by_format
def test_activation_scales_are_not_rounded_to_half(kernels: ModuleType, type_name: str) -> None:
    """amax 1 / 127 and 1e6 / 127 are no halves; rounding d to a half would be off by up to 5e-4, or infinite."""
    rng = rng_of(type_name)
    cols = fit(type_name, 64)
    weight = oracle.random_blocks(rng, type_name, 8, cols)
    x = rng.uniform(-1, 1, size=(3, cols)).astype(np.float32) * np.array([[1.0], [1e6], [1e-9]], dtype=np.float32)
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), torch.from_numpy(x), type_name, 8)
    assert_close(found, oracle.mat_vec(weight, type_name, x), "float32")


@by_format
def test_large_activations_do_not_overflow_the_block_sum(kernels: ModuleType, type_name: str) -> None:
    """32 activations of 4096 and more sum to what a half cannot hold (trap 8)."""
    rng = rng_of(type_name)
    cols = fit(type_name, 320)
    weight = oracle.random_blocks(rng, type_name, 9, cols)
    x = rng.uniform(4096, 60000, size=(2, cols)).astype(np.float32)
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), torch.from_numpy(x), type_name, 9)
    assert_close(found, oracle.mat_vec(weight, type_name, x), "float32")


@by_format
def test_activations_at_the_edges_of_float32(kernels: ModuleType, type_name: str) -> None:
    """Zeros, denormals whose d is zero or nearly, and the largest floats."""
    rng = rng_of(type_name)
    cols = fit(type_name, 32)
    weight = oracle.random_blocks(rng, type_name, 4, cols)
    tiny = np.float32(2.0**-149)
    rows = [
        np.zeros(cols),
        np.full(cols, tiny),
        rng.integers(-190, 191, cols) * tiny,
        rng.uniform(-1, 1, cols) * 1e-37,
        np.full(cols, 1e37 / cols),
    ]
    x = np.stack(rows).astype(np.float32)
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), torch.from_numpy(x), type_name, 4).numpy()
    wanted = oracle.mat_vec(weight, type_name, x)
    terms = np.abs(x.astype(np.float64)) @ np.abs(oracle.dequantize(weight, type_name)).T
    assert (found[:2] == 0).all()
    assert (np.abs(found - wanted) <= 2e-6 * terms + 1e-43).all()
    assert np.abs(wanted[3:]).max(axis=1).all()


@pytest.mark.parametrize("type_name", sorted({"MXFP4"} & set(FORMATS)))
def test_mxfp4_products_with_the_smallest_and_the_largest_scale(kernels: ModuleType, type_name: str) -> None:
    """A row of 2^-127, which no step may flush to zero, and a row with one NaN, which stays in it."""
    rng = rng_of(type_name)
    weight = oracle.random_blocks(rng, type_name, 3, 1056).reshape(3, 33, 17)
    weight[1, :, 0] = 0
    weight[2, 20, 0] = 255
    weight = weight.reshape(3, -1)
    x = (rng.standard_normal((2, 1056)) * 1e30).astype(np.float32)
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), torch.from_numpy(x), type_name, 3)
    assert torch.isnan(found[:, 2]).all()
    wanted = oracle.mat_vec(weight[:2], type_name, x)
    for row in range(2):
        assert_close(found[:, row : row + 1], wanted[:, row : row + 1], "float32")


@by_format
def test_scales_a_thousandfold_apart_and_nan_stay_in_their_vector(kernels: ModuleType, type_name: str) -> None:
    """Trap 9: eight vectors share a tile; one is NaN, one infinite, the others differ by 1e3."""
    rng = rng_of(type_name)
    cols = fit(type_name, 160)
    weight = oracle.random_blocks(rng, type_name, 11, cols)
    x = rng.standard_normal((8, cols)).astype(np.float32) * np.array(
        [[1], [1e3], [1], [1e-3], [1], [1e6], [1], [1]], dtype=np.float32
    )
    x[2, 77] = np.nan
    x[4, cols - 1] = -np.inf
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), torch.from_numpy(x), type_name, 11)
    assert torch.isnan(found[[2, 4]]).all(), "a vector with NaN or infinity has no number to give"
    good = [0, 1, 3, 5, 6, 7]
    assert_close(found[good], oracle.mat_vec(weight, type_name, x[good]), "float32")


@by_format
@by_dtype
def test_x_of_any_strides(kernels: ModuleType, type_name: str, dtype: str) -> None:
    """Trap 6: a chunk of columns, a transposed view, every other row, one row expanded, and reversed rows by index."""
    rng = rng_of(type_name, dtype)
    cols = fit(type_name, 96)
    weight = oracle.random_blocks(rng, type_name, 7, cols)
    base, _ = activations(rng, 12, cols * 3, dtype)
    views = {
        "chunk": base[:, cols : 2 * cols],
        "odd offset": base[:, 1 : cols + 1],
        "really transposed": torch.randn(cols, 5).to(base.dtype).t(),
        "every other row": base[::2, cols : 2 * cols],
        "expanded": base[3:4, :cols].expand(10, cols),
    }
    for name, x in views.items():
        wanted = oracle.mat_vec(weight, type_name, x.float().numpy())
        found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), x, type_name, 7)
        assert_close(found, wanted, dtype)
        ids = torch.zeros(len(x), 1, dtype=torch.int64)
        routed = kernels.ggml_moe_a8_vec(x, torch.from_numpy(weight)[None], ids, 1, type_name, 7, len(x))
        assert_close(routed, wanted, dtype)
        assert not x.is_contiguous(), name


@by_format
def test_nothing_in_nothing_out(kernels: ModuleType, type_name: str) -> None:
    """No vectors, no tokens, no slots, no rows, no columns."""
    cols = fit(type_name, 64)
    weight = torch.from_numpy(oracle.random_blocks(rng_of(type_name), type_name, 2, 5, cols))
    none = torch.empty(0, dtype=torch.uint8)
    assert kernels.ggml_mul_mat_vec_a8(weight[0], torch.empty(0, cols), type_name, 5).shape == (0, 5)
    assert kernels.ggml_mul_mat_vec_a8(weight[0, :0], torch.ones(3, cols), type_name, 0).shape == (3, 0)
    assert torch.equal(
        kernels.ggml_mul_mat_vec_a8(none.reshape(5, 0), torch.empty(3, 0), type_name, 5), torch.zeros(3, 5)
    )
    ids = torch.zeros(0, 2, dtype=torch.int32)
    assert kernels.ggml_moe_a8_vec(torch.empty(0, cols), weight, ids, 2, type_name, 5, 0).shape == (0, 5)
    assert kernels.ggml_moe_a8_vec(torch.ones(4, cols), weight, ids.reshape(4, 0), 0, type_name, 5, 4).shape == (0, 5)
    some = torch.zeros(2, 1, dtype=torch.int32)
    assert torch.equal(
        kernels.ggml_moe_a8_vec(torch.ones(2, cols), weight[:0], some, 1, type_name, 5, 2), torch.zeros(2, 5)
    )
    assert kernels.ggml_dequantize(none, type_name, 0, cols, torch.float32).shape == (0, cols)
    assert kernels.ggml_dequantize(none, type_name, 3, 0, torch.float32).shape == (3, 0)


# --- routed products -------------------------------------------------------------------------------------------------


@by_format
@by_dtype
@pytest.mark.parametrize("case", MOE_CASES, ids=lambda case: case.id)
def test_moe_vec(kernels: ModuleType, type_name: str, dtype: str, case: MoeCase) -> None:
    rng = rng_of(type_name, dtype, case)
    cols = fit(type_name, case.cols)
    weight = oracle.random_blocks(rng, type_name, case.experts, case.rows, cols)
    x, values = activations(rng, case.tokens, cols, dtype)
    ids = rng.integers(0, case.experts, size=(case.tokens, case.top_k))
    ids.flat[-1] = case.experts - 1  # the last expert, past 255 in one case
    wanted = oracle.moe_vec(values, weight, ids, case.top_k, type_name)
    for width in (torch.int32, torch.int64):
        given = torch.from_numpy(ids).to(width)
        found = kernels.ggml_moe_a8_vec(
            x, torch.from_numpy(weight), given, case.top_k, type_name, case.rows, case.tokens
        )
        assert_close(found, wanted, dtype)


@by_format
@pytest.mark.parametrize("width", [torch.int32, torch.int64], ids=str)
def test_moe_ids_that_name_no_expert_give_zeros(kernels: ModuleType, type_name: str, width: torch.dtype) -> None:
    """-1 (expert parallelism, padding), one past the last, and far out; the weights around the experts are no zeros."""
    rng = rng_of(type_name, str(width))
    cols = fit(type_name, 96)
    around = torch.from_numpy(oracle.random_blocks(rng, type_name, 9, 6, cols))
    weight = around[3:6]
    x, values = activations(rng, 4, cols, "float32")
    ids = np.array([[0, -1], [2, 3], [-3, 1], [5, 2]])
    if width == torch.int64:
        ids[3, 0] = 2**32 + 1  # its low half names expert 1
    wanted = oracle.moe_vec(values, weight.numpy(), ids, 2, type_name)
    found = kernels.ggml_moe_a8_vec(x, weight, torch.from_numpy(ids).to(width), 2, type_name, 6, 4)
    for z, expert in enumerate(ids.reshape(-1)):
        if 0 <= expert < 3:
            assert_close(found[z : z + 1], wanted[z : z + 1], "float32")
        else:
            assert (found[z] == 0).all(), (z, expert)


@by_format
def test_moe_ids_may_have_strides(kernels: ModuleType, type_name: str) -> None:
    rng = rng_of(type_name)
    cols = fit(type_name, 64)
    weight = oracle.random_blocks(rng, type_name, 5, 4, cols)
    x, values = activations(rng, 6, cols, "float32")
    ids = torch.from_numpy(rng.integers(0, 5, size=(2, 6))).t()
    assert not ids.is_contiguous()
    found = kernels.ggml_moe_a8_vec(x, torch.from_numpy(weight), ids, 2, type_name, 4, 6)
    assert_close(found, oracle.moe_vec(values, weight, ids.numpy(), 2, type_name), "float32")


@by_format
def test_down_projection_from_the_kernels_own_intermediates(kernels: ModuleType, type_name: str) -> None:
    """Trap 16: gate and up, SwiGLU, down with a row a slot; the oracle of down starts from the kernel's own result."""
    rng = rng_of(type_name)
    experts, tokens, top_k = 6, 5, 3
    hidden, inner = fit(type_name, 96), fit(type_name, 160)
    gate_up = oracle.random_blocks(rng, type_name, experts, 2 * inner, hidden)
    down = oracle.random_blocks(rng, type_name, experts, hidden, inner)
    x, values = activations(rng, tokens, hidden, "float32")
    ids = torch.from_numpy(rng.integers(0, experts, size=(tokens, top_k)))
    first = kernels.ggml_moe_a8_vec(x, torch.from_numpy(gate_up), ids, top_k, type_name, 2 * inner, tokens)
    assert_close(first, oracle.moe_vec(values, gate_up, ids.numpy(), top_k, type_name), "float32")
    middle = torch.nn.functional.silu(first[:, :inner]) * first[:, inner:]
    found = kernels.ggml_moe_a8_vec(middle, torch.from_numpy(down), ids, 1, type_name, hidden, tokens * top_k)
    assert_close(found, oracle.moe_vec(middle.numpy(), down, ids.numpy(), 1, type_name), "float32")


# --- sizes past what one grid may have --------------------------------------------------------------------------------


def test_many_vectors(kernels: ModuleType) -> None:
    """Trap 4: more vectors than a grid's y may have. Whole results, compared with products in torch."""
    count = 65536 + 9
    rng = rng_of(count)
    weight = oracle.random_blocks(rng, "Q8_0", 3, 32)
    x, values = activations(rng, count, 32, "float32")
    found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), x, "Q8_0", 3).double().numpy()
    wanted = oracle.mat_vec(weight, "Q8_0", values)
    assert (np.square(found - wanted).sum(axis=1) <= NMSE_F32 * np.square(wanted).sum(axis=1)).all()


@pytest.mark.parametrize(("tokens", "top_k"), [(65537, 1), (9363, 7)])
def test_many_slots(kernels: ModuleType, tokens: int, top_k: int) -> None:
    """Trap 4: tokens, and tokens * top_k, past 65535."""
    rng = rng_of(tokens, top_k)
    weight = oracle.random_blocks(rng, "Q4_0", 4, 2, 32)
    x, values = activations(rng, tokens, 32, "float32")
    ids = rng.integers(-1, 4, size=(tokens, top_k))
    found = (
        kernels.ggml_moe_a8_vec(x, torch.from_numpy(weight), torch.from_numpy(ids), top_k, "Q4_0", 2, tokens)
        .double()
        .numpy()
    )
    every = np.stack([oracle.mat_vec(matrix, "Q4_0", values) for matrix in weight])
    token = np.repeat(np.arange(tokens), top_k)
    flat = ids.reshape(-1)
    wanted = np.where((flat >= 0)[:, None], every[np.maximum(flat, 0), token], 0.0)
    assert (np.square(found - wanted).sum(axis=1) <= NMSE_F32 * np.square(wanted).sum(axis=1)).all()
    assert (found[flat < 0] == 0).all()


# --- the same result each time ----------------------------------------------------------------------------------------


@by_format
def test_a_vectors_result_does_not_depend_on_its_company(kernels: ModuleType, type_name: str) -> None:
    """One vector alone and among 8, plain and routed: the additions run in one order, so the bits are the same."""
    rng = rng_of(type_name)
    cols = fit(type_name, 1056)
    weight = torch.from_numpy(oracle.random_blocks(rng, type_name, 5, cols))
    x, _ = activations(rng, 8, cols, "float32")
    ids = torch.zeros(8, 1, dtype=torch.int32)
    together = kernels.ggml_mul_mat_vec_a8(weight, x, type_name, 5)
    routed = kernels.ggml_moe_a8_vec(x, weight[None], ids, 1, type_name, 5, 8)
    for i in range(8):
        own = x[i : i + 1]
        assert torch.equal(together[i : i + 1], kernels.ggml_mul_mat_vec_a8(weight, own, type_name, 5))
        assert torch.equal(routed[i : i + 1], kernels.ggml_moe_a8_vec(own, weight[None], ids[:1], 1, type_name, 5, 1))
