// The 16-bit formats and the intrinsics. The conversions are compared outside, over every value.
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hip/hip_bf16.h>
#include <hip/hip_bfloat16.h>

#include "check.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// ---- for numpy ----

__global__ void half_floats(float* out) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    out[i] = __half2float(__ushort_as_half((unsigned short)i));
}
__global__ void bfloat_floats(float* out) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    out[i] = __bfloat162float(__ushort_as_bfloat16((unsigned short)i));
}
EXPORT void all_halves(float* out) { hipLaunchKernelGGL(half_floats, dim3(256), dim3(256), 0, 0, out); }
EXPORT void all_bfloats(float* out) { hipLaunchKernelGGL(bfloat_floats, dim3(256), dim3(256), 0, 0, out); }

EXPORT void to_halves(const float* in, unsigned short* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = __half_as_ushort(__float2half(in[i]));
}
EXPORT void to_halves_towards(const float* in, unsigned short* out, long n, int way) {
    for (long i = 0; i < n; ++i)
        out[i] = __half_as_ushort(way == 0 ? __float2half_rz(in[i]) : way < 0 ? __float2half_rd(in[i]) : __float2half_ru(in[i]));
}
EXPORT void to_bfloats(const float* in, unsigned short* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = __bfloat16_as_ushort(__float2bfloat16(in[i]));
}
EXPORT void to_old_bfloats(const float* in, unsigned short* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = hip_bfloat16(in[i]).data;
}
EXPORT void doubles_to_halves(const double* in, unsigned short* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = __half_as_ushort(__half(in[i]));
}
EXPORT void doubles_to_bfloats(const double* in, unsigned short* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = __bfloat16_as_ushort(__hip_bfloat16(in[i]));
}
/// which: + - * / and fma, on bits.
EXPORT void half_arithmetic(const unsigned short* a, const unsigned short* b, const unsigned short* c, unsigned short* out,
                            long n, int which) {
    for (long i = 0; i < n; ++i) {
        const __half x = __ushort_as_half(a[i]), y = __ushort_as_half(b[i]), z = __ushort_as_half(c[i]);
        const __half results[] = {x + y, x - y, x * y, x / y, __hfma(x, y, z)};
        out[i] = __half_as_ushort(results[which]);
    }
}
/// Counts the f32 patterns from `begin` on whose f16 differs from the processor's own conversion (F16C).
EXPORT long differs_from_f16c(unsigned long begin, unsigned long end) {
    long differ = 0;
    for (unsigned long bits = begin; bits < end; ++bits) {
        const float value = __uint_as_float(unsigned(bits));
        unsigned result;
        __asm__("movd %1, %%xmm0\n\tvcvtps2ph $0, %%xmm0, %%xmm0\n\tmovd %%xmm0, %0" : "=r"(result) : "r"(unsigned(bits)) : "xmm0");
        differ += (result & 0xffff) != __half_as_ushort(__float2half(value));
    }
    return differ;
}

// ---- by definition ----

TEST(half_types) {
    int failures = 0;
    const __half one = __float2half(1.0f), two(2), third = 1.0f / 3.0f;
    CHECK(__half_as_ushort(one) == 0x3c00 && __half_as_ushort(two) == 0x4000 && __half_as_ushort(third) == 0x3555);
    CHECK(float(one + two) == 3.0f && float(-two) == -2.0f && float(two - one) == 1.0f && one < two && !(one >= two));
    __half h = one;
    h += two;
    h *= h;
    CHECK(float(h) == 9.0f && int(h) == 9 && float(h++) == 9.0f && float(--h) == 9.0f);
    const __half nan = HIPRT_NAN_FP16;
    CHECK(!(nan == nan) && nan != nan && __hisnan(nan) && !__heq(nan, one) && __hequ(nan, one) && !__hne(one, one));
    CHECK(!__hlt(nan, one) && __hltu(nan, one) && __hgeu(nan, nan) && float(__hmax(nan, one)) == 1.0f);
    CHECK(__hisnan(__hmax_nan(one, nan)) && float(__hmin(two, one)) == 1.0f && __hisinf(__half(1e6f)) == 1);
    CHECK(__half_as_ushort(__half(100000)) == 0x7c00 && __half_as_ushort(__half(-70000ll)) == 0xfc00);
    const __half2 pair = __floats2half2_rn(1.5f, -2.5f);
    CHECK(__low2float(pair) == 1.5f && __high2float(pair) == -2.5f && float(__lowhigh2highlow(pair).x) == -2.5f);
    const __half2 product = __hfma2(pair, __half2half2(two), __float2half2_rn(1.0f));
    CHECK(float(product.x) == 4.0f && float(product.y) == -4.0f);
    CHECK(float(__hadd2(pair, pair).y) == -5.0f && float((pair * pair).x) == 2.25f && __hbeq2(pair, pair));
    const float2 both = __half22float2(pair);
    CHECK(both.x == 1.5f && both.y == -2.5f && float(__heq2(pair, product).x) == 0.0f);
    CHECK(__half2int_rn(__half(2.5f)) == 2 && __half2int_rz(__half(-2.7f)) == -2 && __half2uint_rn(__half(-3)) == 0);
    CHECK(__half2short_rn(HIPRT_INF_FP16) == 32767 && __half2int_ru(__half(1.25f)) == 2);
    CHECK(float(hsqrt(__half(16))) == 4.0f && float(hexp2(__half(3))) == 8.0f && float(hrcp(two)) == 0.5f);
    return failures;
}

