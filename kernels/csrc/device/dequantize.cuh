// Blocks to floats, halves or bfloats; any format, by the decoder that products use.
#pragma once

#include <type_traits>

#include "device/platform.cuh"
#include "device/weights.cuh"

namespace gguf {

struct DequantizeArgs {
  const uint8_t* weight;
  void* out;
  int64_t first_block;  // from the start of the weights
  int64_t blocks_end;
};

constexpr int kDequantizeThreads = 256;

template <typename T>
struct alignas(16) DequantizedGroup {
  T value[8];
};

// Exact values of decoded weights, in the order of float operations that the gguf package has: scales and minima are
// products of few bits and so exact, a weight is rounded when it is multiplied and again when its minimum is taken off.
template <int kOffset, int Scales, int Minima>
static __device__ __forceinline__ float value_of(const Weights<Scales, Minima>& w, int i) {
  const int byte = static_cast<int8_t>(w.q[i / 4] >> (8 * (i % 4)) & 0xffu);
  float value = mul_rounded(w.scale[i * Scales / kPartElements], static_cast<float>(byte + kOffset));
  if constexpr (Minima > 0) value = sub_rounded(value, w.minimum[i * Minima / kPartElements]);
  return value;
}

// One thread a tile; grid x over groups of kDequantizeThreads tiles, which are whole blocks.
template <typename Format, typename T>
static __global__ void __launch_bounds__(kDequantizeThreads) dequantize_tiles(DequantizeArgs args) {
  constexpr uint32_t kTiles = Format::kBlockElements / Format::kTileElements;
  constexpr uint32_t kBlocks = kDequantizeThreads / kTiles;
  static_assert(kDequantizeThreads % kTiles == 0, "whole blocks");
  const int64_t first = args.first_block + static_cast<int64_t>(blockIdx.x) * kBlocks;
  const uint8_t* weight = args.weight + first * Format::kBlockBytes;
  const int64_t left = args.blocks_end - first;
  const uint32_t blocks = left < kBlocks ? static_cast<uint32_t>(left) : kBlocks;
#if !defined(GGUF_AMD_DEVICE)
  // NVIDIA's loads are aligned, and a format's may count on rows that start at a multiple of 16.
  __shared__ uint4 staged[(kBlocks * Format::kBlockBytes + 15) / 16 + 1];  // loads may go past the last byte
  using Unit = std::conditional_t<Format::kBlockBytes % 2 == 0, uint16_t, uint8_t>;
  copy_bytes<Unit>(weight, reinterpret_cast<uint8_t*>(staged), blocks * Format::kBlockBytes, threadIdx.x,
                   kDequantizeThreads);
  __syncthreads();
  weight = reinterpret_cast<const uint8_t*>(staged);
#endif
  const uint32_t block = threadIdx.x / kTiles;
  if (block >= blocks) return;

  const uint32_t* table = table_of<Format>();
  const typename Format::Tile tile = Format::load(weight, threadIdx.x);
  DequantizedGroup<T>* out = static_cast<DequantizedGroup<T>*>(args.out) +
                             (first * kTiles + threadIdx.x) * (Format::kTileElements / 8);
#pragma unroll
  for (int part = 0; part < Format::kTileElements / kPartElements; ++part) {
    const typename Format::Decoded w = Format::decode(tile, part, table);
#pragma unroll
    for (int group = 0; group < kPartElements / 8; ++group) {
      DequantizedGroup<T> result;
#pragma unroll
      for (int i = 0; i < 8; ++i) result.value[i] = Scalar<T>::put(value_of<Format::kOffset>(w, 8 * group + i));
      out[part * (kPartElements / 8) + group] = result;
      keep_order();  // as many registers as 16 waves a SIMD allow
    }
  }
}

}  // namespace gguf
