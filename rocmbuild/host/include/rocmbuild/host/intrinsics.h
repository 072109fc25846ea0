// Device functions of HIP on the host: waves, bits, integer dot products, numbers, memory, atomics.
#pragma once

#include <hip/hip_vector_types.h>

#include <limits>
#include <math.h>
#include <string.h>
#include <type_traits>

#define ROCMBUILD_HOST_FN __attribute__((always_inline)) inline

static constexpr int warpSize = 32;

namespace rocmbuild_host {

template <class T, class F>
ROCMBUILD_HOST_FN T bits_as(F from) {
    static_assert(sizeof(T) == sizeof(F), "a bit cast keeps the size");
    static_assert(std::is_trivially_copyable<F>::value && std::is_trivially_copyable<T>::value, "plain types only");
    T to;
    __builtin_memcpy(&to, &from, sizeof(T));
    return to;
}

/// Mask of a _sync form as CUDA (32 bits) or HIP (64 bits, of which a 32-lane wave uses the low half) writes it.
template <class M>
ROCMBUILD_HOST_FN uint32_t mask_of(M mask) {
    static_assert(std::is_integral<M>::value && (sizeof(M) == 4 || sizeof(M) == 8), "a mask has 32 or 64 bits");
    return static_cast<uint32_t>(mask);
}

template <class T>
ROCMBUILD_HOST_FN T from_lane(T value, uint32_t source, Op op, uint32_t mask, Site site) {
    static_assert(std::is_trivially_copyable<T>::value, "a shuffle moves plain types only");
    T result = value;
    for (size_t offset = 0; offset < sizeof(T); offset += 8) {
        const size_t size = sizeof(T) - offset < 8 ? sizeof(T) - offset : 8;
        uint64_t bits = 0;
        __builtin_memcpy(&bits, reinterpret_cast<const char*>(&value) + offset, size);
        bits = exchange(bits, source, key_of(op, mask, site.line), site.file, site.function);
        __builtin_memcpy(reinterpret_cast<char*>(&result) + offset, &bits, size);
    }
    return result;
}

ROCMBUILD_HOST_FN uint32_t shfl_source(int source, int width) {
    const uint32_t lane = here().lane;
    return (lane & ~uint32_t(width - 1)) + (uint32_t(source) & uint32_t(width - 1));
}
ROCMBUILD_HOST_FN uint32_t shfl_up_source(unsigned delta, int width) {
    const uint32_t lane = here().lane;
    const uint32_t within = lane & uint32_t(width - 1);
    return delta > within ? lane : lane - delta;
}
ROCMBUILD_HOST_FN uint32_t shfl_down_source(unsigned delta, int width) {
    const uint32_t lane = here().lane;
    const uint32_t within = lane & uint32_t(width - 1);
    return delta >= uint32_t(width) - within ? lane : lane + delta;
}
ROCMBUILD_HOST_FN uint32_t shfl_xor_source(int lanes, int width) {
    const uint32_t lane = here().lane;
    const uint32_t source = lane ^ uint32_t(lanes);
    return source >= ((lane + uint32_t(width)) & ~uint32_t(width - 1)) ? lane : source;
}

ROCMBUILD_HOST_FN uint64_t vote_at(bool predicate, Op op, uint32_t mask, Site site) {
    return vote(predicate, key_of(op, mask, site.line), site.file, site.function);
}

template <class T, class Combine>
ROCMBUILD_HOST_FN T reduce_at(T value, uint32_t mask, Site site, Combine combine) {
    static_assert(sizeof(T) <= 8, "a reduction takes up to 64 bits");
    uint64_t all[wave_size];
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    const uint32_t members = gather(bits, all, key_of(Op::reduce, mask, site.line), site.file, site.function);
    bool first = true;
    T result = value;
    for (unsigned lane = 0; lane < wave_size; ++lane) {
        if (!(members >> lane & 1)) continue;
        T other;
        __builtin_memcpy(&other, &all[lane], sizeof(T));
        result = first ? other : combine(result, other);
        first = false;
    }
    return result;
}

}  // namespace rocmbuild_host

// ---- the block ----

