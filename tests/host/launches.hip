// Launch forms, indices, configuration errors, the runtime calls.
#include <hip/hip_runtime.h>

#include <pthread.h>

#include "check.h"

__global__ void indices(unsigned* out) {
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    unsigned* o = out + (block * threads + thread) * 8;
    const uint3 where = threadIdx;
    const dim3 size = blockDim;
    o[0] = where.x, o[1] = where.y, o[2] = where.z;
    o[3] = blockIdx.x, o[4] = blockIdx.y, o[5] = blockIdx.z;
    o[6] = size.x * 10000 + size.y * 100 + size.z;
    o[7] = warpSize + hipThreadIdx_x - threadIdx.x;
}

TEST(indices_in_three_dimensions) {
    int failures = 0;
    for (dim3 grid : {dim3(1), dim3(3, 2, 4), dim3(17)})
        for (dim3 block : {dim3(1), dim3(5, 3, 2), dim3(32, 2), dim3(100), dim3(8, 8, 16), dim3(1024)}) {
            const unsigned threads = block.x * block.y * block.z, blocks = grid.x * grid.y * grid.z;
            Buffer<unsigned> out(int(threads * blocks * 8));
            hipLaunchKernelGGL(indices, grid, block, 0, 0, out);
            for (unsigned i = 0; i < threads * blocks; ++i) {
                const unsigned t = i % threads, b = i / threads;
                const unsigned want[] = {t % block.x,
                                         t / block.x % block.y,
                                         t / block.x / block.y,
                                         b % grid.x,
                                         b / grid.x % grid.y,
                                         b / grid.x / grid.y,
                                         block.x * 10000 + block.y * 100 + block.z,
                                         32};
                for (unsigned k = 0; k < 8; ++k) CHECK_AT(i * 8 + k, out[int(i * 8 + k)], want[k]);
            }
        }
    return failures;
}

// ---- forms ----

static int counter;
__global__ void nothing() { atomicAdd(&counter, 1); }
template <class T>
__global__ void deduced(T* out, T value) {
    out[threadIdx.x] = value;
}
template <class T, int N, bool Twice>
__global__ void parameters(T* out, const T* __restrict__ in) {
    out[threadIdx.x] = in[threadIdx.x] * T(Twice ? 2 * N : N);
}
struct Arguments {
    int* out;
    int values[100];
};
__global__ void by_value(Arguments a) {
    a.values[threadIdx.x] += 1;  // a lane's own copy
    a.out[threadIdx.x] = a.values[threadIdx.x] + a.values[(threadIdx.x + 1) % 32];
}
static __device__ int doubled(int x) { return 2 * x; }
__global__ void through_pointer(int* out, int (*function)(int)) { out[threadIdx.x] = function(threadIdx.x); }
namespace inner {
__global__ void qualified(int* out) { out[0] = 9; }
}  // namespace inner

TEST(launch_forms) {
    int failures = 0;
    counter = 0;
    hipLaunchKernelGGL(nothing, dim3(3), dim3(40), 0, 0);
    hipLaunchKernelGGL((nothing), 2, 10, 0, nullptr);
    CHECK_AT(0, counter, 140);

    Buffer<int> out(64), in(64);
    for (int i = 0; i < 64; ++i) in[i] = i;
    int evaluated = 0;
    hipLaunchKernelGGL(deduced, dim3(1), dim3(64), 0, 0, out.data, ++evaluated);
    CHECK_AT(0, evaluated, 1);
    for (int i = 0; i < 64; ++i) CHECK_AT(i, out[i], 1);
    constexpr int seven = 7;
    hipLaunchKernelGGL((parameters<int, seven, (2 > 1)>), dim3(1), dim3(64), 0, 0, out.data, in.data);
    for (int i = 0; i < 64; ++i) CHECK_AT(i, out[i], 14 * i);

    Arguments a = {};
    a.out = out;
    for (int i = 0; i < 100; ++i) a.values[i] = i;
    hipLaunchKernelGGL(by_value, dim3(1), dim3(32), 0, 0, a);
    for (int i = 0; i < 32; ++i) CHECK_AT(i, out[i], i + 1 + (i + 1) % 32);
    hipLaunchKernelGGL(through_pointer, dim3(1), dim3(8), 0, 0, out.data, doubled);
    CHECK_AT(7, out[7], 14);
    hipLaunchKernelGGL(inner::qualified, dim3(1), dim3(1), 0, 0, out.data);
    CHECK_AT(0, out[0], 9);
    auto chosen = &inner::qualified;
    out[0] = 0;
    hipLaunchKernelGGL(chosen, dim3(1), dim3(1), 0, 0, out.data);
    CHECK_AT(0, out[0], 9);
    int* target = out.data;
    void* words[] = {&target};
    out[0] = 0;
    CHECK(hipLaunchKernel(inner::qualified, dim3(1), dim3(1), words, 0, nullptr) == hipSuccess);
    CHECK_AT(0, out[0], 9);
    CHECK(hipGetLastError() == hipSuccess);
    return failures;
}

