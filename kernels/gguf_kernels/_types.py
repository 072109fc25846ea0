"""The types of GGUF by name and id."""

from __future__ import annotations

import difflib
from enum import IntEnum

__all__ = ["GGMLType", "type_id"]


class GGMLType(IntEnum):
    """Ids as GGUF files hold them. Which of them an operator takes, `gguf_kernels.supports` says."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40


def type_id(type: int | str) -> int:
    """The id of a type given by id or by name, in any case. ValueError for an unknown name, with the nearest known one.

    Ids pass unchecked: the operator that gets one refuses what it does not support, by name.
    """
    if isinstance(type, str):
        try:
            return int(GGMLType[type.upper()])
        except KeyError:
            near = difflib.get_close_matches(type.upper(), GGMLType.__members__, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(GGMLType.__members__)}"
            raise ValueError(f"type is {type!r}, which is no GGUF type{hint}") from None
    return int(type)