ROCMBUILD_HOST_FN void __syncthreads(rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    barrier(false, key_of(Op::syncthreads, 0, at.line), at.file, at.function);
}
ROCMBUILD_HOST_FN int __syncthreads_count(int predicate, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    return int(barrier(predicate != 0, key_of(Op::syncthreads_count, 0, at.line), at.file, at.function));
}
ROCMBUILD_HOST_FN int __syncthreads_and(int predicate, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    return barrier(predicate == 0, key_of(Op::syncthreads_and, 0, at.line), at.file, at.function) == 0;
}
ROCMBUILD_HOST_FN int __syncthreads_or(int predicate, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    return barrier(predicate != 0, key_of(Op::syncthreads_or, 0, at.line), at.file, at.function) != 0;
}

// ---- the wave: _sync forms name the lanes that take part, the others join whoever is active ----

template <class M = unsigned long long>
ROCMBUILD_HOST_FN void __syncwarp(M mask = M(~0ull), rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    rocmbuild_host::vote_at(false, rocmbuild_host::Op::syncwarp, rocmbuild_host::mask_of(mask), at);
}

#define ROCMBUILD_HOST_SHUFFLE(NAME, OP, PARAMETER)                                                               \
    template <class M, class T>                                                                                   \
    ROCMBUILD_HOST_FN T __##NAME##_sync(M mask, T value, PARAMETER which, int width = warpSize,                   \
                                        rocmbuild_host::Site at = rocmbuild_host::Site::current()) {              \
        return rocmbuild_host::from_lane(value, rocmbuild_host::NAME##_source(which, width),                      \
                                         rocmbuild_host::Op::OP, rocmbuild_host::mask_of(mask), at);              \
    }                                                                                                             \
    template <class T>                                                                                            \
    ROCMBUILD_HOST_FN T __##NAME(T value, PARAMETER which, int width = warpSize,                                  \
                                 rocmbuild_host::Site at = rocmbuild_host::Site::current()) {                     \
        return rocmbuild_host::from_lane(value, rocmbuild_host::NAME##_source(which, width),                      \
                                         rocmbuild_host::Op::OP, 0, at);                                          \
    }
ROCMBUILD_HOST_SHUFFLE(shfl, shfl, int)
ROCMBUILD_HOST_SHUFFLE(shfl_up, shfl_up, unsigned)
ROCMBUILD_HOST_SHUFFLE(shfl_down, shfl_down, unsigned)
ROCMBUILD_HOST_SHUFFLE(shfl_xor, shfl_xor, int)

template <class M>
ROCMBUILD_HOST_FN unsigned long long __ballot_sync(M mask, int predicate,
                                                   rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    return uint32_t(vote_at(predicate != 0, Op::ballot, mask_of(mask), at));
}
ROCMBUILD_HOST_FN unsigned long long __ballot(int predicate,
                                              rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return uint32_t(rocmbuild_host::vote_at(predicate != 0, rocmbuild_host::Op::ballot, 0, at));
}
template <class M>
ROCMBUILD_HOST_FN int __any_sync(M mask, int predicate, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    return uint32_t(vote_at(predicate != 0, Op::any, mask_of(mask), at)) != 0;
}
ROCMBUILD_HOST_FN int __any(int predicate, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return uint32_t(rocmbuild_host::vote_at(predicate != 0, rocmbuild_host::Op::any, 0, at)) != 0;
}
template <class M>
ROCMBUILD_HOST_FN int __all_sync(M mask, int predicate, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    return uint32_t(vote_at(predicate == 0, Op::all, mask_of(mask), at)) == 0;
}
ROCMBUILD_HOST_FN int __all(int predicate, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return uint32_t(rocmbuild_host::vote_at(predicate == 0, rocmbuild_host::Op::all, 0, at)) == 0;
}
ROCMBUILD_HOST_FN unsigned long long __activemask(rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return rocmbuild_host::vote_at(true, rocmbuild_host::Op::activemask, 0, at) >> 32;
}
namespace rocmbuild_host {
template <class T>
ROCMBUILD_HOST_FN uint32_t match_any_at(T value, uint32_t mask, Site at) {
    static_assert(sizeof(T) <= 8, "a match takes up to 64 bits");
    uint64_t all[wave_size], bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    const uint32_t members = gather(bits, all, key_of(Op::match, mask, at.line), at.file, at.function);
    uint32_t same = 0;
    for (unsigned lane = 0; lane < wave_size; ++lane)
        same |= uint32_t(members >> lane & 1 && all[lane] == bits) << lane;
    return same;
}
template <class T>
ROCMBUILD_HOST_FN uint32_t match_all_at(T value, int* predicate, uint32_t mask, Site at) {
    static_assert(sizeof(T) <= 8, "a match takes up to 64 bits");
    uint64_t all[wave_size], bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    const uint32_t members = gather(bits, all, key_of(Op::match, mask, at.line), at.file, at.function);
    bool same = true;
    for (unsigned lane = 0; lane < wave_size; ++lane) same = same && (!(members >> lane & 1) || all[lane] == bits);
    *predicate = same;
    return same ? members : 0;
}
}  // namespace rocmbuild_host

