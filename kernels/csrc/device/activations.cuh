// Quantised activations: how they lie in scratch, and the kernel that makes them.
#pragma once

#include "device/hopper.cuh"
#include "device/platform.cuh"

namespace gguf {

constexpr int kActivationBlock = 32;

// Of one block of 32 activations.
struct alignas(8) ActivationScale {
  float d;       // max|x| / 127, never rounded to half
  int16_t sum;   // of the 32 q; an integer, so that no activation can overflow it
  int16_t high;  // of the last 16 q, for formats with a scale and a minimum every 16 weights
};
static_assert(sizeof(ActivationScale) == 8, "read as one 8-byte load");

// One block in registers.
struct Activations {
  uint32_t q[8];  // 32 signed bytes
  float d;
  int sum;   // of all 32
  int high;  // of the last 16
};

// ActivationScales from one vector to the next: an even number, so that each vector's start at a multiple of 16 bytes.
static __host__ __device__ __forceinline__ int64_t scale_stride(int64_t cols) {
  return (cols / kActivationBlock + 1) / 2 * 2;
}

// Scratch is [vectors][cols] signed bytes, then [vectors][scale_stride(cols)] ActivationScale.
struct ActivationView {
  int8_t* q;
  ActivationScale* scale;
};

static __host__ __device__ __forceinline__ ActivationView activation_view(void* scratch, int64_t vectors,
                                                                          int64_t cols) {
  int8_t* q = static_cast<int8_t*>(scratch);
  return {q, reinterpret_cast<ActivationScale*>(q + vectors * cols)};
}

// An element by an offset of 32 bits, which GPUs add to a scalar base address for free.
template <typename T>
static __device__ __forceinline__ const T& at_offset(const void* base, uint32_t bytes) {
  return *reinterpret_cast<const T*>(static_cast<const char*>(base) + bytes);
}

// q and scale belong to one vector; block counts blocks of 32.
static __device__ __forceinline__ Activations load_activations(const int8_t* q, const ActivationScale* scale,
                                                               uint32_t block) {
  Activations x;
  const uint4 low = at_offset<uint4>(q, block * kActivationBlock);
  const uint4 high = at_offset<uint4>(q, block * kActivationBlock + 16);
  x.q[0] = low.x, x.q[1] = low.y, x.q[2] = low.z, x.q[3] = low.w;
  x.q[4] = high.x, x.q[5] = high.y, x.q[6] = high.z, x.q[7] = high.w;
  const ActivationScale s = at_offset<ActivationScale>(scale, block * static_cast<uint32_t>(sizeof(ActivationScale)));
  x.d = s.d;
  x.sum = s.sum;
  x.high = s.high;
  return x;
}

struct QuantizeArgs {
  const void* x;
  int64_t x_stride;
  ActivationView out;
  int64_t cols;
  int64_t first_vector;
  int64_t first_chunk;
};

constexpr int kQuantizeThreads = 256;  // at most
constexpr int kQuantizePerThread = 4;  // 8 neighbouring lanes share a block of 32

// Quantises N of the 32 elements of a block, all of which 32 / N neighbouring lanes hold; returns the own q and, in the
// last of those lanes, the block's scale. All lanes of the wave take part.
template <int N>
static __device__ __forceinline__ ActivationScale quantize_by_lanes(const float (&x)[N], uint32_t (&packed)[N / 4]) {
  static_assert(N == 4 || N == 16, "8 lanes, or 2");
  uint32_t largest = 0;  // bits of the largest magnitude; infinity is above every number there, and NaN above infinity
#pragma unroll
  for (int i = 0; i < N; ++i) {
    uint32_t bits;
    memcpy(&bits, &x[i], 4);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  uint32_t other = wave_xor<1>(largest);
  largest = other > largest ? other : largest;
  if constexpr (N == 4) {
    other = wave_xor<2>(largest);
    largest = other > largest ? other : largest;
    other = wave_xor<4>(largest);
    largest = other > largest ? other : largest;
  }

  float amax;
  memcpy(&amax, &largest, 4);
  const float d = amax / 127.0f;
  const bool finite = largest < 0x7f800000u;
  int32_t sum = 0;
#pragma unroll
  for (int i = 0; i < N / 4; ++i) packed[i] = 0;
  if (finite && d != 0.0f) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      // With d among the denormals the quotient can pass 127.
      const int q = static_cast<int>(fminf(fmaxf(roundf(x[i] / d), -127.0f), 127.0f));
      sum += q;
      packed[i / 4] |= (static_cast<uint32_t>(q) & 0xffu) << (8 * (i % 4));
    }
  }
  if constexpr (N == 4) {
    sum += static_cast<int32_t>(wave_xor<1>(static_cast<uint32_t>(sum)));
    sum += static_cast<int32_t>(wave_xor<2>(static_cast<uint32_t>(sum)));
  }
  const int32_t half = sum;
  sum += static_cast<int32_t>(wave_xor<N == 4 ? 4 : 1>(static_cast<uint32_t>(sum)));
  return {d, static_cast<int16_t>(sum), static_cast<int16_t>(half)};
}

// Blocks of whole waves. Grid: x over chunks of blockDim.x * kQuantizePerThread columns, y over vectors.
template <typename T>
static __global__ void __launch_bounds__(kQuantizeThreads) quantize_activations(QuantizeArgs args) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t vector = args.first_vector + blockIdx.y;
  const int64_t chunk = args.first_chunk + blockIdx.x;
  const int64_t col = (chunk * blockDim.x + threadIdx.x) * kQuantizePerThread;
  const bool inside = col < args.cols;  // for whole blocks alike, since cols is a multiple of 32

  float x[kQuantizePerThread] = {};
  if (inside) {
    const T* from = static_cast<const T*>(args.x) + vector * args.x_stride + col;
#pragma unroll
    for (int i = 0; i < kQuantizePerThread; ++i) x[i] = Scalar<T>::get(from[i]);
  }
  uint32_t packed[1];
  const ActivationScale scale = quantize_by_lanes(x, packed);
  if (!inside) return;
  *reinterpret_cast<uint32_t*>(args.out.q + vector * args.cols + col) = packed[0];
  if (threadIdx.x % 8 == 7) {
    args.out.scale[vector * scale_stride(args.cols) + col / kActivationBlock] = scale;
  }
}

}  // namespace gguf
