"""A routed layer on torch tensors: a router, eight MXFP4 experts of which each token takes two, and their sum.

The weights are what a GGUF file holds, 17 bytes for 32 of them, and stay that. Gate and up are the halves of one
tensor, as many models store them. Runs on the CPU, or on a GPU where torch and the kernels have one.
"""

from __future__ import annotations

import gguf
import gguf_kernels
import numpy as np
import torch

MODEL, FFN, EXPERTS, TOP_K = 512, 256, 8, 2


def packed(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """Random weights as MXFP4 blocks: uint8 [..., columns / 32 * 17]."""
    values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    return torch.from_numpy(gguf.quants.quantize(values, gguf.GGMLQuantizationType.MXFP4))


def main() -> None:
    device = "cuda" if gguf_kernels.supports("mxfp4_moe_down", "MXFP4", "cuda") else "cpu"
    rng = np.random.default_rng(0)
    gate_up = packed(rng, EXPERTS, 2 * FFN, MODEL).to(device)
    gate, up, down = gate_up[:, :FFN], gate_up[:, FFN:], packed(rng, EXPERTS, MODEL, FFN).to(device)
    router = torch.randn(MODEL, EXPERTS, device=device, generator=torch.Generator(device).manual_seed(0))
    for tokens in (1, 4, 16):
        x = torch.randn(tokens, MODEL, device=device, generator=torch.Generator(device).manual_seed(tokens))
        weights, ids = torch.topk((x @ router).softmax(-1), TOP_K)
        found = gguf_kernels.mxfp4_experts(x, gate, up, down, ids, weights)

        wanted = torch.zeros_like(x)
        for expert in range(EXPERTS):
            g, u, d = (
                gguf_kernels.ggml_dequantize(
                    each[expert].contiguous(), "MXFP4", each.shape[1], each.shape[2] // 17 * 32, torch.float32
                )
                for each in (gate, up, down)
            )
            token, slot = (ids == expert).nonzero(as_tuple=True)
            hidden = torch.nn.functional.silu(x[token] @ g.T) * (x[token] @ u.T)
            wanted.index_add_(0, token, (hidden @ d.T) * weights[token, slot, None])
        error = float((found - wanted).norm() / wanted.norm())
        print(f"{tokens} tokens on {device}: {error:.2%} from the same layer with unquantised activations")
        if not error < 0.04:  # activations of 8 bits with a scale every 256, twice
            raise SystemExit(f"routed_layer: an error of {error:.2%} was found, less than 4% is wanted")


if __name__ == "__main__":
    main()
