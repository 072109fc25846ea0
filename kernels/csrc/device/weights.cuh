// 32 decoded weights in registers, the same for every format, and their product with 32 activations.
#pragma once

#include "device/activations.cuh"
#include "device/platform.cuh"

namespace gguf {

constexpr int kPartElements = kActivationBlock;

// Weight i is scale[i / (32 / Scales)] * (q[i] + Format::kOffset) - minimum[i / (32 / Minima)], in the order of elements.
template <int Scales, int Minima>
struct Weights {
  static_assert((Scales == 1 || Scales == 2) && (Minima == 0 || Minima == 1 || Minima == 2), "of 32, or of 16 each");
  static constexpr int kScales = Scales;
  static constexpr int kMinima = Minima;
  uint32_t q[8];                              // 32 signed bytes
  float scale[Scales];                        // everything that multiplies, so that products need no more
  float minimum[Minima == 0 ? 1 : Minima];    // everything that is subtracted; unused where there is none
};

// In this order no partial product leaves the range of float where the result does not: whole numbers, times the
// weights' scale, and the activations' scale, which alone can be as large as a float, last.
template <int kOffset, int Scales, int Minima>
static __device__ __forceinline__ float dot(const Weights<Scales, Minima>& w, const Activations& x) {
  const int low = x.sum - x.high;
  float value;
  if constexpr (Scales == 1) {
    int total = kOffset * x.sum;
#pragma unroll
    for (int i = 0; i < 8; ++i) total = dot4(w.q[i], x.q[i], total);
    value = static_cast<float>(total) * w.scale[0];
  } else {
    int first = kOffset * low;
    int second = kOffset * x.high;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      first = dot4(w.q[i], x.q[i], first);
      second = dot4(w.q[i + 4], x.q[i + 4], second);
    }
    value = static_cast<float>(first) * w.scale[0] + static_cast<float>(second) * w.scale[1];
  }
  if constexpr (Minima == 1) value -= w.minimum[0] * static_cast<float>(x.sum);
  if constexpr (Minima == 2) {
    value -= w.minimum[0] * static_cast<float>(low) + w.minimum[1] * static_cast<float>(x.high);
  }
  return value * x.d;
}

// What the addresses of rows are multiples of where the weights begin at such a multiple, 16 at most: blocks of 2^n bytes
// times an odd number begin at multiples of 2^n.
constexpr int row_alignment(int block_bytes) {
  const int own = block_bytes & -block_bytes;
  return own < 16 ? own : 16;
}
template <typename Format>
constexpr int kRowAlignment = row_alignment(Format::kBlockBytes);

// A format's lookup table in device memory, or null.
template <typename Format>
static __device__ __forceinline__ const uint32_t* table_of() {
  if constexpr (Format::kTableWords > 0) {
    return Format::table();
  } else {
    return nullptr;
  }
}

}  // namespace gguf
