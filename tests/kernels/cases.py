"""The one list of formats, shapes and types that correctness tests share (and benchmarks can)."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
from packages import csrc_folder, formats_of

__all__ = [
    "ALL_FORMATS",
    "FORMATS",
    "MAT_MAT_FORMATS",
    "MOE_CASES",
    "NMSE_F32",
    "PRODUCT_CASES",
    "SCALARS",
    "MoeCase",
    "ProductCase",
    "block_of",
    "fit",
    "ulps",
]

ALL_FORMATS = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ3_XXS",
    "IQ1_S",
    "IQ4_NL",
    "IQ3_S",
    "IQ2_S",
    "IQ4_XS",
    "IQ1_M",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
    "NVFP4",
)
"""The weight formats that have kernels. A new one is a line here; its block and id are the `gguf` package's."""

FORMATS = tuple(name for name in ALL_FORMATS if name in formats_of(csrc_folder()))
"""Those of the sources under test: all, but for a mutant, which is built with no more than its tests need."""

MAT_MAT_FORMATS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
)
"""Those that have the products with many vectors."""

SCALARS = ("float32", "float16", "bfloat16")

NMSE_F32 = 1e-9
"""Against an oracle that quantises alike only the order and rounding of float32 additions is left: about 1e-14 is seen.
1e-9 is the project's bound, far below what another rounding of d (4e-8) or of q (2e-7) would give."""

_MANTISSA = {"float16": 10, "bfloat16": 7}


def ulps(dtype: str) -> float:
    """The largest relative error that rounding once to a dtype makes: half a unit in the last place."""
    return 2.0 ** -(_MANTISSA[dtype] + 1)


def block_of(type_name: str) -> int:
    """Elements of a block."""
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]][0])


def fit(type_name: str, cols: int) -> int:
    """cols, or the next number of columns that is whole blocks of a format."""
    block = block_of(type_name)
    return -(-cols // block) * block


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductCase:
    """One product: W is [rows, cols], X is [vectors, cols], with fit(type, cols) for cols."""

    why: str
    rows: int
    cols: int
    vectors: int

    @property
    def id(self) -> str:
        return f"{self.rows}x{self.cols}x{self.vectors}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeCase:
    """One routed product: W is [experts, rows, cols], X is [tokens, cols], ids are [tokens, top_k]; cols as above."""

    why: str
    experts: int
    rows: int
    cols: int
    tokens: int
    top_k: int

    @property
    def id(self) -> str:
        return f"e{self.experts}r{self.rows}c{self.cols}t{self.tokens}k{self.top_k}"


PRODUCT_CASES = (
    ProductCase(why="one block, one row, one vector", rows=1, cols=32, vectors=1),
    ProductCase(why="K below a wave of tiles", rows=5, cols=128, vectors=1),
    ProductCase(why="K one tile short of a wave of them", rows=3, cols=992, vectors=2),
    ProductCase(why="K exactly a wave of tiles", rows=8, cols=1024, vectors=3),
    ProductCase(why="K one tile past a wave of them", rows=9, cols=1056, vectors=1),
    ProductCase(why="K of a real model, not a multiple of 256", rows=127, cols=640, vectors=1),
    ProductCase(why="rows one past a power of two", rows=129, cols=640, vectors=2),
    ProductCase(why="two rounds and a rest", rows=17, cols=2336, vectors=4),
    ProductCase(why="five vectors", rows=10, cols=320, vectors=5),
    ProductCase(why="six vectors", rows=11, cols=320, vectors=6),
    ProductCase(why="seven vectors", rows=7, cols=1088, vectors=7),
    ProductCase(why="eight vectors", rows=7, cols=1088, vectors=8),
    ProductCase(why="eight and one vectors", rows=6, cols=96, vectors=9),
    ProductCase(why="two eights and seven vectors", rows=6, cols=96, vectors=23),
    ProductCase(why="K one large block short of 2048", rows=3, cols=1792, vectors=1),
    ProductCase(why="K of many models", rows=6, cols=2048, vectors=2),
    ProductCase(why="K one large block past 2048", rows=5, cols=2304, vectors=8),
    ProductCase(why="a large block past a wave of them", rows=2, cols=8448, vectors=1),
)

MOE_CASES = (
    MoeCase(why="the smallest", experts=1, rows=1, cols=32, tokens=1, top_k=1),
    MoeCase(why="one token of several slots", experts=8, rows=9, cols=160, tokens=1, top_k=4),
    MoeCase(why="more ids than a byte holds", experts=1024, rows=3, cols=64, tokens=6, top_k=5),
    MoeCase(why="K past a wave of tiles", experts=4, rows=17, cols=1120, tokens=3, top_k=2),
    MoeCase(why="a down projection: a row of X a slot", experts=6, rows=10, cols=96, tokens=12, top_k=1),
)
