#include <cuda_runtime.h>

__global__ void scale_kernel(float* values, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= a;
}

void scale(float* values, float a, int n, cudaStream_t stream) {
  scale_kernel<<<(n + 255) / 256, 256, 0, stream>>>(values, a, n);
}