// ---- errors ----

static int refused_with(dim3 grid, dim3 block, size_t shared, hipError_t want) {
    int failures = 0;
    counter = 0;
    CHECK(hipGetLastError() == hipSuccess);
    hipLaunchKernelGGL(nothing, grid, block, shared, 0);
    CHECK(counter == 0);
    CHECK(hipPeekAtLastError() == want);
    CHECK(hipDeviceSynchronize() == hipSuccess);
    CHECK(hipGetLastError() == want);
    CHECK(hipGetLastError() == hipSuccess);
    return failures;
}

TEST(refused_configurations) {
    int failures = 0;
    failures += refused_with(dim3(1), dim3(1025), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(1), dim3(32, 33), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(1), dim3(65536, 65536), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(1), dim3(0), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(1), dim3(1, 0), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(0), dim3(32), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(1, 1, 0), dim3(32), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(1, 65536), dim3(32), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(1, 1, 65536), dim3(32), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(0x80000000u), dim3(1), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(0x7fffffffu), dim3(1024), 0, hipErrorInvalidConfiguration);
    failures += refused_with(dim3(1), dim3(32), 65537, hipErrorInvalidValue);
    counter = 0;
    hipLaunchKernelGGL(nothing, dim3(1, 65535), dim3(1), 65536, 0);
    CHECK_AT(0, counter, 65535);
    CHECK(hipGetLastError() == hipSuccess);
    return failures;
}

static void* error_of_a_thread(void*) {
    hipLaunchKernelGGL(nothing, dim3(0), dim3(1), 0, 0);
    return reinterpret_cast<void*>(hipGetLastError() == hipErrorInvalidConfiguration ? 0l : 1l);
}

TEST(last_error_is_a_threads_own) {
    int failures = 0;
    pthread_t thread;
    void* answer = nullptr;
    pthread_create(&thread, nullptr, error_of_a_thread, nullptr);
    pthread_join(thread, &answer);
    CHECK(answer == nullptr);
    CHECK(hipGetLastError() == hipSuccess);
    CHECK(hipMalloc(static_cast<void**>(nullptr), 4) == hipErrorInvalidValue);
    CHECK(hipSetDevice(0) == hipSuccess);  // a success does not clear an error
    CHECK(hipPeekAtLastError() == hipErrorInvalidValue);
    CHECK(hipGetLastError() == hipErrorInvalidValue);
    CHECK(strcmp(hipGetErrorName(hipErrorInvalidConfiguration), "hipErrorInvalidConfiguration") == 0);
    CHECK(strcmp(hipGetErrorString(hipErrorNoDevice), "no ROCm-capable device is detected") == 0);
    CHECK(strcmp(hipGetErrorName(hipError_t(888)), "hipErrorUnknown") == 0);
    return failures;
}

// ---- the rest of the runtime ----

__constant__ int table[4] = {1, 2, 3, 4};
__global__ void read_table(int* out) { out[threadIdx.x] = table[threadIdx.x]; }

