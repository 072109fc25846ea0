// Barriers, static and dynamic shared memory, and what poison and the order of lanes bring to light.
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hip/hip_bf16.h>

#include "check.h"

// ---- shared memory of templates, of several types, in device functions ----

template <class T, int N>
static __device__ T* tile_of() {
    static __shared__ T tile[N];
    return tile;
}

template <class T, int N>
__global__ void __launch_bounds__(N) reversed(T* out, const T* in) {
    __shared__ T local[N];
    T* tile = tile_of<T, N>();
    const int i = threadIdx.x;
    local[i] = in[blockIdx.x * N + i];
    tile[i] = in[blockIdx.x * N + i];
    __syncthreads();
    out[blockIdx.x * N + i] = T(float(local[N - 1 - i]) + float(tile[N - 1 - i]));
}

template <class T, int N>
static int reverse_of() {
    int failures = 0;
    const int blocks = 9;
    Buffer<T> in(blocks * N), out(blocks * N);
    for (int i = 0; i < in.size; ++i) in[i] = T(float(i % 61));
    hipLaunchKernelGGL(HIP_KERNEL_NAME(reversed<T, N>), dim3(blocks), dim3(N), 0, 0, out, in);
    for (int i = 0; i < in.size; ++i) CHECK_AT(i, float(out[i]), 2 * float(in[i / N * N + N - 1 - i % N]));
    return failures;
}

TEST(static_shared_memory) {
    return reverse_of<float, 32>() + reverse_of<float, 256>() + reverse_of<__half, 64>() + reverse_of<__half, 96>() +
           reverse_of<__hip_bfloat16, 128>() + reverse_of<double, 1024>() + reverse_of<int, 1>();
}

/// Aligned, two-dimensional, of a vector type; and a name that another kernel uses for another type.
__global__ void transposed(float* out, const float* in) {
    __shared__ __align__(16) float tile[32][33];
    __shared__ int4 four[2];
    tile[threadIdx.y][threadIdx.x] = in[threadIdx.y * 32 + threadIdx.x];
    if (threadIdx.x == 0 && threadIdx.y < 2) four[threadIdx.y] = make_int4(threadIdx.y, 1, 2, 3);
    __syncthreads();
    out[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y] + float(four[1].x + four[0].w);
}

TEST(two_dimensional_shared_memory) {
    int failures = 0;
    Buffer<float> in(1024), out(1024);
    for (int i = 0; i < 1024; ++i) in[i] = float(i);
    hipLaunchKernelGGL(transposed, dim3(1), dim3(32, 32), 0, 0, out, in);
    for (int i = 0; i < 1024; ++i) CHECK_AT(i, out[i], float(i % 32 * 32 + i / 32 + 4));
    return failures;
}

