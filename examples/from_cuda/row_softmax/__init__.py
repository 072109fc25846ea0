"""Softmax of rows, with a temperature."""

import torch  # noqa: F401  (loads what _C needs)

from row_softmax._C import row_softmax

__all__ = ["row_softmax"]