template <class M, class T>
ROCMBUILD_HOST_FN unsigned long long __match_any_sync(M mask, T value,
                                                      rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return rocmbuild_host::match_any_at(value, rocmbuild_host::mask_of(mask), at);
}
template <class T>
ROCMBUILD_HOST_FN unsigned long long __match_any(T value, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return rocmbuild_host::match_any_at(value, 0, at);
}
template <class M, class T>
ROCMBUILD_HOST_FN unsigned long long __match_all_sync(M mask, T value, int* predicate,
                                                      rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return rocmbuild_host::match_all_at(value, predicate, rocmbuild_host::mask_of(mask), at);
}
template <class T>
ROCMBUILD_HOST_FN unsigned long long __match_all(T value, int* predicate,
                                                 rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return rocmbuild_host::match_all_at(value, predicate, 0, at);
}
#define ROCMBUILD_HOST_REDUCE(NAME, EXPRESSION)                                                                  \
    template <class M, class T>                                                                                  \
    ROCMBUILD_HOST_FN T __reduce_##NAME##_sync(M mask, T value,                                                  \
                                               rocmbuild_host::Site at = rocmbuild_host::Site::current()) {      \
        return rocmbuild_host::reduce_at(value, rocmbuild_host::mask_of(mask), at,                               \
                                         [](T a, T b) -> T { return EXPRESSION; });                              \
    }
ROCMBUILD_HOST_REDUCE(add, T(a + b))
ROCMBUILD_HOST_REDUCE(min, b < a ? b : a)
ROCMBUILD_HOST_REDUCE(max, a < b ? b : a)
ROCMBUILD_HOST_REDUCE(and, T(a & b))
ROCMBUILD_HOST_REDUCE(or, T(a | b))
ROCMBUILD_HOST_REDUCE(xor, T(a ^ b))

ROCMBUILD_HOST_FN unsigned __lane_id() { return rocmbuild_host::here().lane; }
ROCMBUILD_HOST_FN unsigned long long __lanemask_lt() { return (1ull << rocmbuild_host::here().lane) - 1; }
ROCMBUILD_HOST_FN unsigned long long __lanemask_eq() { return 1ull << rocmbuild_host::here().lane; }
ROCMBUILD_HOST_FN unsigned long long __lanemask_gt() { return 0xfffffffeull << rocmbuild_host::here().lane & 0xffffffffull; }

// ---- bits ----

