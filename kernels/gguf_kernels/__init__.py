"""GGUF kernels for PyTorch: block-quantised weights, multiplied as they are.

Importing this package loads its native libraries: the host library, which defines the operators and serves CPU
tensors on any machine, and the device library where torch is a build for the GPU at hand. `REPORT` says what was
loaded, and of the rest why not; `supports` and `capabilities` what can run where; `python -m gguf_kernels` prints all
of it. The operators are also under torch.ops.gguf_kernels, and work under torch.compile and in captured graphs.
"""

from __future__ import annotations

from gguf_kernels._experts_gemm import (
    ggml_moe_a8,
    ggml_moe_get_block_size,
    ggml_mul_mat_a8,
    ggml_quantize_q8_0,
    ggml_quantize_q8_k,
    moe_align_block_size,
)
from gguf_kernels._library import REPORT, capabilities, device_fault, supports
from gguf_kernels._ops import ggml_dequantize, ggml_moe_a8_vec, ggml_mul_mat_vec_a8
from gguf_kernels._routed import ggml_moe_gate_up_a8, mxfp4_experts, mxfp4_moe_down, mxfp4_moe_gate_up
from gguf_kernels._types import GGMLType

__all__ = [
    "REPORT",
    "GGMLType",
    "capabilities",
    "device_fault",
    "ggml_dequantize",
    "ggml_moe_a8",
    "ggml_moe_a8_vec",
    "ggml_moe_gate_up_a8",
    "ggml_moe_get_block_size",
    "ggml_mul_mat_a8",
    "ggml_mul_mat_vec_a8",
    "ggml_quantize_q8_0",
    "ggml_quantize_q8_k",
    "moe_align_block_size",
    "mxfp4_experts",
    "mxfp4_moe_down",
    "mxfp4_moe_gate_up",
    "supports",
]
