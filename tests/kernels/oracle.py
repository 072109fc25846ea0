"""The obvious, slow reference: the `gguf` package's dequantiser, a quantiser of activations written from the contract,
and products in float64. It shares no code with the kernels.
"""

from __future__ import annotations

import gguf
import numpy as np

__all__ = [
    "HALVES",
    "dequantize",
    "encode",
    "mat_vec",
    "moe_vec",
    "nmse",
    "put_half",
    "quantize_activations",
    "random_blocks",
    "row_bytes",
]

BLOCK = 32  # activations

HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S"), (0,)),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "IQ1_M": (48,)},
    **{"MXFP4": (), "NVFP4": ()},
}
"""Where a block's float16 scales (and minima) begin. Every other bit of a block is free. That of IQ1_M lies in the top
nibbles of four 16-bit words from there on, low nibble first; MXFP4 and NVFP4 have scales of 8 bits."""


def row_bytes(type_name: str, cols: int) -> int:
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    assert cols % elements == 0
    return cols // elements * size


def dequantize(weight: np.ndarray, type_name: str) -> np.ndarray:
    """float32 values of rows of blocks: uint8 [..., row_bytes] -> [..., cols]."""
    flat = np.ascontiguousarray(weight).reshape(-1, weight.shape[-1])
    values = gguf.quants.dequantize(flat, gguf.GGMLQuantizationType[type_name])
    if type_name == "MXFP4":  # a scale of 255 is NaN by the OCP standard, and 1.7e38 for the `gguf` package
        values.reshape(-1, 32)[flat.reshape(-1, 17)[:, 0] == 255] = np.nan
    return values.reshape(*weight.shape[:-1], values.shape[-1])


def encode(values: np.ndarray, type_name: str) -> np.ndarray:
    """float32 [..., cols] -> uint8 [..., row_bytes], by the `gguf` package."""
    return gguf.quants.quantize(np.ascontiguousarray(values, dtype=np.float32), gguf.GGMLQuantizationType[type_name])


def put_half(blocks: np.ndarray, type_name: str, at: int, bits: np.ndarray) -> None:
    """Write float16s, given as their 16 bits, into blocks (uint8 [..., bytes of a block]) at one of HALVES."""
    if type_name == "IQ1_M":
        for nibble in range(4):
            byte = blocks[..., at + 2 * nibble + 1]
            byte[...] = (byte & 15) | (bits >> (4 * nibble) & 15).astype(np.uint8) << 4
    else:
        blocks[..., at : at + 2] = np.ascontiguousarray(bits)[..., None].view(np.uint8)


def random_blocks(rng: np.random.Generator, type_name: str, *shape: int) -> np.ndarray:
    """Random valid blocks for weights of a shape [..., cols]: every bit of a code or a small scale may be set, and
    halves have both signs. Scales stay below 1, so that products are finite in float16.
    """
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    *rows, cols = shape
    blocks = rng.integers(0, 256, size=(*rows, cols // elements, size), dtype=np.uint8)
    for at in HALVES[type_name]:
        magnitudes = rng.uniform(0.25, 1.0, size=blocks.shape[:-1]) / 64
        halves = (magnitudes * rng.choice([-1.0, 1.0], size=magnitudes.shape)).astype(np.float16)
        put_half(blocks, type_name, at, halves.view(np.uint16))
    if type_name == "MXFP4":
        blocks[..., 0] = rng.integers(117, 125, size=blocks.shape[:-1])
    if type_name == "NVFP4":
        blocks[..., :4] &= 0xBF  # below 1
    return blocks.reshape(*rows, cols // elements * size)


def quantize_activations(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x: float32 [n, cols] -> (q: float64 whole numbers [n, cols], d: float32 [n, cols / 32]).

    d = max|x| / 127 in float32; q = x / d in float32, rounded to the nearest whole number, halves away from zero; q = 0
    where d = 0. At the very bottom of float32, where d has few bits left, q is held within +-127. A block that is not
    finite has d = NaN or infinity and q = 0.
    """
    blocks = x.astype(np.float32).reshape(len(x), -1, BLOCK)
    with np.errstate(all="ignore"):
        d = np.abs(blocks).max(axis=-1) / np.float32(127)
        quotient = blocks / d[..., None]
        assert quotient.dtype == np.float32
        magnitude = np.abs(quotient.astype(np.float64))
        q = np.sign(quotient) * np.floor(magnitude + 0.5)  # exact in float64: a float32 plus a half
    q = np.clip(q, -127, 127)
    usable = np.isfinite(d) & (d != 0)
    q = np.where(usable[..., None], q, 0.0)
    return q.reshape(x.shape), d


def mat_vec(weight: np.ndarray, type_name: str, x: np.ndarray) -> np.ndarray:
    """float64 [n, rows]: dequantised weights times quantised activations. weight: uint8 [rows, row_bytes]."""
    if weight.shape[0] == 0 or len(x) == 0 or x.shape[1] == 0:
        return np.zeros((len(x), weight.shape[0]))
    q, d = quantize_activations(x)
    with np.errstate(invalid="ignore"):
        values = (q.reshape(len(x), -1, BLOCK) * d[..., None].astype(np.float64)).reshape(x.shape)
        return values @ dequantize(weight, type_name).astype(np.float64).T


def moe_vec(x: np.ndarray, weight: np.ndarray, ids: np.ndarray, top_k: int, type_name: str) -> np.ndarray:
    """float64 [tokens * top_k, rows]; rows of zeros for ids that name no expert. weight: [experts, rows, row_bytes]."""
    result = np.zeros((ids.size, weight.shape[1]))
    for z, expert in enumerate(ids.reshape(-1).tolist()):
        if 0 <= expert < len(weight):
            result[z] = mat_vec(weight[expert], type_name, x[z // top_k : z // top_k + 1])[0]
    return result


def nmse(found: np.ndarray, wanted: np.ndarray) -> float:
    """Sum of squared errors over the sum of squares. The reference must not be all zeros, or anything would pass."""
    power = float(np.square(wanted.astype(np.float64)).sum())
    assert power > 0, "the reference is all zeros"
    return float(np.square(found.astype(np.float64) - wanted).sum()) / power
