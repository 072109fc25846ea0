// Shuffles, votes and reductions against what their definitions say, for whole and partial waves, with and without masks.
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hip/hip_bf16.h>

#include "check.h"

namespace {

enum Kind { by_index, up, down, by_xor };

/// The lane that HIP documents as the source, in plain arithmetic.
int source_of(Kind kind, int lane, int argument, int width) {
    const int begin = lane / width * width;
    switch (kind) {
        case by_index: return begin + ((argument % width) + width) % width;
        case up: return lane - argument < begin ? lane : lane - argument;
        case down: return lane + argument >= begin + width ? lane : lane + argument;
        default: return (lane ^ argument) >= begin + width ? lane : lane ^ argument;
    }
}

template <class T>
__global__ void shuffle_all(T* out, const T* in, int kind, int argument, int width, bool masked) {
    const int i = threadIdx.x;
    const T value = in[i];
    T result;
    if (masked) {
        if (kind == by_index) result = __shfl_sync(0xffffffffu, value, argument, width);
        else if (kind == up) result = __shfl_up_sync(0xffffffffffffffffull, value, argument, width);
        else if (kind == down) result = __shfl_down_sync(0xffffffffu, value, argument, width);
        else result = __shfl_xor_sync(0xffffffffffffffffull, value, argument, width);
    } else {
        if (kind == by_index) result = __shfl(value, argument, width);
        else if (kind == up) result = __shfl_up(value, argument, width);
        else if (kind == down) result = __shfl_down(value, argument, width);
        else result = __shfl_xor(value, argument, width);
    }
    out[i] = result;
}

template <class T, class Make>
int shuffles_of(Make make) {
    int failures = 0;
    Buffer<T> in(64), out(64);
    for (int i = 0; i < 64; ++i) in[i] = make(i);
    for (int masked = 0; masked < 2; ++masked)
        for (int kind = by_index; kind <= by_xor; ++kind)
            for (int width = 1; width <= 32; width *= 2)
                for (int argument = 0; argument <= 32; ++argument) {
                    hipLaunchKernelGGL(shuffle_all<T>, dim3(1), dim3(64), 0, 0, out, in, kind, argument, width, masked != 0);
                    for (int i = 0; i < 64; ++i) {
                        const int source = source_of(Kind(kind), i % 32, argument, width);
                        if (source >= 32) continue;
                        const T want = in[i / 32 * 32 + source];
                        CHECK(memcmp(&out[i], &want, sizeof(T)) == 0);
                    }
                }
    return failures;
}

struct Wide {
    double a;
    float b;
    int c;
};

}  // namespace

TEST(shuffle_int) { return shuffles_of<int>([](int i) { return i * 7919 - 100; }); }
TEST(shuffle_float) { return shuffles_of<float>([](int i) { return float(i) * 0.37f - 3.0f; }); }
TEST(shuffle_64) { return shuffles_of<long long>([](int i) { return (long long)i << 40 | i; }); }
TEST(shuffle_half) { return shuffles_of<__half>([](int i) { return __half(float(i) * 0.5f); }); }
TEST(shuffle_half2) { return shuffles_of<__half2>([](int i) { return __half2(__half(i), __half(-i)); }); }
TEST(shuffle_bfloat) { return shuffles_of<__hip_bfloat16>([](int i) { return __hip_bfloat16(float(i)); }); }
TEST(shuffle_byte) { return shuffles_of<unsigned char>([](int i) { return (unsigned char)(i * 5); }); }
TEST(shuffle_wide) {
    return shuffles_of<Wide>([](int i) { return Wide{double(i), float(-i), i * i}; });
}

// ---- reductions that loop, as kernels write them ----