TEST(bfloat_types) {
    int failures = 0;
    const __hip_bfloat16 one = __float2bfloat16(1.0f), two(2);
    CHECK(__bfloat16_as_ushort(one) == 0x3f80 && float(one + two) == 3.0f && one < two && float(-two) == -2.0f);
    __hip_bfloat16 b = one;
    b += two;
    b = b * b;
    CHECK(float(b) == 9.0f && __bfloat162float(b / two) == 4.5f);
    const __hip_bfloat16 nan = HIPRT_NAN_BF16;
    CHECK(__hisnan(nan) && !__heq(nan, one) && __hneu(nan, one) && float(__hmax(nan, two)) == 2.0f);
    const __hip_bfloat162 pair = __floats2bfloat162_rn(1.5f, -2.5f);
    CHECK(__low2float(pair) == 1.5f && __high2float(pair) == -2.5f && __bfloat1622float2(pair).y == -2.5f);
    CHECK(float(__hfma2(pair, __bfloat162bfloat162(two), pair).x) == 4.5f && __hbeq2(pair, pair));
    // Ties that rounding first to f32 would get wrong.
    CHECK(__bfloat16_as_ushort(__hip_bfloat16(0x1010001)) == 0x4b81);
    CHECK(__bfloat16_as_ushort(__hip_bfloat16(0x1010000)) == 0x4b80);
    CHECK(__bfloat16_as_ushort(__hip_bfloat16(1.00390625 + 1e-12)) == 0x3f81);
    CHECK(__bfloat16_as_ushort(__hip_bfloat16((1ll << 62) + (1ll << 54) + 1)) == 0x5e81);
    CHECK(__bfloat16_as_ushort(__hip_bfloat16(-((1ll << 62) + (1ll << 54) + 1))) == 0xde81);
    const hip_bfloat16 old(1.00390625f);
    CHECK(old.data == 0x3f80 && hip_bfloat16(1.0039064f).data == 0x3f81 && float(old + old) == 2.0f);
    CHECK(hip_bfloat16(1.9999f, hip_bfloat16::truncate).data == 0x3fff);
    return failures;
}

TEST(vector_types) {
    int failures = 0;
    const float4 a = make_float4(1, 2, 3, 4), b = {10, 20, 30, 40};
    const float4 c = a + b * 2.0f;
    CHECK(c.x == 21 && c.w == 84 && c == c && a != b);
    int4 i = make_int4(1, 2, 3, 4);
    i += make_int4(1, 1, 1, 1);
    CHECK(i.x == 2 && i.w == 5 && (i - i).z == 0 && (-i).y == -3);
    CHECK(sizeof(float3) == 12 && alignof(float4) == 16 && alignof(int2) == 8 && alignof(char4) == 4 && alignof(float3) == 4);
    CHECK(sizeof(uchar4) == 4 && sizeof(double4) == 32 && alignof(ushort2) == 4 && make_uint3(1, 2, 3).z == 3);
    const dim3 d = make_uint3(4, 5, 6);
    CHECK(d.x == 4 && d.z == 6);
    return failures;
}

