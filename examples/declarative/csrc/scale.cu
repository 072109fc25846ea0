#include "scale.h"

#include <cuda_runtime.h>

__global__ void scale_kernel(float* y, const float* x, float a, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}

int launch_scale(float* y, const float* x, float a, int64_t n, void* stream) {
  if (n == 0) return 0;
  scale_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(y, x, a, n);
  return static_cast<int>(cudaGetLastError());
}
