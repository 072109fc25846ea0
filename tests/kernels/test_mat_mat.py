"""Products with many vectors, plain and grouped by expert, and the activation quantisers, against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import oracle
import pytest
import torch
from cases import FORMATS, MAT_MAT_FORMATS, NMSE_F32, SCALARS, fit
from native import DTYPES, TYPES, NativeError, NativeLibrary, guarded
from native_mat_mat import KERNELS, Aligned, MoeParams, MulMatParams, align, call_moe, call_mul_mat
from test_products import activations, assert_close, rng_of

OPERATORS = (
    "ggml_mul_mat_a8",
    "ggml_moe_a8",
    "moe_align_block_size",
    "ggml_quantize_q8_0",
    "ggml_quantize_q8_k",
)

WORST = 1e-6
"""Of the sum of |w x|, the project's bound for one result; 1e-7 is seen."""

MATRIX_CORES = ("small", "medium", "large")

by_format = pytest.mark.parametrize("type_name", [name for name in MAT_MAT_FORMATS if name in FORMATS])


def check(found: np.ndarray, weight: np.ndarray, type_name: str, x: np.ndarray) -> None:
    """float32 results of one matrix: each vector within NMSE_F32, each result within WORST."""
    wanted = oracle.mat_vec(weight, type_name, x)
    q, d = oracle.quantize_activations(x)
    values = np.abs((q.reshape(len(x), -1, 32) * d[..., None]).reshape(x.shape))
    sizes = values @ np.abs(oracle.dequantize(weight, type_name)).astype(np.float64).T
    assert (np.abs(found - wanted) <= WORST * sizes).all()
    for row in range(len(wanted)):
        assert oracle.nmse(found[row], wanted[row]) <= NMSE_F32, row


def random_x(rng: np.random.Generator, n: int, cols: int) -> np.ndarray:
    return activations(rng, n, cols, "float32")[1]


# --- what has to be there ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_registered(kernels: ModuleType, name: str) -> None:
    """Trap 11: a missing registration fails here, and is never a reason to skip."""
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"gguf_kernels::{name}", "CPU")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"gguf_kernels::{name}", "Meta")
    assert callable(getattr(kernels, name))


def test_supports_says_which_formats_there_are(kernels: ModuleType) -> None:
    wanted = {name for name in MAT_MAT_FORMATS if name in FORMATS}
    for op in ("ggml_mul_mat_a8", "ggml_moe_a8"):
        assert {kind.name for kind in kernels.GGMLType if kernels.supports(op, kind, "cpu")} == wanted
    for kind in kernels.GGMLType:
        if kind.name in wanted:
            assert kernels.ggml_moe_get_block_size(kind) == kernels.ggml_moe_get_block_size(kind.name) == 16
        else:
            with pytest.raises(RuntimeError, match="supported: Q4_0"):
                kernels.ggml_moe_get_block_size(kind)


# --- products ---------------------------------------------------------------------------------------------------------

SHAPES = (
    (1, 32, 1),
    (65, 160, 17),  # one past a rectangle's rows and vectors, K past a step
    (127, 256, 16),
    (129, 96, 65),  # K below a step
    (40, 1056, 9),
)
"""(rows, cols, vectors)."""


@by_format
@pytest.mark.parametrize(("rows", "cols", "vectors"), SHAPES)
def test_products(bare: NativeLibrary, type_name: str, rows: int, cols: int, vectors: int) -> None:
    """Each kernel against the oracle; all of them give the same bits."""
    cols = fit(type_name, cols)
    rng = rng_of(type_name, rows, cols)
    weight = oracle.random_blocks(rng, type_name, rows, cols)
    x = random_x(rng, vectors, cols)
    found = call_mul_mat(bare, weight, type_name, x, "dot")
    check(found, weight, type_name, x)
    for kernel in (*MATRIX_CORES, "auto"):
        assert np.array_equal(call_mul_mat(bare, weight, type_name, x, kernel), found), kernel


@by_format
@pytest.mark.parametrize("dtype", SCALARS)
def test_the_operator(kernels: ModuleType, type_name: str, dtype: str) -> None:
    rng = rng_of(type_name, dtype)
    cols = fit(type_name, 96)
    weight = oracle.random_blocks(rng, type_name, 50, cols)
    x, values = activations(rng, 37, cols, dtype)
    found = kernels.ggml_mul_mat_a8(torch.from_numpy(weight), x, type_name, 50)
    assert_close(found, oracle.mat_vec(weight, type_name, values), dtype)


