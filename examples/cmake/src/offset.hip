#include <hip/hip_runtime.h>

__global__ void offset(float* y, float a) { y[threadIdx.x] += __shfl_xor(a, 1); }

extern "C" void launch_offset(float* y) { offset<<<1, 32>>>(y, 1.0f); }