ROCMBUILD_HOST_FN int __popc(unsigned x) { return __builtin_popcount(x); }
ROCMBUILD_HOST_FN int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
ROCMBUILD_HOST_FN int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
ROCMBUILD_HOST_FN int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
ROCMBUILD_HOST_FN int __ffs(int x) { return __builtin_ffs(x); }
ROCMBUILD_HOST_FN int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
ROCMBUILD_HOST_FN int __ffsll(long long x) { return __builtin_ffsll(x); }
ROCMBUILD_HOST_FN int __ffsll(unsigned long long x) { return __builtin_ffsll((long long)x); }
ROCMBUILD_HOST_FN unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
ROCMBUILD_HOST_FN unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
ROCMBUILD_HOST_FN unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return unsigned(((uint64_t(hi) << 32 | lo) << (shift & 31)) >> 32);
}
ROCMBUILD_HOST_FN unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return unsigned((uint64_t(hi) << 32 | lo) >> (shift & 31));
}
ROCMBUILD_HOST_FN unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned shift) {
    return shift >= 32 ? lo : __funnelshift_l(lo, hi, shift);
}
ROCMBUILD_HOST_FN unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
    return shift >= 32 ? hi : __funnelshift_r(lo, hi, shift);
}
ROCMBUILD_HOST_FN int __mul24(int x, int y) {
    return int(unsigned(int(unsigned(x) << 8) >> 8) * unsigned(int(unsigned(y) << 8) >> 8));
}
ROCMBUILD_HOST_FN unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffffu) * (y & 0xffffffu); }
ROCMBUILD_HOST_FN int __mulhi(int x, int y) { return int(int64_t(x) * y >> 32); }
ROCMBUILD_HOST_FN unsigned __umulhi(unsigned x, unsigned y) { return unsigned(uint64_t(x) * y >> 32); }
ROCMBUILD_HOST_FN long long __mul64hi(long long x, long long y) { return (long long)(__int128(x) * y >> 64); }
ROCMBUILD_HOST_FN unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
ROCMBUILD_HOST_FN unsigned __sad(int x, int y, unsigned z) { return unsigned(x > y ? unsigned(x) - unsigned(y) : unsigned(y) - unsigned(x)) + z; }
ROCMBUILD_HOST_FN unsigned __usad(unsigned x, unsigned y, unsigned z) { return (x > y ? x - y : y - x) + z; }

/// Bytes of y:x (x holds numbers 0-3), picked by the low three bits of each nibble; bit 3 repeats the byte's sign.
ROCMBUILD_HOST_FN unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = uint64_t(y) << 32 | x;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> (4 * i) & 15;
        unsigned byte = unsigned(both >> (8 * (nibble & 7))) & 255;
        if (nibble & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}

// ---- integer dot products and byte permutes: AMD's builtins by their own names, CUDA's as templates, so that a
//      project's own definition of the same name stands beside them ----

namespace rocmbuild_host {
ROCMBUILD_HOST_FN int byte_of(int value, bool is_signed, int index) {
    const unsigned byte = unsigned(value) >> (8 * index) & 255;
    return is_signed ? int(int8_t(byte)) : int(byte);
}
ROCMBUILD_HOST_FN int saturate(int64_t sum, bool clamp) {
    if (clamp && sum > INT32_MAX) return INT32_MAX;
    if (clamp && sum < INT32_MIN) return INT32_MIN;
    return int(uint32_t(uint64_t(sum)));
}
ROCMBUILD_HOST_FN int dot4(bool a_signed, int a, bool b_signed, int b, int c, bool clamp) {
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += byte_of(a, a_signed, i) * byte_of(b, b_signed, i);
    return saturate(int64_t(sum) + c, clamp);
}
}  // namespace rocmbuild_host