@pytest.mark.parametrize("type_name", ["Q8_0", pytest.param("Q4_K", marks=pytest.mark.slow)])
def test_a_shape_that_matrix_cores_got_wrong_elsewhere(bare: NativeLibrary, type_name: str) -> None:
    """Trap 17: m = 576, n = 512, k = 576, in full."""
    if type_name not in FORMATS:
        pytest.skip("not among the formats of this mutant")
    cols = fit(type_name, 576)
    rng = rng_of(type_name)
    weight = oracle.random_blocks(rng, type_name, 576, cols)
    x = random_x(rng, 512, cols)
    check(call_mul_mat(bare, weight, type_name, x, "large"), weight, type_name, x)


@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 5, 8, 16, 32, 64, 128])
def test_any_number_of_vectors(bare: NativeLibrary, vectors: int) -> None:
    """512 x 256; every kernel gives the same bits, and a vector's do not depend on its company."""
    rng = rng_of()
    weight = oracle.random_blocks(rng, "Q8_0", 512, 256)
    x = random_x(rng, 128, 256)
    found = call_mul_mat(bare, weight, "Q8_0", x[:vectors], "auto")
    check(found, weight, "Q8_0", x[:vectors])
    assert np.array_equal(call_mul_mat(bare, weight, "Q8_0", x[vectors - 1 : vectors], "small")[0], found[-1])
    if vectors == 128:
        for kernel in KERNELS:
            assert np.array_equal(call_mul_mat(bare, weight, "Q8_0", x, kernel), found), kernel


def test_scales_of_mxfp4_at_both_ends(bare: NativeLibrary) -> None:
    """Exponent 0 is a denormal that counts, 235 is past what float32 has room for times 1.5 * 2^23, 255 is NaN, and
    touches its own row alone.
    """
    if "MXFP4" not in FORMATS:
        pytest.skip("not among the formats of this mutant")
    rng = rng_of()
    weight = oracle.random_blocks(rng, "MXFP4", 4, 64)
    weight[0, ::17], weight[1, ::17], weight[2, ::17] = 0, 235, 255
    x = random_x(rng, 3, 64)
    x[:, :] *= np.float32(1e-4)
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = oracle.mat_vec(weight, "MXFP4", x)
    for kernel in ("dot", *MATRIX_CORES):
        found = call_mul_mat(bare, weight, "MXFP4", x, kernel)
        assert np.isnan(found[:, 2]).all()
        assert np.allclose(found[:, [0, 1, 3]], wanted[:, [0, 1, 3]], rtol=1e-5, atol=2e-44), kernel
        assert found[:, 0].any() and np.isfinite(found[:, 1]).all()


def test_nan_and_scales_stay_in_their_vector(bare: NativeLibrary) -> None:
    """Trap 9: within one tile."""
    rng = rng_of()
    weight = oracle.random_blocks(rng, "Q8_0", 20, 256)
    x = random_x(rng, 20, 256)
    clean = call_mul_mat(bare, weight, "Q8_0", x, "small")
    x[3, 7], x[9, 200], x[10] = np.nan, np.inf, x[10] * np.float32(1e30)
    for kernel in ("dot", *MATRIX_CORES):
        found = call_mul_mat(bare, weight, "Q8_0", x, kernel)
        assert np.isnan(found[[3, 9]]).all()
        others = [i for i in range(20) if i not in {3, 9, 10}]
        assert np.array_equal(found[others], clean[others])


def test_x_of_any_strides(kernels: ModuleType) -> None:
    """Trap 6."""
    rng = rng_of()
    weight = torch.from_numpy(oracle.random_blocks(rng, "Q8_0", 6, 64))
    whole = torch.from_numpy(random_x(rng, 40, 128))
    for x in (whole[:, 64:], whole[::2, :64], whole[:1, :64].expand(18, 64), whole[:, :64].t().contiguous().t()):
        assert torch.equal(
            kernels.ggml_mul_mat_a8(weight, x, "Q8_0", 6), kernels.ggml_mul_mat_a8(weight, x.contiguous(), "Q8_0", 6)
        )


