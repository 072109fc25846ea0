// Launches of the products with many vectors, for the formats that have them.
#pragma once

#include "device/mat_mat.cuh"
#include "launch/grid.cuh"
#include "launch/mat_mat.h"

namespace gguf {

constexpr bool has_mat_mat(int type) {
  switch (type) {
    case Q4_0:
    case Q4_1:
    case Q5_0:
    case Q5_1:
    case Q8_0:
    case Q2_K:
    case Q3_K:
    case Q4_K:
    case Q5_K:
    case Q6_K:
    case IQ4_NL:
    case IQ4_XS:
    case MXFP4: return true;
    default: return false;
  }
}

template <typename Format, typename Shape, bool kMatrixCores>
cudaError_t launch_mat_mat_as(const MatMatArgs& args, cudaStream_t stream) {
  constexpr int kBytes = MatMatMemory<Format, Shape>::kBytes;
  const auto kernel = mat_mat<Format, Shape, kMatrixCores>;
#if defined(ROCMBUILD_PLATFORM_CUDA)
  // More than 48 KB has to be asked for, on each device; asking costs less than finding out whether it was done.
  const cudaError_t status = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
#else
  static_assert(kBytes + 64 <= 64 * 1024, "what a workgroup of AMD's GPUs may have");
#endif
  const int64_t groups = args.sorted_ids != nullptr ? args.blocks : ceil_div(args.slots, Shape::kTokens);
  const Extent blocks{ceil_div(args.rows, Shape::kRows), groups};
  return for_each_grid(blocks, Shape::kThreads, [&](Extent origin, dim3 grid) {
    MatMatArgs part = args;
    part.first_row_group = origin.x;
    part.first_token_group = origin.y;
    kernel<<<grid, Shape::kThreads, kBytes, stream>>>(part);
  });
}

template <typename Format>
cudaError_t launch_mat_mat(const MatMatArgs& args, MatMatKernel which, cudaStream_t stream) {
  switch (which) {
    case MatMatKernel::dot: return launch_mat_mat_as<Format, SmallShape, false>(args, stream);
    case MatMatKernel::small: return launch_mat_mat_as<Format, SmallShape, true>(args, stream);
    case MatMatKernel::medium: return launch_mat_mat_as<Format, MediumShape, true>(args, stream);
    default: return launch_mat_mat_as<Format, LargeShape, true>(args, stream);
  }
}

template <typename Format>
constexpr MatMatLaunch* mat_mat_of() {
  if constexpr (has_mat_mat(Format::kType)) {
    return launch_mat_mat<Format>;
  } else {
    return nullptr;
  }
}

}  // namespace gguf