static __device__ float wave_sum(float v) {
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

__global__ void sums(float* out, const float* in, int rounds) {
    float v = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int i = 0; i < rounds; ++i) v = wave_sum(v) * (1.0f / 32.0f) + float(threadIdx.x % 32);
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

TEST(sum_by_xor) {
    int failures = 0;
    const int blocks = 5, threads = 96, rounds = 7;
    Buffer<float> in(blocks * threads), out(blocks * threads);
    for (int i = 0; i < in.size; ++i) in[i] = float(i % 13);
    hipLaunchKernelGGL(sums, dim3(blocks), dim3(threads), 0, 0, out, in, rounds);
    for (int wave = 0; wave < blocks * threads / 32; ++wave) {
        float v[32];
        for (int i = 0; i < 32; ++i) v[i] = in[wave * 32 + i];
        for (int r = 0; r < rounds; ++r) {
            for (int m = 16; m > 0; m >>= 1) {
                float next[32];
                for (int i = 0; i < 32; ++i) next[i] = v[i] + v[i ^ m];
                memcpy(v, next, sizeof(v));
            }
            for (int i = 0; i < 32; ++i) v[i] = v[i] * (1.0f / 32.0f) + float(i);
        }
        for (int i = 0; i < 32; ++i) CHECK_AT(wave * 32 + i, out[wave * 32 + i], v[i]);
    }
    return failures;
}

// ---- votes ----

__global__ void votes(unsigned long long* out, unsigned bits) {
    const int lane = threadIdx.x % 32;
    const bool mine = bits >> lane & 1;
    unsigned long long* o = out + threadIdx.x * 8;
    o[0] = __ballot_sync(0xffffffffu, mine);
    o[1] = __ballot(mine);
    o[2] = __any_sync(~0ull, mine);
    o[3] = __all_sync(~0ull, mine);
    o[4] = __any(mine);
    o[5] = __all(mine);
    o[6] = __activemask();
    o[7] = __popc(unsigned(__ballot_sync(~0ull, 1)));
}

TEST(votes_of_whole_and_partial_waves) {
    int failures = 0;
    for (int threads : {32, 64, 1, 5, 40}) {
        for (unsigned bits : {0u, ~0u, 1u, 0x80000000u, 0x0f0f1234u}) {
            Buffer<unsigned long long> out(threads * 8);
            hipLaunchKernelGGL(votes, dim3(1), dim3(threads), 0, 0, out, bits);
            for (int i = 0; i < threads; ++i) {
                const int size = threads - i / 32 * 32 < 32 ? threads - i / 32 * 32 : 32;
                const unsigned live = size == 32 ? ~0u : (1u << size) - 1;
                const unsigned set = bits & live;
                const unsigned long long want[] = {set, set, set != 0, set == live, set != 0, set == live, live,
                                                   (unsigned long long)size};
                for (int k = 0; k < 8; ++k) CHECK_AT(i * 8 + k, out[i * 8 + k], want[k]);
            }
        }
    }
    return failures;
}

__global__ void reductions(int* out) {
    const int lane = threadIdx.x;
    int* o = out + lane * 8;
    int all_same = -1, differ = -1;
    o[0] = __reduce_add_sync(0xffffffffu, lane);
    o[1] = __reduce_min_sync(0xffffffffu, lane - 7);
    o[2] = __reduce_max_sync(0xffffffffu, lane - 7);
    o[3] = __reduce_or_sync(0xffffffffu, 1 << lane % 8);
    o[4] = __reduce_and_sync(0xffffffffu, ~(1 << lane % 4));
    o[5] = int(__match_any_sync(0xffffffffu, lane % 4) & __match_any(float(lane % 4)));
    o[6] = int(__match_all_sync(0xffffffffu, 5, &all_same)) == -1 && all_same == 1;
    o[7] = int(__match_all_sync(0xffffffffu, lane, &differ)) == 0 && differ == 0;
}

TEST(reductions_of_a_wave) {
    int failures = 0;
    Buffer<int> out(32 * 8);
    hipLaunchKernelGGL(reductions, dim3(1), dim3(32), 0, 0, out);
    for (int lane = 0; lane < 32; ++lane) {
        const int want[] = {31 * 16, -7, 24, 255, ~15, int(0x11111111u << lane % 4), 1, 1};
        for (int k = 0; k < 8; ++k) CHECK_AT(lane * 8 + k, out[lane * 8 + k], want[k]);
    }
    return failures;
}

// ---- groups of lanes ----

/// Lanes of a mask meet while the others go their own way, a different number of times.
__global__ void divided(float* out) {
    const int lane = threadIdx.x;
    float v = float(lane);
    if (lane < 8) {
        for (int i = 0; i < 3; ++i) v += __shfl_xor_sync(0x000000ffu, v, 1);
    } else if (lane < 16) {
        for (int i = 0; i < 5; ++i) v += __shfl_xor_sync(0x0000ff00u, v, 2);
    } else {
        v += __shfl_sync(0xffff0000u, v, 20);
    }
    __syncwarp();
    v += __shfl_sync(0xffffffffu, v, 31);
    out[lane] = v;
}

TEST(masks_divide_a_wave) {
    int failures = 0;
    Buffer<float> out(32);
    hipLaunchKernelGGL(divided, dim3(1), dim3(32), 0, 0, out);
    float v[32], next[32];
    for (int i = 0; i < 32; ++i) v[i] = float(i);
    for (int round = 0; round < 5; ++round) {
        memcpy(next, v, sizeof(v));
        for (int i = 0; i < 8; ++i)
            if (round < 3) next[i] = v[i] + v[i ^ 1];
        for (int i = 8; i < 16; ++i) next[i] = v[i] + v[i ^ 2];
        memcpy(v, next, sizeof(v));
    }
    const float twentieth = v[20];
    for (int i = 16; i < 32; ++i) v[i] += twentieth;
    const float last = v[31];
    for (int i = 0; i < 32; ++i) CHECK_AT(i, out[i], v[i] + last);
    return failures;
}

/// Forms without a mask join those who are there: inside a branch its lanes, behind it all again.
__global__ void branches(unsigned long long* out) {
    const int lane = threadIdx.x;
    unsigned long long inside = 0;
    if (lane % 3 == 0) {
        inside = __ballot(1);
    }
    const unsigned long long behind = __ballot(1);
    unsigned long long loop = 0;
    for (int i = 0; i < lane % 4; ++i) loop = loop << 16 | __popc(unsigned(__ballot(1)));
    out[lane * 4] = inside;
    out[lane * 4 + 1] = behind;
    out[lane * 4 + 2] = loop;
    out[lane * 4 + 3] = __activemask();
}

TEST(branches_join_again) {
    int failures = 0;
    Buffer<unsigned long long> out(32 * 4);
    hipLaunchKernelGGL(branches, dim3(1), dim3(32), 0, 0, out);
    unsigned thirds = 0;
    for (int lane = 0; lane < 32; lane += 3) thirds |= 1u << lane;
    const unsigned long long loops[] = {0, 24, 24 << 16 | 16, 24ull << 32 | 16 << 16 | 8};
    for (int lane = 0; lane < 32; ++lane) {
        CHECK_AT(lane, out[lane * 4], lane % 3 == 0 ? thirds : 0);
        CHECK_AT(lane, out[lane * 4 + 1], 0xffffffffull);
        CHECK_AT(lane, out[lane * 4 + 2], loops[lane % 4]);
        CHECK_AT(lane, out[lane * 4 + 3], 0xffffffffull);
    }
    return failures;
}

/// Lanes that have ended no longer take part; what a shuffle would read from them is poison.
__global__ void early(float* out, unsigned long long* active) {
    const int lane = threadIdx.x;
    if (lane >= 20) return;
    active[lane] = __ballot_sync(0xffffffffu, 1);
    out[lane] = __shfl_down_sync(0xffffffffu, float(lane), 4);
}

TEST(ended_lanes_do_not_take_part) {
    int failures = 0;
    Buffer<float> out(32);
    Buffer<unsigned long long> active(32);
    hipLaunchKernelGGL(early, dim3(1), dim3(32), 0, 0, out, active);
    for (int lane = 0; lane < 20; ++lane) {
        CHECK_AT(lane, active[lane], 0xfffffull);
        if (lane < 16)
            CHECK_AT(lane, out[lane], float(lane + 4));
        else
            CHECK(out[lane] != out[lane]);
    }
    return failures;
}

// ---- AMD's own builtins, where sources use them ----

__global__ void builtins(int* out) {
    const int lane = threadIdx.x;
    out[lane * 5] = __builtin_amdgcn_readfirstlane(lane + 100);
    out[lane * 5 + 1] = int(__builtin_amdgcn_ballot_w32(lane & 1));
    out[lane * 5 + 2] = __builtin_amdgcn_ds_bpermute((lane ^ 3) * 4, lane * 10);
    out[lane * 5 + 3] = int(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)));
    out[lane * 5 + 4] = int(__lanemask_lt() == (1ull << lane) - 1 && __lanemask_gt() == (0xffffffffull & ~((2ull << lane) - 1)));
}

TEST(builtins_of_a_wave) {
    int failures = 0;
    Buffer<int> out(32 * 5);
    hipLaunchKernelGGL(builtins, dim3(1), dim3(32), 0, 0, out);
    for (int lane = 0; lane < 32; ++lane) {
        const int want[] = {100, int(0xaaaaaaaau), (lane ^ 3) * 10, lane, 1};
        for (int k = 0; k < 5; ++k) CHECK_AT(lane * 5 + k, out[lane * 5 + k], want[k]);
    }
    return failures;
}
