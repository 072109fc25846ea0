"""GGUF kernels for PyTorch: block-quantised weights, multiplied as they are.

Importing this package loads its native libraries: the host library, which defines the operators and serves CPU
tensors on any machine, and the device library where torch is a build for the GPU at hand. `REPORT` says what was
loaded, and of the rest why not. The operators are also under torch.ops.gguf_kernels, and work under torch.compile.
"""

from __future__ import annotations

from gguf_kernels._library import REPORT, supports
from gguf_kernels._ops import ggml_dequantize, ggml_moe_a8_vec, ggml_mul_mat_vec_a8
from gguf_kernels._types import GGMLType

__all__ = ["REPORT", "GGMLType", "ggml_dequantize", "ggml_moe_a8_vec", "ggml_mul_mat_vec_a8", "supports"]
