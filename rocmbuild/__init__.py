"""rocmbuild: a PEP 517 build backend and ROCm toolchain manager for PyTorch GPU extensions on Radeon."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
