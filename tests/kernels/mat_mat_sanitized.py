"""Products with many vectors through the C functions, on buffers of exact size, results poisoned."""

from __future__ import annotations

import numpy as np
import oracle
from cases import NMSE_F32, fit
from native import TYPES, NativeLibrary, Place, read
from native_mat_mat import KERNELS, AlignParams, MoeParams, MulMatParams, align

__all__ = ["run_mat_mat"]


def run_mat_mat(library: NativeLibrary, place: Place, type_name: str) -> None:
    """A plain product and a routed one, of each kernel: rows, vectors and K one past what a rectangle has."""
    rng = np.random.default_rng(len(type_name))
    rows, cols, experts, tokens, top_k = 65, fit(type_name, 160), 3, 17, 2
    weight = oracle.random_blocks(rng, type_name, experts, rows, cols)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    ids = rng.integers(-1, experts + 1, size=(tokens, top_k))
    routing = align(ids, experts)
    size = library.activation_bytes(tokens, cols)
    shape = {"x_stride": cols, "rows": rows, "cols": cols, "type": TYPES[type_name], "dtype": 0, "scratch_bytes": size}
    lists = [place(np.full(count, 9, np.int32)) for count in (routing.sorted_ids.size, routing.expert_ids.size, 1)]
    aligning = AlignParams(
        ids=place(ids),
        sorted_ids=lists[0],
        expert_ids=lists[1],
        padded=lists[2],
        slots=ids.size,
        sorted_count=routing.sorted_ids.size,
        expert_count=routing.expert_ids.size,
        experts=experts,
        block=16,
        ids_bits=64,
    )
    library.call("gguf_moe_align", aligning)
    assert np.array_equal(read(lists[0], routing.sorted_ids.shape, np.int32), routing.sorted_ids)
    assert read(lists[2], (1,), np.int32)[0] == routing.padded
    for kernel in ("dot", "small", "medium", "large"):
        out = place(np.full((tokens, rows), np.nan, np.float32))
        plain = MulMatParams(
            weight=place(weight[0]),
            x=place(x),
            out=out,
            scratch=place(np.full(-(-size // 16) * 16, 0xFF, np.uint8)),
            vectors=tokens,
            kernel=KERNELS[kernel],
            **shape,
        )
        library.call("gguf_mul_mat_a8", plain)
        assert oracle.nmse(read(out, (tokens, rows)), oracle.mat_vec(weight[0], type_name, x)) <= NMSE_F32, kernel
        out = place(np.full((ids.size, rows), np.nan, np.float32))
        routed = MoeParams(
            weight=place(weight),
            x=place(x),
            sorted_ids=lists[0],
            expert_ids=lists[1],
            padded=lists[2],
            out=out,
            scratch=place(np.full(-(-size // 16) * 16, 0xFF, np.uint8)),
            sorted_count=routing.sorted_ids.size,
            expert_count=routing.expert_ids.size,
            experts=experts,
            tokens=tokens,
            top_k=top_k,
            kernel=KERNELS[kernel],
            **shape,
        )
        library.call("gguf_moe_a8", routed)
        wanted = oracle.moe_vec(x, weight, ids, top_k, type_name)
        assert oracle.nmse(read(out, (ids.size, rows)), wanted) <= NMSE_F32, (kernel, "routed")
