"""Writes csrc/formats/iq_grids.h: the grids of the IQ formats, from the tables of the `gguf` package.

    python kernels/tools/iq_grids.py           write the header
    python kernels/tools/iq_grids.py --check   compare it with what would be written: exit 1 where they differ

A grid maps an index to 8 (IQ3: 4) weights without their signs. It is stored as the kernels want it in registers:
IQ2 and IQ3 as bytes, two words (IQ3: one) an entry, so that a lookup gives operands of the integer dot product; IQ1,
whose grid is eight times as long and has but three values, as codes 0, 1, 2 for -1, 0, 1, four bits each, so that it is
8 KB and not 16: elements 0 to 3 in the low halves of the bytes, 4 to 7 in the high ones. They are constants in global
memory and not in constant memory, which serves one address a cycle, where every lane looks up another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

HEADER = Path(__file__).resolve().parent.parent / "csrc" / "formats" / "iq_grids.h"

_BYTES = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
_LINE = 120


def grid_of(type_name: str) -> np.ndarray:
    """int8 [entries, weights of an entry], as the `gguf` package decodes its own table."""
    traits = gguf.quants._type_traits[gguf.GGMLQuantizationType[type_name]]
    traits.init_grid()
    values = np.asarray(traits.grid).reshape(traits.grid_shape)
    grid = values.astype(np.int8)
    assert (grid == values).all(), f"{type_name}: a value that is no signed byte"
    return grid


def byte_words(grid: np.ndarray) -> np.ndarray:
    """Four elements a word, the first in the lowest byte; the words of an entry are adjacent."""
    assert grid.min() > 0, "signs are put on without a carry only where no weight is 0"
    return np.ascontiguousarray(grid).view("<u4").reshape(-1)


def code_words(grid: np.ndarray) -> np.ndarray:
    """Values -1, 0, 1 as codes 0, 1, 2: element i in bits 8 * (i % 4) + 4 * (i / 4) and the next of 32."""
    assert grid.shape[1] == 8 and set(np.unique(grid).tolist()) <= {-1, 0, 1}
    index = np.arange(8)
    return ((grid + 1).astype(np.uint32) << (8 * (index % 4) + 4 * (index // 4)).astype(np.uint32)).sum(
        axis=1, dtype=np.uint32
    )


def array(name: str, words: np.ndarray) -> list[str]:
    """The lines of one C++ array."""
    texts = [f"0x{word:08x}," for word in words.tolist()]
    a_line = (_LINE - 4 + 1) // (len(texts[0]) + 1)
    lines = [f"alignas(16) static __device__ const uint32_t {name}[{len(texts)}] = {{"]
    lines += ["    " + " ".join(texts[i : i + a_line]) for i in range(0, len(texts), a_line)]
    return [*lines, "};"]


def header() -> str:
    """The whole text of the header."""
    lines = [
        "// The grids of the IQ formats, generated from the tables of the gguf package: edit nothing here, run",
        "// tools/iq_grids.py again, which also says how an entry lies in its word.",
        "#pragma once",
        "",
        '#include "device/platform.cuh"',
        "",
        "namespace gguf {",
        "",
    ]
    for type_name in _BYTES:
        lines += [*array(f"k{type_name}_grid", byte_words(grid_of(type_name))), ""]
    lines += [*array("kIQ1_grid", code_words(grid_of("IQ1_S"))), "", "}  // namespace gguf", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare the header; the exit status."""
    parser = argparse.ArgumentParser(description="Generate csrc/formats/iq_grids.h from the gguf package's tables.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the header is not up to date")
    check = parser.parse_args(arguments).check
    wanted = header()
    if check:
        found = HEADER.read_text(encoding="ascii") if HEADER.exists() else ""
        if found != wanted:
            sys.stderr.write(f"{HEADER} is not what {Path(__file__).name} writes: run it without --check\n")
            return 1
        return 0
    work = HEADER.with_suffix(".tmp")
    work.write_text(wanted, encoding="ascii")
    work.replace(HEADER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
