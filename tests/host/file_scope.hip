// Dynamic shared memory named at file scope, as some sources do.
#include <hip/hip_runtime.h>

#include "check.h"

HIP_DYNAMIC_SHARED(float, file_scope_tile)

__global__ void reversed(float* out, const float* in, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) file_scope_tile[i] = in[blockIdx.x * n + i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = file_scope_tile[n - 1 - i];
}

TEST(shared_memory_at_file_scope) {
    int failures = 0;
    const int blocks = 40, n = 100;
    Buffer<float> in(blocks * n), out(blocks * n);
    for (int i = 0; i < in.size; ++i) in[i] = float(i);
    for (int round = 0; round < 3; ++round) {
        hipLaunchKernelGGL(reversed, dim3(blocks), dim3(64), n * sizeof(float), 0, out, in, n);
        for (int i = 0; i < in.size; ++i) CHECK_AT(i, out[i], in[i / n * n + n - 1 - i % n]);
    }
    return failures;
}