ROCMBUILD_HOST_FN int __builtin_amdgcn_sudot4(bool a_signed, int a, bool b_signed, int b, int c, bool clamp) {
    return rocmbuild_host::dot4(a_signed, a, b_signed, b, c, clamp);
}
ROCMBUILD_HOST_FN int __builtin_amdgcn_sdot4(int a, int b, int c, bool clamp) {
    return rocmbuild_host::dot4(true, a, true, b, c, clamp);
}
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_udot4(unsigned a, unsigned b, unsigned c, bool clamp) {
    uint64_t sum = c;
    for (int i = 0; i < 4; ++i) sum += uint64_t(a >> (8 * i) & 255) * (b >> (8 * i) & 255);
    return clamp && sum > 0xffffffffull ? 0xffffffffu : unsigned(sum);
}
/// v_perm_b32: selector bytes 0-3 pick from `low`, 4-7 from `high`, 8-11 the sign of a 16-bit half, 12 is 0, above is 255.
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_perm(unsigned high, unsigned low, unsigned selector) {
    const uint64_t both = uint64_t(high) << 32 | low;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned pick = selector >> (8 * i) & 255;
        unsigned byte = 255;
        if (pick <= 7)
            byte = unsigned(both >> (8 * pick)) & 255;
        else if (pick <= 11)
            byte = both >> (16 * (pick - 8) + 15) & 1 ? 255 : 0;
        else if (pick == 12)
            byte = 0;
        result |= byte << (8 * i);
    }
    return result;
}
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_alignbyte(unsigned high, unsigned low, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (8 * (shift & 3)));
}
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_alignbit(unsigned high, unsigned low, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_ubfe(unsigned x, unsigned offset, unsigned width) {
    width &= 31;
    return width == 0 ? 0 : x >> (offset & 31) & ((1u << width) - 1);
}
ROCMBUILD_HOST_FN int __builtin_amdgcn_sbfe(int x, unsigned offset, unsigned width) {
    const unsigned field = __builtin_amdgcn_ubfe(unsigned(x), offset, width);
    width &= 31;
    return width == 0 ? 0 : int(field << (32 - width)) >> (32 - width);
}
ROCMBUILD_HOST_FN int __builtin_amdgcn_readfirstlane(int value, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    uint64_t all[wave_size];
    const uint32_t members = gather(uint32_t(value), all, key_of(Op::readfirstlane, 0, at.line), at.file, at.function);
    return int(uint32_t(all[__builtin_ctz(members)]));
}
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_ballot_w32(bool predicate, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    return unsigned(__ballot(predicate, at));
}
ROCMBUILD_HOST_FN int __builtin_amdgcn_ds_bpermute(int address, int value, rocmbuild_host::Site at = rocmbuild_host::Site::current()) {
    using namespace rocmbuild_host;
    return from_lane(value, uint32_t(address) >> 2 & 31, Op::shfl, 0, at);
}
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_mbcnt_lo(unsigned mask, unsigned base) {
    return base + unsigned(__builtin_popcount(mask & unsigned(__lanemask_lt())));
}
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_mbcnt_hi(unsigned, unsigned base) { return base; }
ROCMBUILD_HOST_FN unsigned __builtin_amdgcn_wavefrontsize() { return 32; }
ROCMBUILD_HOST_FN void __builtin_amdgcn_s_barrier(rocmbuild_host::Site at = rocmbuild_host::Site::current()) { __syncthreads(at); }
ROCMBUILD_HOST_FN void __builtin_amdgcn_wave_barrier() {}
ROCMBUILD_HOST_FN void __builtin_amdgcn_s_sleep(int) {}
ROCMBUILD_HOST_FN float __builtin_amdgcn_rcpf(float x) { return 1.0f / x; }
ROCMBUILD_HOST_FN float __builtin_amdgcn_rsqf(float x) { return 1.0f / __builtin_sqrtf(x); }
ROCMBUILD_HOST_FN float __builtin_amdgcn_exp2f(float x) { return __builtin_exp2f(x); }
ROCMBUILD_HOST_FN float __builtin_amdgcn_logf(float x) { return __builtin_log2f(x); }
ROCMBUILD_HOST_FN float __builtin_amdgcn_fmed3f(float a, float b, float c) {
    return __builtin_fmaxf(__builtin_fminf(a, b), __builtin_fminf(__builtin_fmaxf(a, b), c));
}

template <class = void>
ROCMBUILD_HOST_FN int __dp4a(int a, int b, int c) {
    return rocmbuild_host::dot4(true, a, true, b, c, false);
}
template <class = void>
ROCMBUILD_HOST_FN unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return __builtin_amdgcn_udot4(a, b, c, false);
}
template <class = void>
ROCMBUILD_HOST_FN int __dp2a_lo(int a, int b, int c) {
    return rocmbuild_host::saturate(int64_t(int16_t(a)) * int8_t(b) + int64_t(int16_t(a >> 16)) * int8_t(b >> 8) + c, false);
}
template <class = void>
ROCMBUILD_HOST_FN int __dp2a_hi(int a, int b, int c) {
    return rocmbuild_host::saturate(int64_t(int16_t(a)) * int8_t(b >> 16) + int64_t(int16_t(a >> 16)) * int8_t(b >> 24) + c, false);
}

// ---- numbers ----

