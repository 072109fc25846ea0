#pragma once
#include <cuda_runtime.h>

// The sum, or with Max the maximum, of one value a thread over a block of 256; scratch holds 256 floats.
template <bool Max>
__device__ float block_reduce(float value, float* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const float other = scratch[threadIdx.x + step];
      scratch[threadIdx.x] = Max ? fmaxf(scratch[threadIdx.x], other) : scratch[threadIdx.x] + other;
    }
    __syncthreads();
  }
  const float result = scratch[0];
  __syncthreads();
  return result;
}
