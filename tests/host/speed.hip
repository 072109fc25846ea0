// How long a lane takes, by processor time: printed in nanoseconds, judged outside.
#include <hip/hip_runtime.h>

#include <time.h>

#include "check.h"

__global__ void one_store(int* cells) { cells[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
__global__ void many_sums(float* out, int rounds) {
    float v = float(threadIdx.x);
    for (int i = 0; i < rounds; ++i)
        for (int m = 16; m > 0; m >>= 1) v = v * 0.5f + __shfl_xor_sync(0xffffffffu, v, m);
    out[threadIdx.x] = v;
}
__global__ void many_barriers(int rounds) {
    for (int i = 0; i < rounds; ++i) __syncthreads();
}

static double seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

TEST(print_speed) {
    Buffer<int> cells(1 << 16);
    Buffer<float> out(32);
    double start = seconds();
    for (int i = 0; i < 100; ++i) hipLaunchKernelGGL(one_store, dim3(256), dim3(256), 0, 0, cells.data);
    const double lane = (seconds() - start) / 100 / 65536;
    start = seconds();
    hipLaunchKernelGGL(many_sums, dim3(1), dim3(32), 0, 0, out.data, 20000);
    const double shuffle = (seconds() - start) / 100000 / 32;
    start = seconds();
    hipLaunchKernelGGL(many_barriers, dim3(1), dim3(256), 0, 0, 10000);
    const double barrier = (seconds() - start) / 10000 / 256;
    start = seconds();
    for (int i = 0; i < 1000; ++i) hipLaunchKernelGGL(one_store, dim3(1), dim3(32), 0, 0, cells.data);
    const double launch = (seconds() - start) / 1000;
    printf("%.2f %.2f %.2f %.0f\n", lane * 1e9, shuffle * 1e9, barrier * 1e9, launch * 1e9);
    return 0;
}
