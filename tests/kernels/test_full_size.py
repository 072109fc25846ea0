"""Layers as large as models have them, on a GPU alone: 256 experts of 4096 x 2048, top 6, through the C functions.

Weights are made there. The oracle computes some rows of some slots; every result was poisoned, and lies between guards.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

import numpy as np
import oracle
import pytest
import routed_oracle
import torch
from cases import FORMATS, NMSE_F32
from native import TYPES, NativeLibrary
from native_mat_mat import KERNELS, AlignParams, MoeParams
from on_device import DEVICE_VARIABLE
from routed_native import DownParams, GateUpParams
from routed_oracle import q8_k
from test_products import rng_of

DEVICE = os.environ.get(DEVICE_VARIABLE, "cpu")
if DEVICE == "cpu":
    pytest.skip("needs a GPU: full-size layers (tests/kernels/cuda_run.py)", allow_module_level=True)

EXPERTS, TOP_K, MODEL, FFN = 256, 6, 4096, 2048
TOKENS = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 512)
VARIANTS = {"auto": 0, "direct": 1, "tiles": 2, "dot_tiles": 3}
GUARD = 1024
"""Elements before and behind each result."""
SAMPLE = 48
"""Rows of a slot that the oracle computes."""


def blocks(type_name: str, experts: int, rows: int, cols: int) -> torch.Tensor:
    """Random bytes, scales of each block about one another's size: uint8 [experts, rows, bytes of a row]."""
    generator = torch.Generator(device=DEVICE).manual_seed(rows + cols)
    shape = (experts, rows, cols // 32, oracle.row_bytes(type_name, 32))
    made = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE, generator=generator)
    if type_name == "MXFP4":
        made[..., 0] = made[..., 0] % 6 + 118
    else:
        assert type_name == "Q8_0"
        made[..., 1] = made[..., 1] % 2 + 0x20  # of a half near 0.01
    return made.reshape(experts, rows, -1)


@dataclass(frozen=True)
class Result:
    """float32 [rows, columns] between guards, all of it poisoned."""

    whole: torch.Tensor
    rows: int
    columns: int

    @classmethod
    def poisoned(cls, rows: int, columns: int) -> Result:
        whole = torch.full((rows * columns + 2 * GUARD,), torch.nan, device=DEVICE)
        whole[:GUARD] = whole[-GUARD:] = 12345.0
        return cls(whole, rows, columns)

    @property
    def address(self) -> int:
        return self.whole.data_ptr() + 4 * GUARD

    def read(self) -> np.ndarray:
        """What was written; the guards are untouched."""
        whole = self.whole.cpu().numpy()
        assert (whole[:GUARD] == 12345.0).all() and (whole[-GUARD:] == 12345.0).all()
        found = whole[GUARD:-GUARD].reshape(self.rows, self.columns)
        assert np.isfinite(found).all()
        return found


def ids_of(rng: np.random.Generator, tokens: int) -> np.ndarray:
    """Distinct ones for each token: 0, 127, 128 and 255 of the first, and one -1 where there is a second."""
    ids = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)])
    ids[0] = (0, 127, 128, 255, 7, 99)
    if tokens > 1:
        ids[1, 2] = -1
    return ids


