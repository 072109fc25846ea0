"""Replaces the expert path of a small mixture of experts written in plain torch, and compares.

`Experts` is the plain module: float weights, a loop over experts. `PackedExperts` has the same forward and is made from
it: weights as MXFP4 blocks, an eighth of the bytes, multiplied as they are. The model changes in one line.
"""

from __future__ import annotations

import copy

import gguf
import gguf_kernels
import torch
from torch import Tensor, nn

MODEL, FFN, COUNT, TOP_K = 256, 512, 8, 2


class Experts(nn.Module):
    """SwiGLU experts: each token's output is the sum of its experts' outputs times the routing weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(COUNT, FFN, MODEL) / MODEL**0.5)
        self.up = nn.Parameter(torch.randn(COUNT, FFN, MODEL) / MODEL**0.5)
        self.down = nn.Parameter(torch.randn(COUNT, MODEL, FFN) / FFN**0.5)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in range(COUNT):
            token, slot = (ids == expert).nonzero(as_tuple=True)
            hidden = nn.functional.silu(x[token] @ self.gate[expert].T) * (x[token] @ self.up[expert].T)
            result.index_add_(0, token, (hidden @ self.down[expert].T) * weights[token, slot, None])
        return result


class PackedExperts(nn.Module):
    """The same on MXFP4 weights."""

    def __init__(self, plain: Experts) -> None:
        super().__init__()
        for name, values in plain.named_parameters():
            blocks = gguf.quants.quantize(values.detach().numpy(), gguf.GGMLQuantizationType.MXFP4)
            self.register_buffer(name, torch.from_numpy(blocks))

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return gguf_kernels.mxfp4_experts(x, self.gate, self.up, self.down, ids, weights)


class Model(nn.Module):
    """Two layers of norm, router and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.ModuleList(nn.LayerNorm(MODEL) for _ in range(2))
        self.router = nn.ModuleList(nn.Linear(MODEL, COUNT, bias=False) for _ in range(2))
        self.experts = nn.ModuleList(Experts() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, router, experts in zip(self.norm, self.router, self.experts, strict=True):
            y = norm(x)
            weights, ids = torch.topk(router(y).softmax(-1), TOP_K)
            x = x + experts(y, ids, weights)
        return x


def rounded(plain: Experts) -> Experts:
    """The plain experts with their weights rounded to what MXFP4 holds."""
    result = copy.deepcopy(plain)
    for values in result.parameters():
        blocks = gguf.quants.quantize(values.detach().numpy(), gguf.GGMLQuantizationType.MXFP4)
        values.data = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4))
    return result


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    model = Model()
    model.experts = nn.ModuleList(rounded(each) for each in model.experts)
    x = torch.randn(12, MODEL)
    wanted = model(x)
    model.experts = nn.ModuleList(PackedExperts(each) for each in model.experts)
    found = model(x)
    error = float((found - wanted).norm() / (wanted - x).norm())
    print(f"12 tokens, 2 layers: {error:.2%} from plain torch on the same weights")
    if not error < 0.04:  # activations of 8 bits with a scale every 256, twice a layer
        raise SystemExit(f"moe_drop_in: an error of {error:.2%} was found, less than 4% is wanted")


if __name__ == "__main__":
    main()
