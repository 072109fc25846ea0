// Kernels that are wrong in ways that would hang or be undefined on a card: each must end in a message.
#include <hip/hip_runtime.h>

#include "check.h"

__global__ void some_have_ended(int n) {
    if (int(threadIdx.x) >= n) return;
    __syncthreads();
}
__global__ void one_branch_waits(int n) {
    if (int(threadIdx.x) < n) __syncthreads();
    __syncthreads_count(1);
}
__global__ void two_places(int n) {
    if (int(threadIdx.x) < n) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}
__global__ void shuffle_in_a_branch(float* out) {
    float v = 1;
    if (threadIdx.x < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);
    out[threadIdx.x] = v;
    __syncthreads();
}
__global__ void two_shuffles(float* out) {
    float v = 1;
    if (threadIdx.x < 16)
        v = __shfl_xor_sync(0xffffffffu, v, 1);
    else
        v = __shfl_xor_sync(0xffffffffu, v, 1);
    out[threadIdx.x] = v;
}
__global__ void outside_its_mask(float* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0); }
__global__ void vote_at_a_barrier(int* out) {
    if (threadIdx.x == 3)
        __syncthreads();
    else
        out[0] = __any_sync(0xffffffffu, 1);
}
template <class T>
__global__ void launches_itself(T* out) {
    hipLaunchKernelGGL(outside_its_mask, dim3(1), dim3(1), 0, 0, out);
}
__global__ void asserts(int n) { assert(int(threadIdx.x) != n); }
__global__ void traps() { __trap(); }

static float out[64];
TEST(fault_some_have_ended) {
    hipLaunchKernelGGL(some_have_ended, dim3(2, 3), dim3(64), 0, 0, 40);
    return 0;
}
TEST(fault_one_branch_waits) {
    hipLaunchKernelGGL(one_branch_waits, dim3(1), dim3(64), 0, 0, 40);
    return 0;
}
TEST(fault_two_places) {
    hipLaunchKernelGGL(two_places, dim3(1), dim3(64), 0, 0, 40);
    return 0;
}
TEST(fault_shuffle_in_a_branch) {
    hipLaunchKernelGGL(shuffle_in_a_branch, dim3(1), dim3(32), 0, 0, out);
    return 0;
}
TEST(fault_two_shuffles) {
    hipLaunchKernelGGL(two_shuffles, dim3(1), dim3(32), 0, 0, out);
    return 0;
}
TEST(fault_outside_its_mask) {
    hipLaunchKernelGGL(outside_its_mask, dim3(1), dim3(32), 0, 0, out);
    return 0;
}
TEST(fault_vote_at_a_barrier) {
    static int cell;
    hipLaunchKernelGGL(vote_at_a_barrier, dim3(1), dim3(32), 0, 0, &cell);
    return 0;
}
TEST(fault_launches_itself) {
    hipLaunchKernelGGL((launches_itself<float>), dim3(1), dim3(1), 0, 0, out);
    return 0;
}
TEST(fault_asserts) {
    hipLaunchKernelGGL(asserts, dim3(1), dim3(32), 0, 0, 7);
    return 0;
}
TEST(fault_traps) {
    hipLaunchKernelGGL(traps, dim3(1), dim3(32), 0, 0);
    return 0;
}

/// Waves may wait at different places of one kind: the hardware counts waves.
__global__ void waves_apart(int* result) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    if (threadIdx.x == 0) *result = 1;
}
TEST(waves_may_wait_apart) {
    static int result;
    hipLaunchKernelGGL(waves_apart, dim3(1), dim3(64), 0, 0, &result);
    return result == 1 ? 0 : 1;
}

// ---- memory errors: a sanitizer, or a page that is not there, must see them ----

__device__ static int deep(int n) {
    volatile char room[4096];
    room[0] = char(n);
    room[4095] = char(n);
    return n <= 0 ? room[0] : deep(n - 1) + room[4095];
}
__global__ void too_deep(int* result) { *result = deep(1000); }
__global__ void past_dynamic(int n) {
    HIP_DYNAMIC_SHARED(int, tile)
    tile[n + int(threadIdx.x)] = 1;
}
__global__ void past_a_buffer(int* data, int n) { data[n + int(threadIdx.x)] = 1; }
__global__ void past_a_local(int n) {
    int local[8] = {};
    volatile int* p = local;
    for (int i = 0; i <= n; ++i) p[i] = i;
    __syncthreads();
}
__global__ void misaligned(const unsigned char* bytes, int* result) {
    *result = reinterpret_cast<const int4*>(bytes + 4)->x;
}
TEST(fault_too_deep) {
    static int result;
    hipLaunchKernelGGL(too_deep, dim3(1), dim3(32), 0, 0, &result);
    return 0;
}
TEST(fault_past_dynamic) {
    hipLaunchKernelGGL(past_dynamic, dim3(1), dim3(1), 64, 0, 16);
    return 0;
}
TEST(fault_far_past_dynamic) {
    hipLaunchKernelGGL(past_dynamic, dim3(1), dim3(1), 64, 0, 48);
    return 0;
}
TEST(fault_past_a_buffer) {
    Buffer<int> data(32);
    hipLaunchKernelGGL(past_a_buffer, dim3(1), dim3(32), 0, 0, data.data, 1);
    return 0;
}
TEST(fault_past_a_local) {
    hipLaunchKernelGGL(past_a_local, dim3(1), dim3(32), 0, 0, 8);
    return 0;
}
TEST(fault_misaligned) {
    static int result;
    Buffer<unsigned char> bytes(64);
    hipLaunchKernelGGL(misaligned, dim3(1), dim3(1), 0, 0, bytes.data, &result);
    return 0;
}
