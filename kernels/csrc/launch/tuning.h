// The choices that depend on the GPU, all of them, and how they are found: once a device, kept for good.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include <algorithm>

namespace gguf {

// Of the direct kernel (device/mat_vec.cuh): AMD's GPUs, the CPU executor, NVIDIA GPUs before Hopper.
// Rows a wave computes: as many as the registers for 16 waves a SIMD allow.
template <typename Format>
constexpr int mat_vec_rows(int vectors) {
  const bool small = Format::kTileElements == 32;
  const bool large = sizeof(typename Format::Tile) > 96;
  return vectors <= (small ? 4 : large ? 1 : 2) ? 2 : 1;
}

// The same of routed products. On an H200 formats with small tiles gain by four, which share their activations.
template <typename Format>
constexpr int moe_vec_rows() {
#if defined(ROCMBUILD_PLATFORM_CUDA)
  if (Format::kTileElements == 32) return 4;
#endif
  return mat_vec_rows<Format>(1);
}

// Of the staged kernel (device/mat_vec_staged.cuh).
constexpr uint32_t kStageBytes = 56 << 10;       // a stage holds whole rows up to here, else a part of each
constexpr uint32_t kSmallStageBytes = 21 << 10;  // the same where activations leave no room for such stages
constexpr uint32_t kMinStages = 3;               // fewer leave memory idle: then the activations come with each stage

// Activations up to which each block of the staged kernel quantises all of them for itself, while its first weights are
// on their way: that saves a launch.
constexpr int64_t kQuantizeInside = 8192;

// Of routed experts (device/routed.cuh). Rows a wave computes of each projection: more share their activations, which
// NVIDIA's GPUs want in the down projection; on AMD's they would cost waves. From kRoutedTileTokens tokens and
// kRoutedTileSlots slots an expert on, slots are sorted by expert; measured on an H200, where below that each slot by
// itself is faster.
#if defined(ROCMBUILD_PLATFORM_CUDA)
constexpr int kGateUpRows = 1;
constexpr int kDownRows = 2;
constexpr int64_t kRoutedTileSlots = 3;
constexpr bool kInterleavedMxfp4 = true;  // the direct kernels of MXFP4 take interleaved activations
#else
constexpr int kGateUpRows = 1;
constexpr int kDownRows = 1;
constexpr int64_t kRoutedTileSlots = 0;
constexpr bool kInterleavedMxfp4 = false;
#endif
constexpr int64_t kRoutedTileTokens = 5;

struct DeviceTraits {
  int multiprocessors;
  int shared_bytes;  // that a block may have
  bool hopper;       // has the staged kernel's instructions
};

}  // namespace gguf