ROCMBUILD_HOST_FN int __float_as_int(float x) { return rocmbuild_host::bits_as<int>(x); }
ROCMBUILD_HOST_FN unsigned __float_as_uint(float x) { return rocmbuild_host::bits_as<unsigned>(x); }
ROCMBUILD_HOST_FN float __int_as_float(int x) { return rocmbuild_host::bits_as<float>(x); }
ROCMBUILD_HOST_FN float __uint_as_float(unsigned x) { return rocmbuild_host::bits_as<float>(x); }
ROCMBUILD_HOST_FN long long __double_as_longlong(double x) { return rocmbuild_host::bits_as<long long>(x); }
ROCMBUILD_HOST_FN double __longlong_as_double(long long x) { return rocmbuild_host::bits_as<double>(x); }
ROCMBUILD_HOST_FN int __double2hiint(double x) { return int(rocmbuild_host::bits_as<uint64_t>(x) >> 32); }
ROCMBUILD_HOST_FN int __double2loint(double x) { return int(uint32_t(rocmbuild_host::bits_as<uint64_t>(x))); }
ROCMBUILD_HOST_FN double __hiloint2double(int hi, int lo) {
    return rocmbuild_host::bits_as<double>(uint64_t(uint32_t(hi)) << 32 | uint32_t(lo));
}

namespace rocmbuild_host {
/// Conversion as the device does it: rounded first, then clamped to the target's range, NaN to 0.
template <class I, class F>
ROCMBUILD_HOST_FN I to_integer(F rounded) {
    constexpr F low = F(std::numeric_limits<I>::min());
    constexpr F above = F(uint64_t(1) << (std::numeric_limits<I>::digits - 1)) * F(2);
    if (rounded != rounded) return 0;
    if (rounded < low) return std::numeric_limits<I>::min();
    if (rounded >= above) return std::numeric_limits<I>::max();
    return I(rounded);
}
}  // namespace rocmbuild_host

#define ROCMBUILD_HOST_TO_INTEGER(FROM, F, TO, I, SUFFIX)                                                              \
    ROCMBUILD_HOST_FN I __##FROM##2##TO##_rn(F x) { return rocmbuild_host::to_integer<I>(__builtin_rint##SUFFIX(x)); }  \
    ROCMBUILD_HOST_FN I __##FROM##2##TO##_rz(F x) { return rocmbuild_host::to_integer<I>(__builtin_trunc##SUFFIX(x)); } \
    ROCMBUILD_HOST_FN I __##FROM##2##TO##_rd(F x) { return rocmbuild_host::to_integer<I>(__builtin_floor##SUFFIX(x)); } \
    ROCMBUILD_HOST_FN I __##FROM##2##TO##_ru(F x) { return rocmbuild_host::to_integer<I>(__builtin_ceil##SUFFIX(x)); }
ROCMBUILD_HOST_TO_INTEGER(float, float, int, int, f)
ROCMBUILD_HOST_TO_INTEGER(float, float, uint, unsigned, f)
ROCMBUILD_HOST_TO_INTEGER(float, float, ll, long long, f)
ROCMBUILD_HOST_TO_INTEGER(float, float, ull, unsigned long long, f)
ROCMBUILD_HOST_TO_INTEGER(double, double, int, int, )
ROCMBUILD_HOST_TO_INTEGER(double, double, uint, unsigned, )
ROCMBUILD_HOST_TO_INTEGER(double, double, ll, long long, )
ROCMBUILD_HOST_TO_INTEGER(double, double, ull, unsigned long long, )
ROCMBUILD_HOST_FN float __int2float_rn(int x) { return float(x); }
ROCMBUILD_HOST_FN float __uint2float_rn(unsigned x) { return float(x); }
ROCMBUILD_HOST_FN float __ll2float_rn(long long x) { return float(x); }
ROCMBUILD_HOST_FN float __ull2float_rn(unsigned long long x) { return float(x); }
ROCMBUILD_HOST_FN double __int2double_rn(int x) { return double(x); }
ROCMBUILD_HOST_FN double __uint2double_rn(unsigned x) { return double(x); }
ROCMBUILD_HOST_FN double __ll2double_rn(long long x) { return double(x); }
ROCMBUILD_HOST_FN float __double2float_rn(double x) { return float(x); }

