// Blocks to floats, halves or bfloats; any format.
#pragma once

#include "device/platform.cuh"

namespace gguf {

struct DequantizeArgs {
  const uint8_t* weight;
  void* out;
  int64_t first_group;  // groups of 8 elements, from the start of the weights
  int64_t groups_end;
};

constexpr int kDequantizeThreads = 256;
constexpr int kDequantizeGroup = 8;

template <typename T>
struct alignas(16) DequantizedGroup {
  T value[kDequantizeGroup];
};

// One thread a group of 8 adjacent elements; grid x over groups.
template <typename Format, typename T>
static __global__ void __launch_bounds__(kDequantizeThreads) dequantize_blocks(DequantizeArgs args) {
  static_assert(Format::kBlockElements % kDequantizeGroup == 0, "a group lies within a block");
  constexpr uint32_t kGroups = Format::kBlockElements / kDequantizeGroup;
  const int64_t group = args.first_group + static_cast<int64_t>(blockIdx.x) * kDequantizeThreads + threadIdx.x;
  if (group >= args.groups_end) return;
  const uint64_t block = static_cast<uint64_t>(group) / kGroups;
  const int within = static_cast<int>(static_cast<uint64_t>(group) % kGroups);
  float value[kDequantizeGroup];
  Format::dequantize(args.weight + block * Format::kBlockBytes, within, value);
  DequantizedGroup<T> result;
#pragma unroll
  for (int i = 0; i < kDequantizeGroup; ++i) result.value[i] = Scalar<T>::put(value[i]);
  static_cast<DequantizedGroup<T>*>(args.out)[group] = result;
}

}  // namespace gguf
