"""The matrix cores' layouts, gfx11's and gfx12's, on the CPU executor.

The executor has the instruction as AMD's documents describe it: registers in, registers out, whoever filled them. The
kernels' own index functions fill and read those registers, so an index that is wrong for a document is a wrong product.
The executor is built with gfx12's layout; here also with gfx11's. Both have to give the bits that dot products give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import oracle
import pytest
from native import NativeLibrary
from native_mat_mat import align, call_moe, call_mul_mat
from packages import csrc_folder, trimmed_copy

FORMATS = {"Q4_0", "Q8_0", "Q2_K"}
"""One scale every 32 weights, and one every 16: whole products and half ones."""


def results(library: NativeLibrary) -> Mapping[str, np.ndarray]:
    """Products of fixed inputs by each kernel: {"Q8_0 small": [vectors, rows], ...}."""
    found = {}
    for type_name in sorted(FORMATS):
        rng = np.random.default_rng(11)
        weight = oracle.random_blocks(rng, type_name, 3, 80, 512)
        x = rng.standard_normal((70, 512)).astype(np.float32)
        routing = align(rng.integers(-1, 3, size=(70, 2)), 3)
        for kernel in ("dot", "small", "medium", "large"):
            found[f"{type_name} {kernel}"] = call_mul_mat(library, weight[0], type_name, x, kernel)
            found[f"{type_name} {kernel} routed"] = call_moe(library, weight, type_name, x, routing, 2, kernel)
    return found


def built(build: Callable[..., Path], folder: Path, layout: int, changes: Mapping[str, str] = {}) -> NativeLibrary:
    """A host library with the matrix cores of gfx11 or gfx12, and with text of tile_mma.cuh replaced."""
    csrc = folder / "csrc"
    trimmed_copy(csrc_folder(), csrc, FORMATS)
    path = csrc / "device" / "tile_mma.cuh"
    text = path.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new, 1)  # the first, which is gfx11's
    path.write_text(text)
    package = build(csrc, defines=(f"GGUF_HOST_WMMA={layout}",), binding=False)
    return NativeLibrary(package / "gguf_kernels" / "lib" / "gguf_host.so")


def check(found: Mapping[str, np.ndarray]) -> None:
    for name, value in found.items():
        type_name, _, *rest = name.split()
        assert np.array_equal(value, found[" ".join([type_name, "dot", *rest])]), name


@pytest.mark.slow
@pytest.mark.parametrize("layout", [11, 12])
def test_each_layout_gives_the_bits_of_dot_products(build: Callable[..., Path], tmp_path: Path, layout: int) -> None:
    check(results(built(build, tmp_path, layout)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "old", "new"),
    [
        (11, "{ return 2 * number + lane / 16; }", "{ return lane / 16 * 8 + number; }"),
        (
            11,
            "int token_place(int lane, int stride) { return lane % 16 * stride; }",
            "int token_place(int, int) { return 0; }",
        ),
        (12, "{ return lane % 16 * stride + lane / 16 * 8; }", "{ return lane % 16 * stride; }"),
    ],
    ids=["results of gfx12 on gfx11", "one row for all of gfx11", "one half of k of gfx12"],
)
def test_a_wrong_layout_is_seen(build: Callable[..., Path], tmp_path: Path, layout: int, old: str, new: str) -> None:
    library = built(build, tmp_path, layout, {old: new})
    with pytest.raises(AssertionError):
        check(results(library))


def test_a_wave_has_256_results_once_each() -> None:
    """Every layout, from its index functions as the source has them: no result is lost, none is held twice."""
    text = (csrc_folder() / "device" / "tile_mma.cuh").read_text()
    names = re.findall(r"^struct (\w+Tile) \{", text, re.MULTILINE)
    assert names == ["Gfx11Tile", "Gfx12Tile", "NvidiaTile", "DotTile"]
    for name in names:
        body = text.split(f"struct {name} {{")[1].split("\n};")[0]
        functions = {
            match[1]: (match[2], match[3].replace("/", "//"))
            for match in re.finditer(
                r"int (token_of_lane|row_of_lane|token_of_result|row_of_result)\(([^)]*)\)\s*\{\s*return ([^;]+);", body
            )
        }
        assert len(functions) == 4, name

        def call(function: str, *values: int, functions: Mapping[str, tuple[str, str]] = functions) -> int:
            parameters, expression = functions[function]
            names = [each.split()[-1] for each in parameters.split(",")]
            return int(eval(expression, {}, dict(zip(names, values, strict=True))))

        seen = {
            (
                call("token_of_lane", lane, call("token_of_result", i)),
                call("row_of_lane", lane, call("row_of_result", i)),
            )
            for lane in range(32)
            for i in range(8)
        }
        assert seen == {(token, row) for token in range(16) for row in range(16)}, name