ROCMBUILD_HOST_FN float __fadd_rn(float x, float y) { return x + y; }
ROCMBUILD_HOST_FN float __fsub_rn(float x, float y) { return x - y; }
ROCMBUILD_HOST_FN float __fmul_rn(float x, float y) { return x * y; }
ROCMBUILD_HOST_FN float __fdiv_rn(float x, float y) { return x / y; }
ROCMBUILD_HOST_FN float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
ROCMBUILD_HOST_FN float __frcp_rn(float x) { return 1.0f / x; }
ROCMBUILD_HOST_FN float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
ROCMBUILD_HOST_FN float __frsqrt_rn(float x) { return 1.0f / __builtin_sqrtf(x); }
ROCMBUILD_HOST_FN float __fdividef(float x, float y) { return x / y; }
ROCMBUILD_HOST_FN float fdividef(float x, float y) { return x / y; }
ROCMBUILD_HOST_FN float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
ROCMBUILD_HOST_FN double __dadd_rn(double x, double y) { return x + y; }
ROCMBUILD_HOST_FN double __dmul_rn(double x, double y) { return x * y; }
ROCMBUILD_HOST_FN double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
ROCMBUILD_HOST_FN float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
ROCMBUILD_HOST_FN double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
ROCMBUILD_HOST_FN float normcdff(float x) { return 0.5f * __builtin_erfcf(x * -0.70710678118654752f); }
// The C library's own header declares these names, so they cannot be functions here.
#define __expf(x) __builtin_expf(x)
#define __exp10f(x) __builtin_powf(10.0f, (x))
#define __logf(x) __builtin_logf(x)
#define __log2f(x) __builtin_log2f(x)
#define __log10f(x) __builtin_log10f(x)
#define __powf(x, y) __builtin_powf((x), (y))
#define __sinf(x) __builtin_sinf(x)
#define __cosf(x) __builtin_cosf(x)
#define __tanf(x) __builtin_tanf(x)
#define __sincosf(x, s, c) (*(s) = __builtin_sinf(x), *(c) = __builtin_cosf(x), void())

