// Atomics, with blocks on several threads.
#include <hip/hip_runtime.h>

#include "check.h"

struct Cells {
    int sum_int, lowest, highest, bits_or, bits_and, bits_xor, exchanged, locked, difference;
    unsigned sum_unsigned, wrapped, counted_down;
    unsigned long long sum_long, highest_long;
    float sum_float, highest_float;
    double sum_double;
};

__global__ void update(Cells* c, int* guarded) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&c->sum_int, i % 5);
    atomicAdd(&c->sum_unsigned, 3u);
    atomicAdd(&c->sum_long, 1ull << 33);
    atomicAdd(&c->sum_float, 1.0f);
    atomicAdd(&c->sum_double, 0.5);
    atomicSub(&c->difference, 2);
    atomicMin(&c->lowest, 1000 - i);
    atomicMax(&c->highest, i);
    atomicMax(&c->highest_long, (unsigned long long)i << 20);
    atomicMax(&c->highest_float, float(i) * 0.25f);
    atomicOr(&c->bits_or, 1 << i % 20);
    atomicAnd(&c->bits_and, ~(1 << i % 11));
    atomicXor(&c->bits_xor, i);
    atomicInc(&c->wrapped, 9);
    atomicDec(&c->counted_down, 100000);
    atomicExch(&c->exchanged, 77);
    int seen = atomicCAS(&c->locked, 0, 0);
    for (;;) {
        const int before = seen;
        seen = atomicCAS(&c->locked, before, before + 1);
        if (seen == before) break;
    }
    __threadfence();
    *guarded = 1;
}

TEST(atomics_from_many_blocks) {
    int failures = 0;
    const int blocks = 400, threads = 64, n = blocks * threads;
    Buffer<Cells> cells(1);
    Buffer<int> guarded(1);
    Cells& c = cells[0];
    c.bits_and = -1;
    c.counted_down = n + 5;
    hipLaunchKernelGGL(update, dim3(blocks), dim3(threads), 0, 0, cells.data, guarded.data);
    int all_xor = 0;
    for (int i = 0; i < n; ++i) all_xor ^= i;
    CHECK_AT(0, c.sum_int, n / 5 * 10);
    CHECK_AT(0, c.sum_unsigned, 3u * n);
    CHECK_AT(0, c.sum_long, (1ull << 33) * n);
    CHECK_AT(0, c.sum_float, float(n));
    CHECK_AT(0, c.sum_double, n * 0.5);
    CHECK_AT(0, c.difference, -2 * n);
    CHECK_AT(0, c.lowest, 1000 - (n - 1));
    CHECK_AT(0, c.highest, n - 1);
    CHECK_AT(0, c.highest_long, (unsigned long long)(n - 1) << 20);
    CHECK_AT(0, c.highest_float, float(n - 1) * 0.25f);
    CHECK_AT(0, c.bits_or, (1 << 20) - 1);
    CHECK_AT(0, c.bits_and, -2048);
    CHECK_AT(0, c.bits_xor, all_xor);
    CHECK_AT(0, c.wrapped, unsigned(n % 10));
    CHECK_AT(0, c.counted_down, 5u);
    CHECK_AT(0, c.exchanged, 77);
    CHECK_AT(0, c.locked, n);
    return failures;
}

/// The last block to come adds up what the others have left: counters and fences across blocks.
__global__ void last_block(float* parts, unsigned* arrived, float* total) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = float(blockIdx.x);
        __threadfence();
        last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0;
        for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i];
        *total = sum;
    }
}

TEST(last_block_sees_the_others) {
    int failures = 0;
    const int blocks = 300;
    for (int round = 0; round < 20; ++round) {
        Buffer<float> parts(blocks), total(1);
        Buffer<unsigned> arrived(1);
        hipLaunchKernelGGL(last_block, dim3(blocks), dim3(32), 0, 0, parts.data, arrived.data, total.data);
        CHECK_AT(0, total[0], float(blocks * (blocks - 1) / 2));
    }
    return failures;
}

__global__ void old_values(int* out, int* cell) { out[atomicAdd(cell, 1)] += 1; }

TEST(atomics_give_the_value_before) {
    int failures = 0;
    Buffer<int> out(1000), cell(1);
    hipLaunchKernelGGL(old_values, dim3(10), dim3(100), 0, 0, out.data, cell.data);
    for (int i = 0; i < 1000; ++i) CHECK_AT(i, out[i], 1);
    return failures;
}
