"""What the checks know of one file by itself; it is kept with the file's conversion."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

__all__ = ["UNDEFINED", "Facts", "Macros"]

UNDEFINED = frozenset(
    (
        *("__CUDA_ARCH__", "__CUDACC__", "__NVCC__", "__CUDACC_RTC__", "__HIP_PLATFORM_NVIDIA__"),
        *("__HIP_PLATFORM_NVCC__", "CUDART_VERSION", "ROCMBUILD_PLATFORM_CUDA", "_MSC_VER", "_WIN32", "__APPLE__"),
        *("__GFX8__", "__GFX9__"),
    )
)
"""Macros that no compilation for HIP on Linux defines, unless the sources themselves do."""


class Macros(NamedTuple):
    """What a whole tree says of macros. undefined: defined nowhere that counts. unknown: of UNDEFINED, yet defined."""

    undefined: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()

    def among(self, names: Collection[str]) -> Macros:
        """Only what concerns these names."""
        if self.undefined.isdisjoint(names) and self.unknown.isdisjoint(names):
            return _NO_MACROS
        return Macros(self.undefined.intersection(names), self.unknown.intersection(names))


_NO_MACROS = Macros()


class Facts(NamedTuple):
    """Facts under one state of macros. All of it is JSON, and stands in files as a list.

    conditions: macros that its conditions name and that are not certain. live, dead: macros that it defines in code
    a HIP compiler sees, and in other code alone. constants: macros and constants -> whether their value is known to
    have at most 32 bits. own: names it declares that look like CUDA's. wrappers: shuffles that it defines itself.
    reaches, passes: the staged files that it includes in live code, and in dead code alone. found: [rule, line, column,
    name, detail, mask] for each candidate; mask is a name that must turn out to be at most 32 bits wide, or "".
    """

    conditions: list[str]
    live: list[str]
    dead: list[str]
    constants: dict[str, bool]
    own: list[str]
    wrappers: list[str]
    reaches: list[str]
    passes: list[str]
    found: list[list[Any]]
