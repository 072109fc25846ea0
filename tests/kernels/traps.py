"""The known traps of kernels like these: for each the tests that hold it, and a seeded mutant that those tests kill.

A mutant is a textual replacement in kernels/csrc whose old text occurs exactly once; it is the very mistake that the
trap is about. test_traps.py builds each and runs the named tests on it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALL_TRAPS", "ELSEWHERE", "TRAPS", "Trap"]

ALL_TRAPS = range(1, 20)
"""The numbers of the project's list of traps, and 19, a format's bits misread; each is in TRAPS or in ELSEWHERE."""

_MAT_VEC = "device/mat_vec.cuh"
_ROUTED = "device/routed.cuh"
_MAT_MAT = "device/mat_mat.cuh"
_ACTIVATIONS = "device/activations.cuh"
_PLATFORM = "device/platform.cuh"
_OPS = "launch/ops.cu"
_GRID = "launch/grid.cuh"
_FORMAT_OPS = "launch/format_ops.cuh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """One mistake. tests: node ids below tests/kernels, each of which fails with the mutant and passes without.

    formats: those that the tests need beside Q4_0, Q8_0 and that of the file; a mutant is built with no others.
    """

    number: int
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    formats: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.number}-{self.what.replace(' ', '-')}"


TRAPS = (
    Trap(
        number=1,
        what="int64 ids read as int32",
        file=_MAT_VEC,
        old="args.wide_ids ? wide[z] : narrow[z]",
        new="((void)wide, narrow[z])",
        tests=("test_products.py::test_moe_vec", "test_memory.py::test_routed_products_write_every_row"),
    ),
    Trap(
        number=1,
        what="low half of an int64 id",
        file=_MAT_VEC,
        old="args.wide_ids ? wide[z] : narrow[z]",
        new="args.wide_ids ? static_cast<int32_t>(wide[z]) : narrow[z]",
        tests=("test_products.py::test_moe_ids_that_name_no_expert_give_zeros",),
    ),
    Trap(
        number=1,
        what="minus one reads before the weights",
        file=_MAT_VEC,
        old="if (expert < 0 || expert >= args.experts)",
        new="if (expert >= args.experts)",
        tests=("test_products.py::test_moe_ids_that_name_no_expert_give_zeros",),
    ),
    Trap(
        number=1,
        what="ids past the last expert read behind the weights",
        file=_MAT_VEC,
        old="if (expert < 0 || expert >= args.experts)",
        new="if (expert < 0)",
        tests=("test_products.py::test_moe_ids_that_name_no_expert_give_zeros",),
    ),
    Trap(
        number=1,
        what="ids past 255 dropped",
        file=_MAT_VEC,
        old="if (expert < 0 || expert >= args.experts)",
        new="if (expert < 0 || expert > 255 || expert >= args.experts)",
        tests=("test_products.py::test_moe_vec",),
    ),
    Trap(
        number=1,
        what="skipped rows left unwritten",
        file=_MAT_VEC,
        old="    store_rows<kRows>(product.out, product.dtype, z, product.rows, first_row, 0.0f);\n",
        new="",
        tests=("test_memory.py::test_routed_products_write_every_row",),
    ),
    Trap(
        number=3,
        what="expert offset of 32 bits",
        file=_MAT_VEC,
        old="product.weight + expert * args.expert_bytes",
        new="product.weight + static_cast<int32_t>(expert * args.expert_bytes)",
        tests=("test_memory.py::test_experts_past_2_to_the_31_bytes",),
    ),
    Trap(
        number=3,
        what="block offset of 32 bits in dequantise",
        file="device/dequantize.cuh",
        old="args.weight + first * Format::kBlockBytes",
        new="args.weight + static_cast<int32_t>(first * Format::kBlockBytes)",
        tests=("test_memory.py::test_dequantize_past_2_to_the_31_elements",),
    ),
    Trap(
        number=3,
        what="stride of x of 32 bits",
        file=_ACTIVATIONS,
        old="vector * args.x_stride + col",
        new="static_cast<int32_t>(vector * args.x_stride) + col",
        tests=("test_memory.py::test_vectors_more_than_2_to_the_31_elements_apart",),
    ),
    Trap(
        number=4,
        what="vectors past 65535 in one grid",
        file=_GRID,
        old="#define GGUF_MAX_GRID_YZ 65535ll",
        new="#define GGUF_MAX_GRID_YZ 0x7fffffffll",
        tests=("test_products.py::test_many_vectors", "test_products.py::test_many_slots"),
    ),
    Trap(
        number=4,
        what="second launch starts at zero",
        file=_GRID,
        old="launch(Extent{x, y, z}, grid);",
        new="launch(Extent{x, 0, z}, grid);",
        tests=("test_products.py::test_many_vectors", "test_products.py::test_many_slots"),
    ),
    Trap(
        number=4,
        what="slots past the first launch lost",
        file=_FORMAT_OPS,
        old="part.first_slot = origin.z;",
        new="part.first_slot = 0;",
        tests=("test_memory.py::test_launches_split_in_every_direction",),
    ),
    Trap(
        number=4,
        what="launch errors unchecked",
        file=_GRID,
        old="if (status != cudaSuccess) return status;",
        new="(void)status;",
        tests=("test_memory.py::test_a_failed_launch_is_an_error",),
    ),
    Trap(
        number=5,
        what="rest of K dropped",
        file=_MAT_VEC,
        old="if (base + lane < tiles) step(base + lane);",
        new="",
        tests=("test_products.py::test_mul_mat_vec", "test_products.py::test_moe_vec"),
    ),
    Trap(
        number=5,
        what="K read in whole waves",
        file=_MAT_VEC,
        old="if (base + lane < tiles) step(base + lane);",
        new="step(base + lane);",
        tests=("test_memory.py::test_products_stay_inside_exact_buffers",),
    ),
    Trap(
        number=5,
        what="row past the last read",
        file=_MAT_VEC,
        old="row[r - 1] + (r < rows ? row_bytes : 0)",
        new="row[r - 1] + row_bytes",
        tests=("test_memory.py::test_products_stay_inside_exact_buffers",),
    ),
    Trap(
        number=5,
        what="row past the last written",
        file=_MAT_VEC,
        old="static_cast<uint32_t>(count) && own_row < static_cast<uint32_t>(rows)",
        new="static_cast<uint32_t>(count)",
        tests=("test_memory.py::test_products_stay_inside_exact_buffers",),
    ),
    Trap(
        number=5,
        what="block read in whole words past its end",
        file=_PLATFORM,
        old="  memcpy(words, at, 4 * N);\n",
        new="  uint32_t more[N + 1];\n  memcpy(more, at, 4 * N + 4);\n  memcpy(words, more, 4 * N);\n"
        '  asm volatile("" ::"r"(more[N]));\n',
        tests=("test_memory.py::test_products_stay_inside_exact_buffers",),
    ),
    Trap(
        number=6,
        what="rows of x taken as adjacent",
        file=_ACTIVATIONS,
        old="vector * args.x_stride + col",
        new="vector * args.cols + col",
        tests=("test_products.py::test_x_of_any_strides",),
    ),
    Trap(
        number=6,
        what="elements of x taken as adjacent",
        file="binding.cpp",
        old="X.size(1) <= 1 || X.stride(1) == 1 ? X : torch::stable::contiguous(X)",
        new="X",
        tests=("test_products.py::test_x_of_any_strides",),
    ),
    Trap(
        number=6,
        what="ids taken as contiguous",
        file="binding.cpp",
        old="packed(topk_ids);\n  const int64_t col",
        new="topk_ids;\n  const int64_t col",
        tests=("test_products.py::test_moe_ids_may_have_strides",),
    ),
    Trap(
        number=6,
        what="empty batch not foreseen",
        file=_OPS,
        old="  if (p.vectors == 0 || p.rows == 0) return GGUF_OK;\n",
        new="",
        tests=("test_products.py::test_nothing_in_nothing_out",),
    ),
    Trap(
        number=7,
        what="unknown type runs some kernel",
        file=_OPS,
        old="if (format.type == type && has_op(format, op)) return &format;",
        new="if ((format.type == type || type == 5 || type == 9) && has_op(format, op)) return &format;",
        tests=(
            "test_interface.py::test_wrong_input_is_refused_in_words[unknown type]",
            "test_interface.py::test_wrong_input_is_refused_in_words[activation type]",
        ),
    ),
    Trap(
        number=8,
        what="block sum in half precision",
        file="device/weights.cuh",
        old="int total = kOffset * x.sum;",
        new="const float s = __half2float(__float2half_rn(x.d * static_cast<float>(x.sum)));\n"
        "    int total = kOffset * static_cast<int>(s / x.d);",
        tests=("test_products.py::test_large_activations_do_not_overflow_the_block_sum",),
    ),
    Trap(
        number=9,
        what="scale of the first vector for all",
        file=_MAT_VEC,
        old="scale[v - 1] + (v < count ? stride : 0)",
        new="scale[v - 1]",
        tests=("test_products.py::test_scales_a_thousandfold_apart_and_nan_stay_in_their_vector",),
    ),
    Trap(
        number=9,
        what="scale shared by more than a block",
        file=_ACTIVATIONS,
        old="  other = wave_xor<4>(largest);\n",
        new="  other = wave_xor<8>(largest);\n",
        tests=("test_products.py::test_mul_mat_vec",),
    ),
    Trap(
        number=9,
        what="NaN swallowed by the maximum",
        file=_ACTIVATIONS,
        old="    bits &= 0x7fffffffu;\n",
        new="    bits &= 0x7fffffffu;\n    if (bits > 0x7f800000u) bits = 0;\n",
        tests=("test_products.py::test_scales_a_thousandfold_apart_and_nan_stay_in_their_vector",),
    ),
    Trap(
        number=10,
        what="one yes for all formats",
        file=_OPS,
        old="  int code;\n  find_format(op, type, error, &code);\n  return code;\n",
        new="  return GGUF_OK;\n",
        tests=("test_interface.py::test_supports_answers_by_operator_format_and_device",),
    ),
    Trap(
        number=11,
        what="registration deleted",
        file="binding.cpp",
        old='  m.impl("ggml_moe_a8_vec", TORCH_BOX(&ggml_moe_a8_vec));\n',
        new="",
        tests=(
            "test_interface.py::test_every_operator_is_registered[ggml_moe_a8_vec]",
            "test_products.py::test_moe_vec",
        ),
    ),
    Trap(
        number=11,
        what="schema deleted",
        file="binding.cpp",
        old='  m.def("ggml_mul_mat_vec_a8(Tensor W, Tensor X, int type, SymInt row) -> Tensor");\n',
        new="",
        tests=("test_interface.py::test_every_operator_is_registered[ggml_mul_mat_vec_a8]",),
    ),
    Trap(
        number=12,
        what="synchronisation in a launch",
        file=_OPS,
        old="  if (status == cudaSuccess) return GGUF_OK;\n",
        new="  cudaDeviceSynchronize();\n  if (status == cudaSuccess) return GGUF_OK;\n",
        tests=("test_memory.py::test_the_launch_layer_neither_allocates_nor_synchronises",),
    ),
    Trap(
        number=12,
        what="scratch from the runtime",
        file=_OPS,
        old="  MoeVecArgs args{};\n",
        new="  MoeVecArgs args{};\n  void* more = nullptr;\n  cudaMalloc(&more, 1 << 20);\n",
        tests=("test_memory.py::test_the_launch_layer_neither_allocates_nor_synchronises",),
    ),
    Trap(
        number=13,
        what="scratch never freed",
        file="binding.cpp",
        old="  const Tensor scratch = empty(X, {scratch_bytes}, ScalarType::Byte);\n  Params params{};\n",
        new="  const Tensor& scratch = *new Tensor(empty(X, {scratch_bytes}, ScalarType::Byte));\n  Params params{};\n",
        tests=(
            "test_memory.py::test_scratch_is_freed",
            "test_memory.py::test_every_buffer_of_an_operator_comes_from_torch",
        ),
    ),
    Trap(
        number=14,
        what="waves of 64",
        file=_MAT_VEC,
        old="for (; base + kWave <= tiles; base += kWave) step(base + lane);",
        new="for (; base + 64 <= tiles; base += 64) step(base + lane);",
        tests=("test_products.py::test_mul_mat_vec",),
    ),
    Trap(
        number=14,
        what="mask of half a wave's sum",
        file=_PLATFORM,
        old="if constexpr (Mask < kWave) {",
        new="if constexpr (Mask < kWave / 2) {",
        tests=("test_products.py::test_mul_mat_vec", "test_products.py::test_moe_vec"),
    ),
    Trap(
        number=15,
        what="zeros for results",
        file=_MAT_VEC,
        old="lane / kRows * args.rows + own_row, result);",
        new="lane / kRows * args.rows + own_row, 0.0f * result);",
        tests=("test_products.py::test_mul_mat_vec", "test_products.py::test_moe_vec", "test_real_weights.py"),
    ),
    Trap(
        number=15,
        what="d rounded to half",
        file=_ACTIVATIONS,
        old="const float d = amax / 127.0f;",
        new="const float d = __half2float(__float2half_rn(amax / 127.0f));",
        tests=("test_products.py::test_mul_mat_vec",),
    ),
    Trap(
        number=15,
        what="halves rounded to even",
        file=_ACTIVATIONS,
        old="roundf(x[i] / d)",
        new="rintf(x[i] / d)",
        tests=("test_products.py::test_activations_round_halves_away_from_zero",),
    ),
    Trap(
        number=15,
        what="product with a reciprocal for the division",
        file=_ACTIVATIONS,
        old="roundf(x[i] / d)",
        new="roundf(x[i] * (127.0f / amax))",
        tests=("test_products.py::test_quotients_next_to_a_half",),
    ),
    Trap(
        number=16,
        what="down projection reads its token's row",
        file=_MAT_VEC,
        old="product.weight + expert * args.expert_bytes, first_row, token, z, 1);",
        new="product.weight + expert * args.expert_bytes, first_row, z / (args.top_k + 1), z, 1);",
        tests=(
            "test_products.py::test_down_projection_from_the_kernels_own_intermediates",
            "test_products.py::test_moe_vec",
        ),
    ),
    Trap(
        number=18,
        what="device attributes asked for at each call",
        file=_OPS,
        old="  const MatVecArgs args = product_args(product, inside, params->out, activations);\n",
        new="  const MatVecArgs args = product_args(product, inside, params->out, activations);\n"
        "  int count = 0;\n  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);\n",
        tests=("test_memory.py::test_the_launch_layer_neither_allocates_nor_synchronises",),
    ),
    Trap(
        number=19,
        what="sign of the eighth weight taken as stored",
        file="formats/decode.cuh",
        old="static_cast<uint32_t>(__popc(signs)) << 3",
        new="0u",
        tests=("test_products.py::test_dequantize_is_exactly_the_gguf_packages",),
        formats=("IQ2_XXS",),
    ),
    Trap(
        number=19,
        what="high bits of a scale from its neighbour",
        file="formats/q3_k.cu",
        old="(high >> (2 * tile.quarter) & 0x03030303u)",
        new="(high >> (2 * (tile.quarter / 2)) & 0x03030303u)",
        tests=("test_products.py::test_dequantize_is_exactly_the_gguf_packages", "test_products.py::test_mul_mat_vec"),
    ),
    Trap(
        number=19,
        what="high bits of a weight from its neighbour",
        file="formats/q6_k.cu",
        old=">> (2 * part);",
        new=">> part;",
        tests=("test_products.py::test_dequantize_is_exactly_the_gguf_packages", "test_products.py::test_mul_mat_vec"),
    ),
    Trap(
        number=19,
        what="minimum of the wrong sixteen",
        file="device/weights.cuh",
        old="w.minimum[0] * static_cast<float>(low) + w.minimum[1] * static_cast<float>(x.high)",
        new="w.minimum[1] * static_cast<float>(low) + w.minimum[0] * static_cast<float>(x.high)",
        tests=("test_products.py::test_mul_mat_vec",),
        formats=("Q2_K",),
    ),
    Trap(
        number=19,
        what="E8M0 of 0 as zero",
        file="formats/mxfp4.cu",
        old="((tile.e + 1) & 0xffu) < 2",
        new="tile.e == 255",
        tests=("test_products.py::test_dequantize_every_scale_of_8_bits",),
    ),
    Trap(
        number=19,
        what="E8M0 of 255 as a number",
        file="formats/mxfp4.cu",
        old="((tile.e + 1) & 0xffu) < 2",
        new="tile.e == 0",
        tests=("test_products.py::test_dequantize_every_scale_of_8_bits",),
    ),
    Trap(
        number=19,
        what="UE4M3 of 0x7f as a number",
        file="formats/nvfp4.cu",
        old=" & ~(special - (special >> 7))",
        new="",
        tests=("test_products.py::test_dequantize_every_scale_of_8_bits",),
    ),
    Trap(
        number=1,
        what="int64 ids sorted as int32",
        file="device/align.cuh",
        old="args.wide_ids ? static_cast<const int64_t*>(args.ids)[slot] : ",
        new="",
        tests=("test_align.py::test_slots_are_sorted_as_a_loop_in_python_does",),
    ),
    Trap(
        number=1,
        what="rows of skipped blocks left unwritten",
        file="launch/mat_mat.cu",
        old="cudaMemsetAsync(params->out, 0, static_cast<size_t>(out_bytes), stream)",
        new="cudaMemsetAsync(params->out, 0, static_cast<size_t>(out_bytes - out_bytes), stream)",
        tests=(
            "test_mat_mat.py::test_grouped_products",
            "test_mat_mat.py::test_what_lies_past_num_tokens_post_padded_is_not_read",
        ),
    ),
    Trap(
        number=2,
        what="one entry past num_tokens_post_padded",
        file=_MAT_MAT,
        old="bool same = entry < padded;",
        new="bool same = entry <= padded;",
        tests=("test_mat_mat.py::test_what_lies_past_num_tokens_post_padded_is_not_read[large]",),
    ),
    Trap(
        number=2,
        what="stale blocks multiplied",
        file=_MAT_MAT,
        old="const int64_t padded = *args.padded < args.sorted_count ? *args.padded : args.sorted_count;",
        new="const int64_t padded = args.sorted_count;",
        tests=("test_mat_mat.py::test_what_lies_past_num_tokens_post_padded_is_not_read",),
    ),
    Trap(
        number=3,
        what="expert offset of 32 bits in grouped products",
        file=_MAT_MAT,
        old="args.weight + expert * args.expert_bytes + first_row",
        new="args.weight + static_cast<int32_t>(expert * args.expert_bytes) + first_row",
        tests=("test_mat_mat.py::test_experts_past_2_to_the_31_bytes",),
    ),
    Trap(
        number=5,
        what="row past the last read by matrix cores",
        file=_MAT_MAT,
        old="(row < rows ? row : rows - 1) * args.row_bytes;",
        new="row * args.row_bytes;",
        tests=("test_mat_mat.py::test_products_stay_inside_exact_buffers",),
    ),
    Trap(
        number=11,
        what="registration of the grouped product deleted",
        file="binding.cpp",
        old='  m.impl("ggml_moe_a8", TORCH_BOX(&ggml_moe_a8));\n',
        new="",
        tests=("test_mat_mat.py::test_every_operator_is_registered[ggml_moe_a8]",),
    ),
    Trap(
        number=17,
        what="rest of K dropped by matrix cores",
        file=_MAT_MAT,
        old="const int steps = (parts + kStepParts - 1) / kStepParts;",
        new="const int steps = parts / kStepParts;",
        tests=("test_mat_mat.py::test_a_shape_that_matrix_cores_got_wrong_elsewhere[Q8_0]",),
    ),
    Trap(
        number=17,
        what="half of k multiplied with the other half",
        file="device/tile_mma.cuh",
        old="multiply_half(tokens.word + 2, rows.word + 2, sums[kHalves - 1]);",
        new="multiply_half(tokens.word, rows.word + 2, sums[kHalves - 1]);",
        tests=("test_mat_mat.py::test_products",),
    ),
    Trap(
        number=1,
        what="routed experts take int64 ids as int32",
        file=_ROUTED,
        old="wide_ids ? static_cast<const int64_t*>(ids)[z] : static_cast<const int32_t*>(ids)[z]",
        new="static_cast<const int32_t*>(ids)[z]",
        tests=("test_routed.py::test_ids_at_the_edges_of_bytes",),
        formats=("MXFP4",),
    ),
    Trap(
        number=9,
        what="a clamp that turns NaN into its limit",
        file=_ROUTED,
        old="gate = gate > limit ? limit : gate;\n    up = up > limit ? limit : up;",
        new="gate = fminf(gate, limit);\n    up = fminf(up, limit);",
        tests=("test_routed.py::test_what_is_not_finite_stays_with_its_token",),
        formats=("MXFP4",),
    ),
)

ELSEWHERE: dict[int, str] = {}
