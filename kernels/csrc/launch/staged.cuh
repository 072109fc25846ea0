// Launches of the staged kernel, on the CUDA platform alone.
#pragma once

#include "launch/format_ops.h"
#include "launch/tuning.h"

#if defined(ROCMBUILD_PLATFORM_CUDA)
#include <atomic>

#include "device/mat_vec_staged.cuh"

namespace gguf {

constexpr int kMaxDevices = 64;
constexpr int kBehindRing = 1024;  // bytes behind the last stage that lanes without a tile may read

// Of the current device. Asked for once a device: properties are slow to get.
inline cudaError_t device_traits(int* device, DeviceTraits* traits) {
  static std::atomic<int> known[kMaxDevices][3];
  cudaError_t status = cudaGetDevice(device);
  if (status != cudaSuccess) return status;
  if (*device >= kMaxDevices) return cudaErrorInvalidDevice;
  std::atomic<int>* own = known[*device];
  if (own[2].load(std::memory_order_acquire) == 0) {
    int value = 0;
    const auto ask = [&](cudaDeviceAttr what) {
      if (status == cudaSuccess) status = cudaDeviceGetAttribute(&value, what, *device);
      return value;
    };
    own[0] = ask(cudaDevAttrMultiProcessorCount);
    own[1] = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const int major = ask(cudaDevAttrComputeCapabilityMajor);
    if (status != cudaSuccess) return status;
    own[2].store(major, std::memory_order_release);
  }
  *traits = {own[0], own[1], own[2] >= 9};
  return cudaSuccess;
}

// Launches a kernel that may start before those ahead of it in the stream are complete: it waits for them itself.
template <typename... Args>
cudaError_t launch_early(void (*kernel)(Args...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                         const Args&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// Whether the staged kernel quantises the activations itself.
inline bool staged_quantizes(int64_t vectors, int64_t rows, int64_t cols) {
  int device;
  DeviceTraits traits;
  return vectors <= kQuantizedVectors && vectors * cols <= kQuantizeInside && rows <= INT32_MAX / 2 &&
         device_traits(&device, &traits) == cudaSuccess && traits.hopper;
}

// How the shared memory of a block is laid out; false where it cannot be.
template <typename Format, int kVectors>
bool plan_staged(const DeviceTraits& device, bool one_group, StagedArgs* args) {
  using S = Staged<Format, kVectors>;
  const auto round_up = [](int64_t value, int64_t to) { return (value + to - 1) / to * to; };
  // A multiple of 128 bytes and 16 more: eight rows, or vectors, at the same place lie in different banks.
  const auto slot = [&](int64_t bytes) { return round_up(bytes, 128) + 16; };
  const int64_t budget = device.shared_bytes - static_cast<int64_t>(sizeof(typename S::Shared)) - 1024 - kBehindRing;
  const uint32_t round = kStepTiles * kStagedWarps;  // tiles of a row that all warps take at once
  args->tiles = static_cast<uint32_t>(args->cols / Format::kTileElements);
  for (const int choice : {0, 1, 2}) {
    const bool resident = choice < 2;
    const int64_t most = choice == 1 ? kSmallStageBytes : kStageBytes;
    if (resident && !one_group) continue;
    // Of a chunk of `tiles` tiles.
    const auto activations = [&](int64_t tiles) {
      const int64_t scale_bytes = round_up(tiles * S::kTileBlocks * sizeof(ActivationScale), 16);
      args->q_slot = static_cast<uint32_t>(slot(tiles * Format::kTileElements));
      args->scale_slot = static_cast<uint32_t>(scale_bytes);
      return round_up(kVectors * (args->q_slot + scale_bytes), 128);
    };
    const auto rows = [&](int64_t tiles) {
      args->row_slot = static_cast<uint32_t>(slot(S::bytes_of(static_cast<uint32_t>(tiles)) + 32));
      return round_up(kStagedRows * int64_t{args->row_slot}, 128);
    };
    const int64_t fixed = resident ? activations(args->tiles) : 0;
    // As much of a row as a stage takes, in whole rounds where it is not all.
    int64_t tiles = args->tiles;
    const auto stage = [&] { return rows(tiles) + (resident ? 0 : activations(tiles)); };
    while (tiles > round && stage() > most) tiles = round_up((tiles + 1) / 2, round);
    const int64_t stages = (budget - fixed) / stage();
    if (stages < (resident ? kMinStages : 2)) continue;
    args->resident = resident;
    args->chunk_tiles = static_cast<uint32_t>(tiles);
    args->chunks = static_cast<uint32_t>((args->tiles + tiles - 1) / tiles);
    args->stages = static_cast<uint32_t>(std::min<int64_t>(stages, kMaxStages));
    args->ring_at = static_cast<uint32_t>(fixed);
    args->stage_bytes = static_cast<uint32_t>(stage());
    args->activations_at = resident ? 0 : static_cast<uint32_t>(rows(tiles));
    return true;
  }
  return false;
}

// cudaErrorNotSupported, and nothing launched, where another kernel has to do it.
template <typename Format, int kVectors>
cudaError_t launch_staged(StagedArgs args, int64_t groups, cudaStream_t stream) {
  int device;
  DeviceTraits traits;
  cudaError_t status = device_traits(&device, &traits);
  if (status != cudaSuccess) return status;
  if (args.cols == 0) return cudaErrorNotSupported;
  if (groups * (args.rows / kStagedRows + 1) > INT32_MAX / 16) return cudaErrorNotSupported;
  const bool one_group = args.ids == nullptr ? groups == 1 : args.vectors == 1;
  if (!traits.hopper || !plan_staged<Format, kVectors>(traits, one_group, &args)) return cudaErrorNotSupported;
  const auto kernel = mat_vec_staged<Format, kVectors>;
  static std::atomic<bool> prepared[kMaxDevices];
  if (!prepared[device].load(std::memory_order_acquire)) {
    status = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
        traits.shared_bytes - static_cast<int>(sizeof(typename Staged<Format, kVectors>::Shared)) - 1024);
    if (status != cudaSuccess) return status;
    prepared[device].store(true, std::memory_order_release);
  }
  args.row_units = (args.rows + kStagedRows - 1) / kStagedRows;
  args.units = static_cast<uint32_t>(groups * args.row_units);
  args.aligned = reinterpret_cast<uintptr_t>(args.weight) % 16 == 0;
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(args.units, traits.multiprocessors));
  return launch_early(kernel, dim3(blocks), kStagedThreads,
                      args.ring_at + size_t{args.stages} * args.stage_bytes + kBehindRing, stream, args);
}

inline StagedArgs staged_args(const MatVecArgs& product, int64_t experts) {
  StagedArgs args{};
  args.weight = product.weight;
  args.weight_bytes = experts * product.rows * product.row_bytes;
  args.x = product.x;
  args.raw = product.raw;
  args.raw_stride = product.raw_stride;
  args.out = product.out;
  args.dtype = product.dtype;
  args.row_bytes = product.row_bytes;
  args.rows = static_cast<uint32_t>(product.rows);
  args.cols = product.cols;
  args.vectors = product.vectors;
  args.top_k = 1;
  return args;
}

template <typename Format>
cudaError_t launch_mul_mat_vec_staged(const MatVecArgs& product, int64_t vectors, cudaStream_t stream) {
  if (product.rows > INT32_MAX / 2) return cudaErrorNotSupported;
  const StagedArgs args = staged_args(product, 1);
  if (vectors == 1) return launch_staged<Format, 1>(args, 1, stream);
  if (vectors == 2) return launch_staged<Format, 2>(args, 1, stream);
  if (vectors <= 4) return launch_staged<Format, 4>(args, 1, stream);
  return launch_staged<Format, 8>(args, (vectors + 7) / 8, stream);
}

template <typename Format>
cudaError_t launch_moe_vec_staged(const MoeVecArgs& routed, int64_t tokens, cudaStream_t stream) {
  if (routed.product.rows > INT32_MAX / 2) return cudaErrorNotSupported;
  StagedArgs args = staged_args(routed.product, routed.experts);
  args.ids = routed.ids;
  args.wide_ids = routed.wide_ids;
  args.experts = routed.experts;
  args.expert_bytes = routed.expert_bytes;
  args.top_k = static_cast<uint32_t>(routed.top_k);
  return launch_staged<Format, 1>(args, tokens * routed.top_k, stream);
}

}  // namespace gguf
#endif