namespace rocmbuild_host {
template <class A, class B>
using common_number = typename std::enable_if<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value,
                                              std::common_type<A, B>>::type::type;
}
/// As on the device: of two floating numbers of which one is NaN, the other.
template <class A, class B>
constexpr rocmbuild_host::common_number<A, B> min(A a, B b) {
    using T = rocmbuild_host::common_number<A, B>;
    if constexpr (std::is_floating_point<T>::value) {
        if (T(a) != T(a)) return T(b);
        if (T(b) != T(b)) return T(a);
    }
    return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
constexpr rocmbuild_host::common_number<A, B> max(A a, B b) {
    using T = rocmbuild_host::common_number<A, B>;
    if constexpr (std::is_floating_point<T>::value) {
        if (T(a) != T(a)) return T(b);
        if (T(b) != T(b)) return T(a);
    }
    return T(a) < T(b) ? T(b) : T(a);
}

// ---- memory ----

template <class T>
ROCMBUILD_HOST_FN T __ldg(const T* p) { return *p; }
template <class T>
ROCMBUILD_HOST_FN T __ldcg(const T* p) { return *p; }
template <class T>
ROCMBUILD_HOST_FN T __ldca(const T* p) { return *p; }
template <class T>
ROCMBUILD_HOST_FN T __ldcs(const T* p) { return *p; }
template <class T>
ROCMBUILD_HOST_FN T __ldlu(const T* p) { return *p; }
template <class T>
ROCMBUILD_HOST_FN void __stcs(T* p, T v) { *p = v; }
template <class T>
ROCMBUILD_HOST_FN void __stcg(T* p, T v) { *p = v; }
template <class T>
ROCMBUILD_HOST_FN void __stwb(T* p, T v) { *p = v; }

ROCMBUILD_HOST_FN void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
ROCMBUILD_HOST_FN void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
ROCMBUILD_HOST_FN void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
ROCMBUILD_HOST_FN void __trap() { __builtin_trap(); }
ROCMBUILD_HOST_FN long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
ROCMBUILD_HOST_FN long long wall_clock64() { return (long long)__builtin_ia32_rdtsc(); }

// ---- atomics: real ones, since the blocks of a grid run on several threads ----

namespace rocmbuild_host {
/// The value before; `next(old)` gives the one after.
template <class T, class Next>
ROCMBUILD_HOST_FN T atomic_update(T* address, Next next) {
    using Bits = typename std::conditional<
        sizeof(T) == 8, uint64_t,
        typename std::conditional<sizeof(T) == 4, uint32_t, uint16_t>::type>::type;
    static_assert(sizeof(Bits) == sizeof(T), "atomics have 16, 32 or 64 bits");
    Bits* cell = reinterpret_cast<Bits*>(address);
    Bits old = __atomic_load_n(cell, __ATOMIC_RELAXED);
    for (;;) {
        const Bits after = bits_as<Bits>(T(next(bits_as<T>(old))));
        if (__atomic_compare_exchange_n(cell, &old, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return bits_as<T>(old);
    }
}
template <class T>
struct same_type {
    using type = T;
};
template <class T>
using same = typename same_type<T>::type;
template <class T, class R = T>
using if_integer = typename std::enable_if<std::is_integral<T>::value, R>::type;
}  // namespace rocmbuild_host

#define ROCMBUILD_HOST_ATOMIC_SCOPES(DEFINE) \
    DEFINE()                                 \
    DEFINE(_system)                          \
    DEFINE(_block)

#define ROCMBUILD_HOST_ATOMICS(SCOPE)                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN T atomicAdd##SCOPE(T* address, rocmbuild_host::same<T> value) {                                 \
        if constexpr (std::is_integral<T>::value)                                                                     \
            return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);                                              \
        else                                                                                                          \
            return rocmbuild_host::atomic_update(address, [=](T old) { return old + value; });                        \
    }                                                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN T atomicSub##SCOPE(T* address, rocmbuild_host::same<T> value) {                                 \
        if constexpr (std::is_integral<T>::value)                                                                     \
            return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);                                              \
        else                                                                                                          \
            return rocmbuild_host::atomic_update(address, [=](T old) { return old - value; });                        \
    }                                                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN T atomicMax##SCOPE(T* address, rocmbuild_host::same<T> value) {                                 \
        return rocmbuild_host::atomic_update(address, [=](T old) { return old < value ? value : old; });              \
    }                                                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN T atomicMin##SCOPE(T* address, rocmbuild_host::same<T> value) {                                 \
        return rocmbuild_host::atomic_update(address, [=](T old) { return value < old ? value : old; });              \
    }                                                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN T atomicExch##SCOPE(T* address, rocmbuild_host::same<T> value) {                                \
        return rocmbuild_host::atomic_update(address, [=](T) { return value; });                                      \
    }                                                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN T atomicCAS##SCOPE(T* address, rocmbuild_host::same<T> expected, rocmbuild_host::same<T> value) { \
        if constexpr (std::is_integral<T>::value) {                                                                   \
            __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);        \
            return expected;                                                                                          \
        } else {                                                                                                      \
            return rocmbuild_host::atomic_update(address, [=](T old) { return old == expected ? value : old; });      \
        }                                                                                                             \
    }                                                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN rocmbuild_host::if_integer<T> atomicAnd##SCOPE(T* address, rocmbuild_host::same<T> value) {     \
        return __atomic_fetch_and(address, value, __ATOMIC_RELAXED);                                                  \
    }                                                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN rocmbuild_host::if_integer<T> atomicOr##SCOPE(T* address, rocmbuild_host::same<T> value) {      \
        return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);                                                   \
    }                                                                                                                 \
    template <class T>                                                                                                \
    ROCMBUILD_HOST_FN rocmbuild_host::if_integer<T> atomicXor##SCOPE(T* address, rocmbuild_host::same<T> value) {     \
        return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED);                                                  \
    }                                                                                                                 \
    ROCMBUILD_HOST_FN unsigned atomicInc##SCOPE(unsigned* address, unsigned limit) {                                  \
        return rocmbuild_host::atomic_update(address, [=](unsigned old) { return old >= limit ? 0u : old + 1; });     \
    }                                                                                                                 \
    ROCMBUILD_HOST_FN unsigned atomicDec##SCOPE(unsigned* address, unsigned limit) {                                  \
        return rocmbuild_host::atomic_update(                                                                         \
            address, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });                        \
    }
ROCMBUILD_HOST_ATOMIC_SCOPES(ROCMBUILD_HOST_ATOMICS)

template <class T>
ROCMBUILD_HOST_FN T unsafeAtomicAdd(T* address, rocmbuild_host::same<T> value) { return atomicAdd(address, value); }