TEST(runtime_calls) {
    int failures = 0;
    int value = -1;
    CHECK(hipGetDeviceCount(&value) == hipSuccess && value == 1);
    CHECK(hipGetDevice(&value) == hipSuccess && value == 0);
    CHECK(hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 0) == hipSuccess && value == 32);
    CHECK(hipDeviceGetAttribute(&value, hipDeviceAttributeMaxThreadsPerBlock, 0) == hipSuccess && value == 1024);
    CHECK(hipDeviceGetAttribute(&value, hipDeviceAttributeMaxSharedMemoryPerBlock, 0) == hipSuccess && value == 65536);
    CHECK(hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 3) == hipErrorInvalidDevice);
    CHECK(hipSetDevice(1) == hipErrorInvalidDevice);
    CHECK(hipGetLastError() == hipErrorInvalidDevice);
    CHECK(hipFuncSetAttribute(nothing, hipFuncAttributeMaxDynamicSharedMemorySize, 65536) == hipSuccess);
    CHECK(hipFuncSetAttribute(reinterpret_cast<const void*>(nothing), hipFuncAttributeMaxDynamicSharedMemorySize, 65537) ==
          hipErrorInvalidValue);
    CHECK(hipGetLastError() == hipErrorInvalidValue);

    hipStream_t stream;
    hipEvent_t start = nullptr, stop = nullptr;
    CHECK(hipStreamCreate(&stream) == hipSuccess);
    CHECK(hipEventCreate(&start) == hipSuccess && hipEventCreate(&stop) == hipSuccess);
    int* device;
    CHECK(hipMalloc(&device, 4 * sizeof(int)) == hipSuccess);
    CHECK(reinterpret_cast<uintptr_t>(device) % 256 == 0);
    CHECK(hipEventRecord(start, stream) == hipSuccess);
    CHECK(hipMemsetAsync(device, 0xff, 16, stream) == hipSuccess);
    CHECK(device[3] == -1);
    hipLaunchKernelGGL(read_table, dim3(1), dim3(4), 0, stream, device);
    int back[4];
    CHECK(hipMemcpyAsync(back, device, 16, hipMemcpyDeviceToHost, stream) == hipSuccess);
    CHECK(hipEventRecord(stop, stream) == hipSuccess && hipStreamSynchronize(stream) == hipSuccess);
    CHECK(back[0] == 1 && back[3] == 4);
    float milliseconds = -1;
    CHECK(hipEventElapsedTime(&milliseconds, start, stop) == hipSuccess && milliseconds >= 0);
    const int other[4] = {5, 6, 7, 8};
    CHECK(hipMemcpyToSymbol(HIP_SYMBOL(table), other, sizeof(other)) == hipSuccess);
    hipLaunchKernelGGL(read_table, dim3(1), dim3(4), 0, stream, device);
    CHECK(device[0] == 5 && device[3] == 8);
    const int first[4] = {1, 2, 3, 4};
    CHECK(hipMemcpyToSymbol(HIP_SYMBOL(table), first, sizeof(first)) == hipSuccess);
    CHECK(hipMemcpy(nullptr, device, 4, hipMemcpyDefault) == hipErrorInvalidValue);
    CHECK(hipGetLastError() == hipErrorInvalidValue);
    CHECK(hipFree(device) == hipSuccess && hipStreamDestroy(stream) == hipSuccess);
    CHECK(hipEventDestroy(start) == hipSuccess && hipEventDestroy(stop) == hipSuccess);
    return failures;
}

// ---- several program threads launch at once; a forked child launches too ----

static void* launch_many(void* argument) {
    long bad = 0;
    const int id = int(reinterpret_cast<intptr_t>(argument));
    for (int round = 0; round < 50; ++round) {
        Buffer<int> out(64);
        hipLaunchKernelGGL(deduced, dim3(8), dim3(64), 0, 0, out.data, id * 1000 + round);
        for (int i = 0; i < 64; ++i) bad += out[i] != id * 1000 + round;
    }
    return reinterpret_cast<void*>(bad);
}

TEST(launches_from_several_threads) {
    int failures = 0;
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; ++i) pthread_create(&threads[i], nullptr, launch_many, reinterpret_cast<void*>(i));
    for (pthread_t thread : threads) {
        void* bad = nullptr;
        pthread_join(thread, &bad);
        CHECK(bad == nullptr);
    }
    return failures;
}

#include <sys/wait.h>
#include <unistd.h>

TEST(a_forked_child_launches) {
    int failures = 0;
    counter = 0;
    hipLaunchKernelGGL(nothing, dim3(64), dim3(32), 0, 0);
    CHECK_AT(0, counter, 2048);
    const pid_t child = fork();
    if (child == 0) {
        counter = 0;
        hipLaunchKernelGGL(nothing, dim3(64), dim3(32), 0, 0);
        _exit(counter == 2048 ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return failures;
}
