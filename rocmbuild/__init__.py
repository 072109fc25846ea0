"""rocmbuild: a PEP 517 build backend and ROCm toolchain manager for PyTorch GPU extensions on Radeon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocmbuild.jit import load

__all__ = ["__version__", "load"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`load` is imported when it is first asked for: front ends import this package to ask what a build requires."""
    if name == "load":
        from rocmbuild.jit import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