template <class T>
__global__ void dynamic_reversed(T* out, const T* in, int n) {
    HIP_DYNAMIC_SHARED(alignas(16) unsigned char, raw)
    T* tile = reinterpret_cast<T*>(raw);
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = in[blockIdx.x * n + i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = tile[n - 1 - i];
}

__global__ void dynamic_typed(float* out, int n) {
    HIP_DYNAMIC_SHARED(float, tile);
    tile[threadIdx.x] = float(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = tile[(threadIdx.x + 1) % n] + float(reinterpret_cast<uintptr_t>(tile) % 16);
}

template <class T>
static int dynamic_of(int n) {
    int failures = 0;
    const int blocks = 7;
    Buffer<T> in(blocks * n), out(blocks * n);
    for (int i = 0; i < in.size; ++i) in[i] = T(float(i % 97));
    hipLaunchKernelGGL(dynamic_reversed<T>, dim3(blocks), dim3(64), n * sizeof(T), 0, out, in, n);
    CHECK(hipGetLastError() == hipSuccess);
    for (int i = 0; i < in.size; ++i) CHECK_AT(i, float(out[i]), float(in[i / n * n + n - 1 - i % n]));
    return failures;
}

TEST(dynamic_shared_memory) {
    int failures = dynamic_of<float>(1) + dynamic_of<float>(100) + dynamic_of<double>(8192) + dynamic_of<__half>(777) +
                   dynamic_of<unsigned char>(65536);
    Buffer<float> out(48);
    hipLaunchKernelGGL(dynamic_typed, dim3(1), dim3(48), 48 * sizeof(float), 0, out, 48);
    for (int i = 0; i < 48; ++i) CHECK_AT(i, out[i], float((i + 1) % 48));
    return failures;
}

// ---- barriers ----

__global__ void counting(int* out) {
    const int t = threadIdx.x + threadIdx.y * blockDim.x;
    out[t * 6] = __syncthreads_count(t % 3 == 0);
    out[t * 6 + 1] = __syncthreads_and(t >= 0);
    out[t * 6 + 2] = __syncthreads_and(t != 7);
    out[t * 6 + 3] = __syncthreads_or(t == 7);
    out[t * 6 + 4] = __syncthreads_or(t < 0);
    __syncthreads();
    out[t * 6 + 5] = __syncthreads_count(1);
}

TEST(barriers_with_predicates) {
    int failures = 0;
    for (int threads : {32, 8, 33, 200, 1024}) {
        Buffer<int> out(threads * 6);
        hipLaunchKernelGGL(counting, dim3(1), threads == 200 ? dim3(20, 10) : dim3(threads), 0, 0, out);
        for (int t = 0; t < threads; ++t) {
            const int want[] = {(threads + 2) / 3, 1, 0, 1, 0, threads};
            for (int k = 0; k < 6; ++k) CHECK_AT(t * 6 + k, out[t * 6 + k], want[k]);
        }
    }
    return failures;
}

/// A tree in shared memory and in the waves, many times over: every barrier is needed.
__global__ void tree(float* out, const float* in, int rounds) {
    __shared__ float part[32];
    const int t = threadIdx.x, wave = t / 32, lane = t % 32;
    float v = in[blockIdx.x * blockDim.x + t];
    for (int r = 0; r < rounds; ++r) {
        float s = v;
        for (int m = 16; m > 0; m >>= 1) s += __shfl_xor_sync(0xffffffffu, s, m);
        if (lane == 0) part[wave] = s;
        __syncthreads();
        if (wave == 0) {
            s = lane < int(blockDim.x / 32) ? part[lane] : 0.0f;
            for (int m = 16; m > 0; m >>= 1) s += __shfl_xor_sync(0xffffffffu, s, m);
            if (lane == 0) part[0] = s;
        }
        __syncthreads();
        v = v + part[0] / 1024.0f;
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + t] = v;
}

TEST(block_sum_many_times) {
    int failures = 0;
    const int blocks = 6, threads = 256, rounds = 10;
    Buffer<float> in(blocks * threads), out(blocks * threads);
    for (int i = 0; i < in.size; ++i) in[i] = float(i % 8);
    hipLaunchKernelGGL(tree, dim3(blocks), dim3(threads), 0, 0, out, in, rounds);
    for (int b = 0; b < blocks; ++b) {
        double v[256];
        for (int i = 0; i < threads; ++i) v[i] = in[b * threads + i];
        for (int r = 0; r < rounds; ++r) {
            double s = 0;
            for (int i = 0; i < threads; ++i) s += v[i];
            for (int i = 0; i < threads; ++i) v[i] += s / 1024;
        }
        for (int i = 0; i < threads; ++i) CHECK(fabs(out[b * threads + i] - v[i]) < 1e-4 * v[i] + 1e-6);
    }
    return failures;
}

// ---- what is wrong must show: these functions print what a faulty kernel made ----

__global__ void no_barrier(float* out) {
    __shared__ float tile[64];
    tile[threadIdx.x] = float(threadIdx.x);
    out[threadIdx.x] = tile[63 - threadIdx.x];
}

__global__ void no_barrier_after(float* out) {
    __shared__ float tile[64];
    float v = 0;
    for (int round = 0; round < 3; ++round) {
        tile[threadIdx.x] = float(threadIdx.x + 100 * round);
        __syncthreads();
        v += tile[63 - threadIdx.x];  // the next round's store may come before another lane's load
    }
    out[threadIdx.x] = v;
}

__global__ void uninitialised(float* out) {
    __shared__ float used[32];
    HIP_DYNAMIC_SHARED(float, dynamic)
    if (threadIdx.x < 16) used[threadIdx.x] = dynamic[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = used[threadIdx.x];
    out[32 + threadIdx.x] = dynamic[threadIdx.x];
}

template <class Launch>
static int print_result(int n, Launch launch) {
    Buffer<float> out(n);
    launch(out);
    for (int i = 0; i < n; ++i) printf("%g ", out[i]);
    printf("\n");
    return 0;
}
TEST(print_no_barrier) {
    return print_result(64, [](float* out) { hipLaunchKernelGGL(no_barrier, dim3(1), dim3(64), 0, 0, out); });
}
TEST(print_no_barrier_after) {
    return print_result(64, [](float* out) { hipLaunchKernelGGL(no_barrier_after, dim3(1), dim3(64), 0, 0, out); });
}
TEST(print_uninitialised) {
    return print_result(64, [](float* out) { hipLaunchKernelGGL(uninitialised, dim3(1), dim3(32), 128, 0, out); });
}

/// Each block must find poison, never what the block before it has left.
__global__ void leaves_traces(int* stale) {
    __shared__ int tile[32];
    HIP_DYNAMIC_SHARED(int, dynamic)
    if (tile[threadIdx.x] != -1 || dynamic[threadIdx.x] != -1) atomicAdd(stale, 1);
    __syncthreads();
    tile[threadIdx.x] = 5;
    dynamic[threadIdx.x] = 6;
}

TEST(every_block_finds_poison) {
    int failures = 0;
    Buffer<int> stale(1);
    for (int round = 0; round < 3; ++round) hipLaunchKernelGGL(leaves_traces, dim3(50), dim3(32), 128, 0, stale);
    CHECK_AT(0, stale[0], 0);
    return failures;
}

static thread_local int own_of_the_program = 1234;

/// The program's own thread-local variables live in the block that is poisoned; a launch gives them back.
TEST(thread_locals_survive_a_launch) {
    int failures = 0;
    own_of_the_program = 4321;
    Buffer<int> stale(1);
    hipLaunchKernelGGL(leaves_traces, dim3(50), dim3(32), 128, 0, stale);
    CHECK_AT(0, own_of_the_program, 4321);
    return failures;
}
