#include <cuda_runtime.h>
#include "scale.cuh"

__global__ void sum_kernel(int n, const float* x, float* out) {
    float total = 0;
    for (int i = threadIdx.x; i < n; i += 32) total += x[i];
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffffffffffull, total, step);
    if (threadIdx.x == 0) *out = scaled(total);
}

extern "C" __attribute__((visibility("default"))) int sum(int n, const float* x, float* out) {
    sum_kernel<<<1, 32>>>(n, x, out);
    return cudaGetLastError();
}
