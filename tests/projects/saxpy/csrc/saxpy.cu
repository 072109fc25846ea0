#include <cuda_runtime.h>
#include "scale.cuh"

__global__ void saxpy_kernel(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += scaled(a) * x[i];
}

extern "C" __attribute__((visibility("default"))) int saxpy(int n, float a, const float* x, float* y) {
    saxpy_kernel<<<(n + 63) / 64, 64>>>(n, a, x, y);
    return cudaGetLastError();
}