def on_device(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def run(bare: NativeLibrary, name: str, params: ctypes.Structure, size: int) -> None:
    """A call with scratch of just that size, poisoned."""
    scratch = torch.full((size + 256,), 0xA5, dtype=torch.uint8, device=DEVICE)
    params.scratch, params.scratch_bytes = scratch.data_ptr(), size  # type: ignore[attr-defined]
    bare.call(name, params)
    torch.cuda.synchronize()
    assert (scratch[size:] == 0xA5).all()


@dataclass(frozen=True)
class Layer:
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def gate_up(self, bare: NativeLibrary, x: np.ndarray, ids: np.ndarray, variant: str) -> np.ndarray:
        out = Result.poisoned(ids.size, FFN)
        there, where = on_device(x), on_device(ids)
        row = self.gate.shape[2]
        params = GateUpParams(
            gate=self.gate.data_ptr(),
            up=self.up.data_ptr(),
            x=there.data_ptr(),
            ids=where.data_ptr(),
            out=out.address,
            x_stride=MODEL,
            gate_expert_stride=FFN * row,
            gate_row_stride=row,
            up_expert_stride=FFN * row,
            up_row_stride=row,
            experts=EXPERTS,
            tokens=len(ids),
            top_k=TOP_K,
            rows=FFN,
            cols=MODEL,
            alpha=1.0,
            limit=float("inf"),
            ids_bits=64,
            type=TYPES["MXFP4"],
            activations=TYPES["Q8_K"],
            variant=VARIANTS[variant],
        )
        run(bare, "gguf_moe_gate_up", params, bare.size("gguf_moe_gate_up_bytes", params))
        return out.read()

    def project_down(
        self, bare: NativeLibrary, hidden: np.ndarray, ids: np.ndarray, factors: np.ndarray, variant: str
    ) -> np.ndarray:
        out = Result.poisoned(len(ids), MODEL)
        there, where, weights = on_device(hidden), on_device(ids), on_device(factors)
        row = self.down.shape[2]
        params = DownParams(
            down=self.down.data_ptr(),
            x=there.data_ptr(),
            ids=where.data_ptr(),
            weights=weights.data_ptr(),
            out=out.address,
            x_stride=FFN,
            down_expert_stride=MODEL * row,
            down_row_stride=row,
            experts=EXPERTS,
            tokens=len(ids),
            top_k=TOP_K,
            rows=MODEL,
            cols=FFN,
            ids_bits=64,
            type=TYPES["MXFP4"],
            variant=VARIANTS[variant],
        )
        run(bare, "gguf_moe_down", params, bare.size("gguf_moe_down_bytes", params))
        return out.read()


@pytest.fixture(scope="module")
def layer() -> Layer:
    if "MXFP4" not in FORMATS:
        pytest.skip("not among the formats of this mutant")
    gate, up = (blocks("MXFP4", EXPERTS, FFN, MODEL) for _ in range(2))
    return Layer(gate, up.flip(1).contiguous(), blocks("MXFP4", EXPERTS, MODEL, FFN))


def inputs(tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, ids, factors."""
    rng = rng_of(tokens)
    x = rng.standard_normal((tokens, MODEL)).astype(np.float32)
    ids = ids_of(rng, tokens)
    return x, ids, rng.uniform(0.05, 1.0, size=ids.shape).astype(np.float32)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_a_layer(bare: NativeLibrary, layer: Layer, tokens: int, variant: str) -> None:
    """Both steps; down against the oracle of the first step's own result (trap 16)."""
    x, ids, factors = inputs(tokens)
    rng = rng_of(tokens, variant)
    hidden = layer.gate_up(bare, x, ids, variant)
    assert (hidden[(ids < 0).reshape(-1)] == 0).all()
    slots = {0, 1, 2, 3, *rng.integers(0, ids.size, 6).tolist()} - set(np.flatnonzero(ids.reshape(-1) < 0).tolist())
    found, wanted = [], []
    for z in sorted(slots):
        rows = rng.permutation(FFN)[:SAMPLE]
        expert = int(ids.reshape(-1)[z])
        some = [weight[expert, on_device(rows)].cpu().numpy()[None] for weight in (layer.gate, layer.up)]
        own, bound = routed_oracle.gate_up(x[z // TOP_K][None], *some, np.array([[0]]), "MXFP4", q8_k)
        assert (np.abs(hidden[z, rows] - own[0]) <= bound[0]).all(), z
        found.append(hidden[z, rows])
        wanted.append(own[0])
    assert oracle.nmse(np.concatenate(found), np.concatenate(wanted)) <= NMSE_F32

    result = layer.project_down(bare, hidden, ids, factors, variant)
    found, wanted = [], []
    for token in sorted({0, tokens // 2, tokens - 1}):
        rows = rng.permutation(MODEL)[:SAMPLE]
        named = np.maximum(ids[token], 0)
        weight = layer.down[on_device(named)[:, None], on_device(rows)[None]].cpu().numpy()
        local = np.where(ids[token] < 0, -1, np.arange(TOP_K))[None]
        own_hidden = hidden[token * TOP_K : (token + 1) * TOP_K]
        own, bound = routed_oracle.down(own_hidden, weight, local, factors[token][None])
        assert (np.abs(result[token, rows] - own[0]) <= bound[0]).all(), token
        found.append(result[token, rows])
        wanted.append(own[0])
    assert oracle.nmse(np.concatenate(found), np.concatenate(wanted)) <= NMSE_F32


@pytest.mark.parametrize("tokens", [128, 512])
def test_variants_and_batches_give_the_same_bits(bare: NativeLibrary, layer: Layer, tokens: int) -> None:
    """Tiles with matrix cores and without; and a token's results however tokens are batched."""
    x, ids, factors = inputs(tokens)
    hidden = layer.gate_up(bare, x, ids, "tiles")
    assert np.array_equal(layer.gate_up(bare, x, ids, "dot_tiles"), hidden)
    result = layer.project_down(bare, hidden, ids, factors, "tiles")
    assert np.array_equal(layer.project_down(bare, hidden, ids, factors, "dot_tiles"), result)
    half = slice(tokens // 2, tokens)
    slots = slice(tokens // 2 * TOP_K, tokens * TOP_K)
    assert np.array_equal(layer.gate_up(bare, x[half], ids[half], "tiles"), hidden[slots])
    assert np.array_equal(layer.project_down(bare, hidden[slots], ids[half], factors[half], "tiles"), result[half])


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return blocks("Q8_0", EXPERTS, FFN, MODEL)


@pytest.mark.parametrize("tokens", TOKENS)
def test_grouped_products(bare: NativeLibrary, weight: torch.Tensor, tokens: int) -> None:
    """ggml_moe_a8's function with Q8_0 and each kernel: the same bits, and the oracle's results."""
    x, ids, _ = inputs(tokens)
    there, where = on_device(x), on_device(ids)
    count = ids.size + min(ids.size, EXPERTS + 1) * 15
    lists = [torch.full((size,), 9, dtype=torch.int32, device=DEVICE) for size in (count, -(-count // 16), 1)]
    bare.call(
        "gguf_moe_align",
        AlignParams(
            ids=where.data_ptr(),
            sorted_ids=lists[0].data_ptr(),
            expert_ids=lists[1].data_ptr(),
            padded=lists[2].data_ptr(),
            slots=ids.size,
            sorted_count=count,
            expert_count=-(-count // 16),
            experts=EXPERTS,
            block=16,
            ids_bits=64,
        ),
    )
    results = []
    for kernel in KERNELS.values():
        out = Result.poisoned(ids.size, FFN)
        params = MoeParams(
            weight=weight.data_ptr(),
            x=there.data_ptr(),
            sorted_ids=lists[0].data_ptr(),
            expert_ids=lists[1].data_ptr(),
            padded=lists[2].data_ptr(),
            out=out.address,
            x_stride=MODEL,
            sorted_count=count,
            expert_count=-(-count // 16),
            experts=EXPERTS,
            tokens=tokens,
            top_k=TOP_K,
            rows=FFN,
            cols=MODEL,
            type=TYPES["Q8_0"],
            kernel=kernel,
        )
        run(bare, "gguf_moe_a8", params, bare.activation_bytes(tokens, MODEL))
        results.append(out.read())
    for other in results[1:]:
        assert np.array_equal(other, results[0])
    rng = rng_of(tokens)
    for z in {0, 1, 2, 3, *rng.integers(0, ids.size, 6).tolist()}:
        expert, rows = int(ids.reshape(-1)[z]), rng.permutation(FFN)[:SAMPLE]
        if expert < 0:
            assert (results[0][z] == 0).all()
            continue
        some = weight[expert, on_device(rows)].cpu().numpy()
        assert oracle.nmse(results[0][z, rows], oracle.mat_vec(some, "Q8_0", x[z // TOP_K][None])[0]) <= NMSE_F32