@pytest.mark.usefixtures("_host_only")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("rows", "cols", "vectors"), [(1, 32, 1), (63, 96, 17), (129, 160, 3), (5, 1056, 33)])
@pytest.mark.parametrize("type_name", [name for name in ("Q8_0", "Q6_K", "MXFP4") if name in FORMATS])
def test_products_stay_inside_exact_buffers(
    bare: NativeLibrary, type_name: str, rows: int, cols: int, vectors: int, kernel: str
) -> None:
    """Trap 5: every buffer ends where a forbidden page begins, and the result was poisoned."""
    cols = fit(type_name, cols)
    rng = rng_of(rows, cols)
    weight = oracle.random_blocks(rng, type_name, rows, cols)
    x = random_x(rng, vectors, cols)
    out = np.full((vectors, rows), np.nan, dtype=np.float32)
    scratch = np.full(-(-bare.activation_bytes(vectors, cols) // 16) * 16, 0xFF, dtype=np.uint8)
    with guarded(weight, x, out, scratch) as (weight_at, x_at, out_at, scratch_at):
        params = MulMatParams(
            weight=weight_at,
            x=x_at,
            out=out_at,
            scratch=scratch_at,
            scratch_bytes=bare.activation_bytes(vectors, cols),
            x_stride=cols,
            vectors=vectors,
            rows=rows,
            cols=cols,
            type=TYPES[type_name],
            dtype=DTYPES["float32"],
            kernel=KERNELS[kernel],
        )
        bare.call("gguf_mul_mat_a8", params)
        found = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * out.size).from_address(out_at)).copy()
    check(found.reshape(out.shape), weight, type_name, x)


# --- grouped products -------------------------------------------------------------------------------------------------


@by_format
def test_grouped_products(bare: NativeLibrary, type_name: str) -> None:
    """8 experts; ids that name none, an expert without a token, and one that has most of them."""
    rng = rng_of(type_name)
    cols = fit(type_name, 96)
    weight = oracle.random_blocks(rng, type_name, 8, 70, cols)
    x = random_x(rng, 60, cols)
    ids = rng.integers(-1, 9, size=(60, 2))
    ids[ids == 4] = 5
    ids[:40, 0] = 6
    wanted = oracle.moe_vec(x, weight, ids, 2, type_name)
    routing = align(ids, 8)
    found = call_moe(bare, weight, type_name, x, routing, 2, "dot")
    none = (ids.reshape(-1) < 0) | (ids.reshape(-1) >= 8)
    assert none.any() and (found[none] == 0).all()
    for row in np.flatnonzero(~none):
        assert oracle.nmse(found[row], wanted[row]) <= NMSE_F32
    for kernel in (*MATRIX_CORES, "auto"):
        assert np.array_equal(call_moe(bare, weight, type_name, x, routing, 2, kernel), found), kernel


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8, 16, 32, 64, 128])
def test_any_number_of_tokens(kernels: ModuleType, tokens: int) -> None:
    """8 experts of 512 x 256, through the operators; a token's results do not depend on its company."""
    rng = rng_of()
    weight = torch.from_numpy(oracle.random_blocks(rng, "Q8_0", 8, 512, 256))
    x, values = activations(rng, 128, 256, "float32")
    ids = torch.from_numpy(rng.integers(0, 8, size=(128, 2)))

    def routed(first: int, end: int) -> torch.Tensor:
        routing = kernels.moe_align_block_size(ids[first:end], kernels.ggml_moe_get_block_size("Q8_0"), 8)
        result: torch.Tensor = kernels.ggml_moe_a8(x[first:end], weight, *routing, "Q8_0", 512, 2, end - first)
        return result

    found = routed(0, tokens)
    assert_close(found, oracle.moe_vec(values[:tokens], weight.numpy(), ids[:tokens].numpy(), 2, "Q8_0"), "float32")
    assert torch.equal(routed(tokens - 1, tokens), found[-2:])


