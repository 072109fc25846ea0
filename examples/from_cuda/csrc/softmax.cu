#include <cmath>

#include "reduce.cuh"

__global__ void softmax_kernel(float* out, const float* in, int cols) {
  __shared__ float scratch[256];
  const float* row = in + static_cast<long>(blockIdx.x) * cols;
  float most = -INFINITY;
  for (int i = threadIdx.x; i < cols; i += 256) most = fmaxf(most, row[i]);
  most = block_reduce<true>(most, scratch);
  float total = 0.0f;
  for (int i = threadIdx.x; i < cols; i += 256) total += __expf(row[i] - most);
  total = block_reduce<false>(total, scratch);
  for (int i = threadIdx.x; i < cols; i += 256) {
    out[static_cast<long>(blockIdx.x) * cols + i] = __expf(row[i] - most) / total;
  }
}

void softmax(float* out, const float* in, int rows, int cols, cudaStream_t stream) {
  softmax_kernel<<<rows, 256, 0, stream>>>(out, in, cols);
}
