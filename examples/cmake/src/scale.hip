#include <hip/hip_runtime.h>

__global__ void scale(float* y, float a) { y[threadIdx.x] *= a; }

extern "C" void launch_scale(float* y) { scale<<<1, 32>>>(y, 2.0f); }