def test_ids_past_a_byte(kernels: ModuleType) -> None:
    """Trap 1: 0, 127, 128 and 255 of 256 experts, and 999 of 1,000."""
    rng = rng_of()
    for experts, ids in ((256, [[0, 127], [128, 255]]), (1000, [[999, 0], [255, 256]])):
        weight = oracle.random_blocks(rng, "Q8_0", experts, 3, 64)
        x, values = activations(rng, 2, 64, "float32")
        routing = kernels.moe_align_block_size(torch.tensor(ids), 16, experts)
        found = kernels.ggml_moe_a8(x, torch.from_numpy(weight), *routing, "Q8_0", 3, 2, 2)
        assert_close(found, oracle.moe_vec(values, weight, np.array(ids), 2, "Q8_0"), "float32")


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_lies_past_num_tokens_post_padded_is_not_read(bare: NativeLibrary, kernel: str) -> None:
    """Trap 2: blocks of stale, valid slots and experts begin right there; trap 1: rows without a block are zeros."""
    rng = rng_of()
    weight = oracle.random_blocks(rng, "Q8_0", 3, 20, 64)
    x = random_x(rng, 48, 64)
    slots = np.arange(48, dtype=np.int32)
    for padded in (0, 16, 32):
        routing = Aligned(sorted_ids=slots, expert_ids=np.array([1, 1, 1], dtype=np.int32), padded=padded)
        found = call_moe(bare, weight, "Q8_0", x, routing, 1, kernel)
        assert (found[padded:] == 0).all()
        if padded:
            check(found[:padded], weight[1], "Q8_0", x[:padded])


