"""`python -m gguf_kernels.bench`: times the products, next to what the card allows and other ways of computing them.

Suites: `decode`, plain products of few vectors; `prefill`, plain products of many; `routed`, products by expert, of 1
to 4096 tokens.

On a GPU each figure is the median over replays of a CUDA graph that runs the product on as many different weights,
routings and inputs as fill four times the L2 cache, divided by their number; quantising the activations is part of it,
and so is sorting slots by expert. On the CPU, whose library is an oracle and no fast path, it is the median of plain
calls. Every result is checked first, against the dequantised weights times the activations quantised alike; of many
slots some are, and all of them more loosely against torch's. Every contender gets the same weights, inputs and
routings: for each token top_k different experts at random, from a fixed seed.

Baselines, where they can be had:
`read`, reading the bytes of the weights (of the experts that are named) once, by baselines/read.cu where nvcc is on
PATH, else by torch's sum of them as int64; `read_by` says which.
`matmul`, dequantising to bfloat16 and torch's matmul, as one does without such kernels. By expert: of no more slots
than experts, a batched product of the experts that are named; else all of them and grouped_mm.
`dense`, torch's matmul with weights that are bfloat16 already; `int8`, cuBLAS's product of int8 without scales.
`mma`, the time in which a bare loop of `mma.sync` on int8 with a float32 scale every 32 values does as many operations
(baselines/mma.cu); `ceilings` has its speed, and that of the loop without scales, in 10^12 operations a second.
`llama.cpp`, its kernels from the sources that the package freetoken carries, built on demand by nvcc: mmvq for few
vectors or tokens, mmq for more, as its backend chooses. Its SwiGLU is fused where it fuses it, else one kernel more.

`mxfp4_moe_down` also sums a token's slots by their routing weights, which no baseline does.
"""

from __future__ import annotations

from gguf_kernels.bench._command import main, measure
from gguf_kernels.bench._inputs import block_shape, random_weights
from gguf_kernels.bench._records import SHAPES, Record, Shape, plot, render
from gguf_kernels.bench._suites import Bench, WrongResult

__all__ = [
    "SHAPES",
    "Bench",
    "Record",
    "Shape",
    "WrongResult",
    "block_shape",
    "main",
    "measure",
    "plot",
    "random_weights",
    "render",
]
