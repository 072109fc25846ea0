// The ceiling of prefill: mma.sync on int8 with nothing to load or store, bare and with a scale every 32 values.
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kThreads = 256;
constexpr int kTiles = 8;  // of 16 x 8 results, which a warp works on in turn

// d = a times b plus c.
__device__ __forceinline__ void multiply(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                         const int (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// Scaled: whole numbers of 32 values become float, and are added times the scales of their row and their column, in two
// instructions each: sums start at the bits of 1.5 * 2^23, so that they are floats already, from which one fused product
// takes that off and multiplies with the row's scale.
template <bool kScaled>
__global__ void __launch_bounds__(kThreads) loop(int count, uint32_t seed, float scale, float* sink) {
  const uint32_t a[4] = {seed + threadIdx.x, seed * 3, seed * 5 + threadIdx.x, seed * 7};
  int whole[kTiles][4] = {};
  float sums[kTiles][4] = {};
  float rows[2] = {scale, scale * 2};
  float columns[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    columns[tile][0] = scale * (2 * tile + 3);
    columns[tile][1] = scale * (2 * tile + 4);
  }
  for (int i = 0; i < count; ++i) {
    // Of every 32 values other scales, so that their product is no constant.
    rows[0] = __uint_as_float(__float_as_uint(rows[0]) ^ seed);
    rows[1] = __uint_as_float(__float_as_uint(rows[1]) ^ seed);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if constexpr (kScaled) {
        const int magic[4] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
        int c[4];
        multiply(c, a, seed + tile, seed ^ tile, magic);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float row = rows[j / 2];
          sums[tile][j] = fmaf(fmaf(__int_as_float(c[j]), row, -12582912.0f * row), columns[tile][j % 2], sums[tile][j]);
        }
      } else {
        multiply(whole[tile], a, seed + tile, seed ^ tile, whole[tile]);
      }
    }
  }
  float all = 0;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 4; ++j) all += sums[tile][j] + static_cast<float>(whole[tile][j]);
  }
  if (all == 0.12345f) *sink = all;  // which the compiler must take for possible
}

}  // namespace

// Operations (a product and a sum are two) of a launch with that count.
extern "C" int64_t bench_mma_operations(int count) {
  int device = 0;
  int processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  return int64_t{2} * 16 * 8 * 32 * kTiles * count * (kThreads / 32) * processors * 4;
}

// Four blocks for each multiprocessor. Returns a cudaError_t.
extern "C" int bench_mma(int scaled, int count, void* sink, void* stream) {
  int device = 0;
  int processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const auto kernel = scaled ? loop<true> : loop<false>;
  kernel<<<4 * processors, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(count, 0x00020304u, 0.5f,
                                                                              static_cast<float*>(sink));
  return static_cast<int>(cudaGetLastError());
}