@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_that_no_expert_or_a_wrong_one_has(bare: NativeLibrary, kernel: str) -> None:
    """Trap 1: -1, past the last, far below; padding of any kind; the runs of an expert may be apart."""
    rng = rng_of()
    weight = oracle.random_blocks(rng, "Q8_0", 3, 20, 64)
    x = random_x(rng, 200, 64)
    sorted_ids = np.arange(12 * 16, dtype=np.int32)
    sorted_ids[5:9] = (200, 1000, -1, 2**31 - 1)
    experts = np.array([0, -1, 0, 0, 3, 0, 2, 2, -(2**31), 1, 1, 0], dtype=np.int32)
    routing = Aligned(sorted_ids=sorted_ids, expert_ids=experts, padded=12 * 16)
    found = call_moe(bare, weight, "Q8_0", x, routing, 1, kernel)
    for slot in range(200):
        expert = experts[slot // 16] if slot < 192 and slot not in range(5, 9) else -1
        if 0 <= expert < 3:
            assert oracle.nmse(found[slot], oracle.mat_vec(weight[expert], "Q8_0", x[slot : slot + 1])[0]) <= NMSE_F32
        else:
            assert (found[slot] == 0).all(), slot


@pytest.mark.usefixtures("_host_only")
def test_padded_counts_past_the_lists_are_held_to_them(bare: NativeLibrary) -> None:
    rng = rng_of()
    weight = oracle.random_blocks(rng, "Q8_0", 1, 4, 32)
    x = random_x(rng, 20, 32)
    with guarded(np.arange(20, dtype=np.int32), np.zeros(2, dtype=np.int32)) as (sorted_at, experts_at):
        out = np.full((20, 4), np.nan, dtype=np.float32)
        scratch = np.empty(bare.activation_bytes(20, 32) + 16, dtype=np.uint8)
        padded = np.array([2**31 - 1], dtype=np.int32)
        params = MoeParams(
            weight=weight.ctypes.data,
            x=x.ctypes.data,
            sorted_ids=sorted_at,
            expert_ids=experts_at,
            padded=padded.ctypes.data,
            out=out.ctypes.data,
            scratch=scratch.ctypes.data + -scratch.ctypes.data % 16,
            scratch_bytes=bare.activation_bytes(20, 32),
            x_stride=32,
            sorted_count=20,
            expert_count=2,
            experts=1,
            tokens=20,
            top_k=1,
            rows=4,
            cols=32,
            type=TYPES["Q8_0"],
            dtype=DTYPES["float32"],
        )
        bare.call("gguf_moe_a8", params)
    check(out, weight[0], "Q8_0", x)


def test_experts_past_2_to_the_31_bytes(kernels: ModuleType) -> None:
    """Trap 3: the last expert lies past 2^31 bytes, in memory that exists only where it is touched."""
    from test_memory import Sparse

    rows, cols = 8, 64
    size = oracle.row_bytes("Q8_0", cols)
    experts = 2**31 // (rows * size) + 2
    weight = Sparse(experts * rows * size).tensor.reshape(experts, rows, size)
    some = oracle.random_blocks(rng_of(), "Q8_0", rows, cols)
    weight[experts - 1] = torch.from_numpy(some)
    x, values = activations(rng_of(), 20, cols, "float32")
    lists = (torch.arange(32, dtype=torch.int32), torch.tensor([experts - 1, experts - 1], dtype=torch.int32))
    found = kernels.ggml_moe_a8(x, weight, *lists, torch.tensor([32], dtype=torch.int32), "Q8_0", rows, 1, 20)
    assert_close(found, oracle.mat_vec(some, "Q8_0", values), "float32")


def test_down_projection_from_the_kernels_own_intermediates(kernels: ModuleType) -> None:
    """Trap 16: gate and up, SwiGLU, down with a row a slot; the oracle of down starts from the kernel's own result."""
    rng = rng_of()
    gate_up = oracle.random_blocks(rng, "Q8_0", 6, 2 * 160, 96)
    down = oracle.random_blocks(rng, "Q8_0", 6, 96, 160)
    x, values = activations(rng, 20, 96, "float32")
    ids = torch.from_numpy(rng.integers(-1, 6, size=(20, 3)))
    routing = kernels.moe_align_block_size(ids, 16, 6)
    first = kernels.ggml_moe_a8(x, torch.from_numpy(gate_up), *routing, "Q8_0", 320, 3, 20)
    named = ids.reshape(-1) >= 0
    assert_close(first[named], oracle.moe_vec(values, gate_up, ids.numpy(), 3, "Q8_0")[named.numpy()], "float32")
    middle = torch.nn.functional.silu(first[:, :160]) * first[:, 160:]
    found = kernels.ggml_moe_a8(middle, torch.from_numpy(down), *routing, "Q8_0", 96, 1, 60)
    wanted = oracle.moe_vec(middle.numpy(), down, ids.numpy(), 1, "Q8_0")
    assert_close(found[named], wanted[named.numpy()], "float32")
    assert (found[~named] == 0).all()


def test_nothing_in_nothing_out(kernels: ModuleType) -> None:
    weight = torch.zeros(3, 5, 34, dtype=torch.uint8)
    none = torch.zeros(0, dtype=torch.int32)
    zero = torch.zeros(1, dtype=torch.int32)
    assert kernels.ggml_mul_mat_a8(weight[0], torch.zeros(0, 32), "Q8_0", 5).shape == (0, 5)
    assert kernels.ggml_mul_mat_a8(weight[0, :0], torch.zeros(4, 32), "Q8_0", 0).shape == (4, 0)
    assert (kernels.ggml_mul_mat_a8(weight[0, :, :0], torch.zeros(4, 0), "Q8_0", 5) == 0).all()
    assert kernels.ggml_moe_a8(torch.zeros(0, 32), weight, none, none, zero, "Q8_0", 5, 2, 0).shape == (0, 5)
    assert kernels.ggml_moe_a8(torch.zeros(4, 32), weight, none, none, zero, "Q8_0", 5, 0, 4).shape == (0, 5)
    assert (kernels.ggml_moe_a8(torch.ones(4, 32), weight, none, none, zero, "Q8_0", 5, 2, 4) == 0).all()
    assert (kernels.ggml_moe_a8(torch.ones(4, 32), weight[:0], none, none, zero, "Q8_0", 5, 2, 4) == 0).all()


# --- graphs, wrong input ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_host_only")
def test_a_routed_product_is_traced_whole(kernels: ModuleType) -> None:
    rng = rng_of()
    weight = torch.from_numpy(oracle.random_blocks(rng, "Q8_0", 4, 10, 64))

    def layer(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        routing = kernels.moe_align_block_size(ids, kernels.ggml_moe_get_block_size("Q8_0"), 4)
        result: torch.Tensor = kernels.ggml_moe_a8(x, weight, *routing, "Q8_0", 10, 2, x.shape[0])
        return result + kernels.ggml_mul_mat_a8(weight[0], x.repeat_interleave(2, 0), "Q8_0", 10)

    x, ids = torch.from_numpy(random_x(rng, 5, 64)), torch.from_numpy(rng.integers(-1, 4, size=(5, 2)))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, ids), layer(x, ids))
    with torch.inference_mode():
        assert torch.equal(layer(x, ids), compiled(x, ids))


