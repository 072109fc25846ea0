// Instantiates all kernels of one format from its traits: GGUF_DEFINE_FORMAT, used once in each file of formats/.
//
// A traits struct has
//   kType, kBlockElements, kBlockBytes   as the format's table says
//   kTileElements   weights that a lane loads at once: 32, or a multiple that divides the block
//   kOffset         what the products add to each q (-8 where a code of 0 to 15 means -8 to 7), or 0
//   kTableWords     words of the format's lookup table, or 0. With a table: const uint32_t* table(), where it lies in
//                   device memory; kernels may hand a copy of it in shared memory to decode
//   Tile            the tile's bytes in registers, as loaded
//   Decoded         Weights<scales, minima>: 1 or 2 scales per 32 weights, and 0, 1 or 2 minima
//   Tile load(row, tile)   reads tile number `tile` of a row with the widest loads the layout allows, by load_words and
//                   load_u16, and nothing outside the tile's block. Offsets within a row are 32-bit. On NVIDIA `row` is in
//                   shared memory, and a multiple of whatever divides both 16 and kBlockBytes
//   Decoded decode(const Tile&, int part, const uint32_t* table)   elements 32 * part .. 32 * part + 31 of the tile;
//                   `part` is a constant once loops are unrolled. Products and ggml_dequantize both use it, so a scale
//                   must be exact, which products of a half and a few bits are in any order
#pragma once

#include "launch/format_ops.h"
#include "launch/grid.cuh"
#include "launch/mat_mat.cuh"
#include "launch/routed.cuh"
#include "launch/staged.cuh"
#include "launch/tuning.h"

namespace gguf {

template <typename Format, typename T>
cudaError_t launch_dequantize_as(const GgufDequantizeParams& params) {
  constexpr int64_t kBlocks = kDequantizeThreads / (Format::kBlockElements / Format::kTileElements);
  const Extent blocks{ceil_div(params.block_end - params.block_begin, kBlocks)};
  return for_each_grid(blocks, kDequantizeThreads, [&](Extent origin, dim3 grid) {
    const DequantizeArgs args{static_cast<const uint8_t*>(params.weight), params.out,
                              params.block_begin + origin.x * kBlocks, params.block_end};
    dequantize_tiles<Format, T><<<grid, kDequantizeThreads, 0, static_cast<cudaStream_t>(params.stream)>>>(args);
  });
}

template <typename Format>
cudaError_t launch_dequantize(const GgufDequantizeParams& params) {
  switch (params.out_dtype) {
    case GGUF_F16: return launch_dequantize_as<Format, __half>(params);
    case GGUF_BF16: return launch_dequantize_as<Format, __nv_bfloat16>(params);
    default: return launch_dequantize_as<Format, float>(params);
  }
}

// `groups` groups of kVectors vectors, from the first on; one where kVectors is less than kMaxVectors.
template <typename Format, int kVectors>
cudaError_t launch_mul_mat_vec_groups(const MatVecArgs& args, int64_t groups, cudaStream_t stream) {
  constexpr int kRows = mat_vec_rows<Format>(kVectors);
  const Extent blocks{ceil_div(args.rows, kMatVecWaves * kRows), groups};
  return for_each_grid(blocks, kMatVecThreads, [&](Extent origin, dim3 grid) {
    MatVecArgs part = args;
    part.first_group = origin.x;
    part.first_vector = origin.y * kVectors;
    mul_mat_vec<Format, kVectors, kRows><<<grid, kMatVecThreads, 0, stream>>>(part);
  });
}

template <typename Format>
cudaError_t launch_mul_mat_vec(const MatVecArgs& args, int64_t vectors, cudaStream_t stream) {
#if defined(ROCMBUILD_PLATFORM_CUDA)
  const cudaError_t staged = launch_mul_mat_vec_staged<Format>(args, vectors, stream);
  if (staged != cudaErrorNotSupported) return staged;
  if (reinterpret_cast<uintptr_t>(args.weight) % 16 != 0) return cudaErrorMisalignedAddress;  // as loads there want it
#endif
  const cudaError_t status = launch_mul_mat_vec_groups<Format, kMaxVectors>(args, vectors / kMaxVectors, stream);
  if (status != cudaSuccess) return status;
  MatVecArgs rest = args;
  const int64_t done = vectors / kMaxVectors * kMaxVectors;
  rest.x.q += done * args.cols;
  rest.x.scale += done * scale_stride(args.cols);
  rest.out = static_cast<char*>(args.out) + done * args.rows * (args.dtype == Dtype::f32 ? 4 : 2);
  rest.vectors = vectors - done;
  switch (vectors % kMaxVectors) {
    case 0: return cudaSuccess;
    case 1: return launch_mul_mat_vec_groups<Format, 1>(rest, 1, stream);
    case 2: return launch_mul_mat_vec_groups<Format, 2>(rest, 1, stream);
    case 3:
    case 4: return launch_mul_mat_vec_groups<Format, 4>(rest, 1, stream);
    default: return launch_mul_mat_vec_groups<Format, kMaxVectors>(rest, 1, stream);
  }
}

template <typename Format>
cudaError_t launch_moe_vec(const MoeVecArgs& args, int64_t tokens, cudaStream_t stream) {
#if defined(ROCMBUILD_PLATFORM_CUDA)
  // Experts that few vectors go to are little work each, which the many waves of the direct kernel share better; but it
  // takes no weights off their alignment.
  if (reinterpret_cast<uintptr_t>(args.product.weight) % kRowAlignment<Format> != 0) {
    const cudaError_t staged = launch_moe_vec_staged<Format>(args, tokens, stream);
    return staged == cudaErrorNotSupported ? cudaErrorMisalignedAddress : staged;
  }
#endif
  constexpr int kRows = moe_vec_rows<Format>();
  const Extent blocks{ceil_div(args.product.rows, kMatVecWaves * kRows), tokens, args.top_k};
  return for_each_grid(blocks, kMatVecThreads, [&](Extent origin, dim3 grid) {
    MoeVecArgs part = args;
    part.product.first_group = origin.x;
    part.product.first_vector = origin.y;
    part.first_slot = origin.z;
    launch_routed(moe_vec<Format, kRows>, grid, stream, part);
  });
}

// A function and not an object: clang emits constant objects for the device too, where launchers do not exist.
#define GGUF_DEFINE_FORMAT(name, Format) \
  const FormatOps& name##_ops() {        \
    static const FormatOps ops = {       \
        #name,                           \
        Format::kType,                   \
        Format::kBlockElements,          \
        Format::kBlockBytes,             \
        launch_dequantize<Format>,       \
        launch_mul_mat_vec<Format>,      \
        launch_moe_vec<Format>,          \
        launch_moe_gate_up<Format>,      \
        moe_down_of<Format>(),           \
        mat_mat_of<Format>(),            \
    };                                   \
    return ops;                          \
  }

}  // namespace gguf
