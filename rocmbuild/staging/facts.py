"""What the checks know of one file by itself; it is kept with the file's conversion."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Facts"]


class Facts(NamedTuple):
    """Facts under one set of macros that are not defined. All of it is JSON, and stands in files as a list.

    conditions: macros that its conditions name and whose state is not given. live, dead: macros that it defines in code
    a HIP compiler sees, and in other code alone. constants: macros and constants -> whether their value is known to
    have at most 32 bits. own: names it declares that look like CUDA's. wrappers: shuffles that it defines itself.
    found: [rule, line, column, name, detail, mask] for each candidate; mask is a name that must turn out to be
    at most 32 bits wide, or "".
    """

    conditions: list[str]
    live: list[str]
    dead: list[str]
    constants: dict[str, bool]
    own: list[str]
    wrappers: list[str]
    found: list[list[Any]]
