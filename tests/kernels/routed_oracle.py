"""The slow, obvious reference of routed experts: Q8_K activations, SwiGLU and routing weights in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import oracle

__all__ = ["Quantiser", "blocks_of_32", "down", "gate_up", "q8_k", "swiglu"]

Quantiser = Callable[[np.ndarray], np.ndarray]

WORST = 1e-6
"""The largest error of a float32 product, over the sum of |w x|: thousands of additions in any order stay below."""


def blocks_of_32(x: np.ndarray) -> np.ndarray:
    """float64 [n, cols]: what ggml_* operators make of activations."""
    q, d = oracle.quantize_activations(x)
    with np.errstate(invalid="ignore"):
        return (q.reshape(len(x), -1, oracle.BLOCK) * d[..., None].astype(np.float64)).reshape(x.shape)


def q8_k(x: np.ndarray) -> np.ndarray:
    """float64 [n, cols]: what Q8_K makes of float32 activations, block by block as ggml's quantize_row_q8_K says."""
    result = np.empty(x.shape)
    one, most = np.float32(1), np.float32(127)
    for n, row in enumerate(x.astype(np.float32)):
        for at in range(0, len(row), 256):
            block = row[at : at + 256]
            if not np.isfinite(block).all():
                result[n, at : at + 256] = np.nan
                continue
            largest = np.float32(0)
            for value in block:
                if abs(value) > abs(largest):
                    largest = value
            with np.errstate(all="ignore"):
                s = -most / largest
                usable = largest != 0 and np.isfinite(s)
                q = np.minimum(np.rint(s * block), most) if usable else np.zeros(256, np.float32)
                d = one / s if usable else np.float32(0)
            assert q.dtype == d.dtype == np.float32
            result[n, at : at + 256] = q.astype(np.float64) * np.float64(d)
    return result


def swiglu(gate: np.ndarray, up: np.ndarray, alpha: float, limit: float | None, up_offset: float) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        if limit is not None:
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return gate / (1 + np.exp(-alpha * gate)) * (up + up_offset)


def gate_up(
    x: np.ndarray,
    gate: np.ndarray,
    up: np.ndarray,
    ids: np.ndarray,
    type_name: str,
    quantise: Quantiser,
    *,
    alpha: float = 1.0,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """float64 [tokens * top_k, rows], and how far from it a float32 result may be. gate, up: [experts, rows, bytes].

    An error of e in the gate moves the result by at most 1.1 e |up + offset|, since no slope of SiLU is above 1.1,
    and one of e in up by e |silu(gate)|.
    """
    values = quantise(x)
    wanted = np.zeros((ids.size, gate.shape[1]))
    bound = np.zeros_like(wanted)
    decoded: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for z, expert in enumerate(ids.reshape(-1).tolist()):
        if not 0 <= expert < len(gate):
            continue
        if expert not in decoded:
            decoded[expert] = tuple(oracle.dequantize(each[expert], type_name).astype(float) for each in (gate, up))  # type: ignore[assignment]
        own = values[z // ids.shape[1]]
        with np.errstate(invalid="ignore"):
            g, u = (weights @ own for weights in decoded[expert])
            g_sum, u_sum = (np.abs(weights) @ np.abs(own) for weights in decoded[expert])
        wanted[z] = swiglu(g, u, alpha, limit, up_offset)
        silu = swiglu(g, np.zeros_like(u), alpha, limit, 1.0)
        second = np.abs(u if limit is None else np.clip(u, -limit, limit)) + abs(up_offset)
        bound[z] = WORST * (1.1 * g_sum * second + u_sum * np.abs(silu) + np.abs(wanted[z]))
    return wanted, bound


def down(hidden: np.ndarray, weight: np.ndarray, ids: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float64 [tokens, rows], and how far from it a float32 result may be. hidden: [tokens * top_k, cols], MXFP4."""
    values = q8_k(hidden)
    wanted = np.zeros((len(ids), weight.shape[1]))
    bound = np.zeros_like(wanted)
    decoded: dict[int, np.ndarray] = {}
    for z, expert in enumerate(ids.reshape(-1).tolist()):
        if not 0 <= expert < len(weight):
            continue
        if expert not in decoded:
            decoded[expert] = oracle.dequantize(weight[expert], "MXFP4").astype(float)
        factor = float(factors.reshape(-1)[z])
        token = z // ids.shape[1]
        with np.errstate(invalid="ignore"):
            wanted[token] += factor * (decoded[expert] @ values[z])
            bound[token] += WORST * abs(factor) * (np.abs(decoded[expert]) @ np.abs(values[z]))
    return wanted, bound