TEST(integer_intrinsics) {
    int failures = 0;
    unsigned state = 12345;
    for (int round = 0; round < 2000; ++round) {
        unsigned word[3];
        for (unsigned& w : word) w = state = state * 1664525u + 1013904223u, w ^= w >> 13;
        const int a = int(word[0]), b = int(word[1]), c = int(word[2]);
        int64_t ss = c, su = c;
        uint64_t uu = word[2];
        for (int k = 0; k < 4; ++k) {
            const int sa = int8_t(a >> 8 * k), sb = int8_t(b >> 8 * k), ua = uint8_t(a >> 8 * k), ub = uint8_t(b >> 8 * k);
            ss += sa * sb;
            su += sa * ub;
            uu += uint64_t(ua) * ub;
        }
        CHECK(__dp4a(a, b, c) == int(ss) && __builtin_amdgcn_sudot4(true, a, true, b, c, false) == int(ss));
        CHECK(__builtin_amdgcn_sudot4(true, a, false, b, c, false) == int(su));
        CHECK(__dp4a(word[0], word[1], word[2]) == unsigned(uu));
        const uint64_t both = uint64_t(word[1]) << 32 | word[0];
        unsigned permuted = 0, amd = 0;
        for (int k = 0; k < 4; ++k) {
            permuted |= unsigned(both >> 8 * (word[2] >> 4 * k & 7) & 255) << 8 * k;
            amd |= unsigned(both >> 8 * (word[2] >> 4 * k & 7) & 255) << 8 * k;
        }
        unsigned selector = 0;
        for (int k = 0; k < 4; ++k) selector |= (word[2] >> 4 * k & 7) << 8 * k;
        CHECK(__byte_perm(word[0], word[1], word[2] & 0x7777) == permuted);
        CHECK(__builtin_amdgcn_perm(word[1], word[0], selector) == amd);
        CHECK(__popc(word[0]) == __builtin_popcount(word[0]) && __brev(__brev(word[0])) == word[0]);
        CHECK(__mulhi(a, b) == int(int64_t(a) * b >> 32) && __umulhi(word[0], word[1]) == unsigned(uint64_t(word[0]) * word[1] >> 32));
        CHECK(__mul24(a, b) == int(unsigned(int(word[0] << 8) >> 8) * unsigned(int(word[1] << 8) >> 8)));
        CHECK(__funnelshift_l(word[0], word[1], word[2]) == unsigned(both << (word[2] & 31) >> 32));
        CHECK(__builtin_amdgcn_alignbyte(word[1], word[0], 3) == unsigned(both >> 24));
    }
    CHECK(__builtin_amdgcn_sudot4(true, 0x7f7f7f7f, true, 0x7f7f7f7f, 0x7ffffff0, true) == 0x7fffffff);
    CHECK(__builtin_amdgcn_perm(0x80000000u, 0x00008000u, 0x080b0c0du) == 0xffff00ffu);
    CHECK(__byte_perm(0x80, 0, 0x0088) == 0x8080ffffu);
    CHECK(__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0 && __ffs(0) == 0 && __ffs(8) == 4 && __clzll(1) == 63);
    CHECK(__brev(1u) == 0x80000000u && __brevll(1ull) == 1ull << 63 && __ffsll(1ll << 40) == 41);
    CHECK(min(3, 5) == 3 && max(3u, 5u) == 5u && min(-1, 2) == -1 && max(1.5f, 2) == 2.0f && min(2.0, 1.0f) == 1.0);
    const float nan = __builtin_nanf("");
    CHECK(min(nan, 1.0f) == 1.0f && max(1.0f, nan) == 1.0f && fminf(nan, 2.0f) == 2.0f);
    return failures;
}

TEST(float_intrinsics) {
    int failures = 0;
    CHECK(__float_as_int(1.0f) == 0x3f800000 && __int_as_float(0x40000000) == 2.0f && __uint_as_float(0x7f800000u) > 1e38f);
    CHECK(__hiloint2double(0x3ff00000, 0) == 1.0 && __double2hiint(2.0) == 0x40000000 && __double_as_longlong(0.0) == 0);
    CHECK(__float2int_rn(2.5f) == 2 && __float2int_rn(3.5f) == 4 && __float2int_rz(-2.9f) == -2 && __float2int_rd(-2.1f) == -3);
    CHECK(__float2int_ru(2.1f) == 3 && __float2int_rn(3e9f) == INT32_MAX && __float2int_rn(-3e9f) == INT32_MIN);
    CHECK(__float2int_rz(__builtin_nanf("")) == 0 && __float2uint_rn(-1.0f) == 0 && __float2uint_rn(4e9f) == 4000000000u);
    CHECK(__float2ll_rn(1e18f) == 999999984306749440ll && __double2int_rn(-0.5) == 0 && __float2ull_rz(3e19f) == ~0ull);
    CHECK(fabsf(__expf(1.0f) - 2.7182817f) < 1e-6f && __fdividef(1.0f, 4.0f) == 0.25f && rsqrtf(16.0f) == 0.25f);
    CHECK(__powf(2.0f, 10.0f) == 1024.0f && __log2f(8.0f) == 3.0f && __frcp_rn(8.0f) == 0.125f && __saturatef(-1.0f) == 0.0f);
    float s, c;
    __sincosf(0.0f, &s, &c);
    CHECK(s == 0.0f && c == 1.0f && fmaf(2.0f, 3.0f, 4.0f) == 10.0f && __fmaf_rn(1.0f, 1.0f, 1.0f) == 2.0f);
    const int value = 42;
    CHECK(__ldg(&value) == 42 && isnan(__builtin_nanf("")) && isinf(__builtin_inff()));
    return failures;
}

/// Denormals and nearest-even hold inside kernels whatever the program has set on its own thread, and are given back.
__global__ void denormal(float* out, float tiny) { out[0] = tiny * 0.5f; }
TEST(denormals_are_kept) {
    int failures = 0;
    Buffer<float> out(1);
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040);
    hipLaunchKernelGGL(denormal, dim3(1), dim3(1), 0, 0, out.data, 1.17549435e-38f);
    const bool kept_setting = (__builtin_ia32_stmxcsr() & 0x8040) == 0x8040;
    __builtin_ia32_ldmxcsr(before);
    CHECK(kept_setting && __float_as_uint(out[0]) == 0x00400000u);
    return failures;
}