BYTES = torch.zeros(3, 5, 34, dtype=torch.uint8)
LISTS = (torch.zeros(16, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k: k.ggml_mul_mat_a8(BYTES[0], torch.zeros(2, 32), "IQ3_S", 5), "has no kernel; supported: Q4_0 (2)"),
        (lambda k: k.ggml_mul_mat_a8(BYTES[0], torch.zeros(2, 33), "Q8_0", 5), "columns of X is 33; wanted"),
        (lambda k: k.ggml_mul_mat_a8(BYTES[0], torch.zeros(2, 64), "Q8_0", 5), "W has shape [5, 34]; wanted: [5, 68]"),
        (lambda k: k.ggml_mul_mat_a8(BYTES[0], torch.zeros(2, 32).int(), "Q8_0", 5), "the dtype of X is Int; wanted"),
        (lambda k: k.ggml_moe_a8(torch.zeros(2, 32), BYTES[0], *LISTS, "Q8_0", 5, 1, 2), "wanted: [experts, 5, 34]"),
        (lambda k: k.ggml_moe_a8(torch.zeros(2, 32), BYTES, *LISTS, "Q8_0", 5, 1, 3), "wanted: [3, col]"),
        (
            lambda k: k.ggml_moe_a8(torch.zeros(2, 32), BYTES, LISTS[0].long(), *LISTS[1:], "Q8_0", 5, 1, 2),
            "sorted_token_ids has dtype Long; wanted: Int (int32)",
        ),
        (
            lambda k: k.ggml_moe_a8(torch.zeros(2, 32), BYTES, *LISTS[:2], LISTS[0], "Q8_0", 5, 1, 2),
            "num_tokens_post_padded has shape [16]; wanted: one element",
        ),
        (lambda k: k.ggml_quantize_q8_0(torch.zeros(2, 40)), "X has 40 columns; wanted: a multiple of 32"),
        (lambda k: k.ggml_quantize_q8_k(torch.zeros(2, 128)), "X has 128 columns; wanted: a multiple of 256"),
        (lambda k: k.ggml_quantize_q8_k(torch.zeros(256)), "X has shape [256]; wanted: 2 dimensions"),
    ],
)
def test_wrong_input_is_refused_in_words(
    kernels: ModuleType, call: Callable[[ModuleType], object], message: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        call(kernels)
    assert message in str(caught.value)


def test_the_c_interface_refuses_what_it_cannot_take(bare: NativeLibrary) -> None:
    weight, x = np.zeros((2, 34), dtype=np.uint8), np.ones((1, 32), dtype=np.float32)
    with pytest.raises(NativeError, match="kernel is 5; wanted: 0 to 4"):
        KERNELS["none"] = 5
        try:
            call_mul_mat(bare, weight, "Q8_0", x, "none")
        finally:
            del KERNELS["none"]


# --- quantisers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SCALARS)
def test_q8_0_blocks(kernels: ModuleType, dtype: str) -> None:
    """q as every product has them, d of the contract rounded to half; but for ties also what the gguf package makes."""
    x, values = activations(rng_of(dtype), 9, 96, dtype)
    values[2, 32:64] = 0
    x[2, 32:64] = 0
    found = kernels.ggml_quantize_q8_0(x).numpy().reshape(9, 3, 34)
    q, d = oracle.quantize_activations(values)
    assert np.array_equal(found[..., 2:].view(np.int8).reshape(9, 96), q)
    assert np.array_equal(found[..., :2].copy().view(np.float16)[..., 0], d.astype(np.float16))
    assert np.mean(found.reshape(9, -1) != oracle.encode(values, "Q8_0")) < 0.01


@pytest.mark.parametrize("dtype", SCALARS)
def test_q8_k_blocks(kernels: ModuleType, dtype: str) -> None:
    """By the formula in the docstring, in numpy's float32; a positive and a negative extreme, ties of both, zeros."""
    x, values = activations(rng_of(dtype), 7, 512, dtype)
    values[1, :256] = 0
    values[2, 5], values[2, 9] = 64, -64
    values[3, 5], values[3, 9] = -64, 64
    x = torch.from_numpy(values).to(x.dtype)
    found = kernels.ggml_quantize_q8_k(x).numpy().reshape(7, 2, 292)
    for row in range(7):
        for block in range(2):
            part = values[row, 256 * block : 256 * block + 256]
            extreme = part[np.argmax(np.abs(part))]
            s = np.float32(0) if extreme == 0 else np.float32(-127) / extreme
            q = np.minimum(np.rint(s * part), np.float32(127)).astype(np.int8)
            d = np.float32(0) if extreme == 0 else np.float32(1) / s
            wanted = d.tobytes() + q.tobytes() + q.reshape(16, 16).sum(axis=1).astype(np.int16).tobytes()
            assert found[row, block].tobytes() == wanted, (row, block)
