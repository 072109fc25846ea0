// __hip_bfloat16 and __hip_bfloat162: storage of 16 bits, arithmetic in f32 rounded to nearest even, as HIP does it.
#pragma once

#include <hip/hip_common.h>
#include <hip/hip_vector_types.h>
#include <rocmbuild/host/float16.h>

struct alignas(2) __hip_bfloat16_raw {
    unsigned short x;
};
struct alignas(4) __hip_bfloat162_raw {
    unsigned short x, y;
};

struct alignas(2) __hip_bfloat16 {
    unsigned short __x;

    __hip_bfloat16() = default;
    constexpr __hip_bfloat16(const __hip_bfloat16_raw& raw) : __x(raw.x) {}
    template <class T, typename std::enable_if<std::is_arithmetic<T>::value, int>::type = 0>
    __hip_bfloat16(T value) : __x(from(value)) {}
    template <class T, typename std::enable_if<std::is_arithmetic<T>::value, int>::type = 0>
    __hip_bfloat16& operator=(T value) {
        __x = from(value);
        return *this;
    }

    constexpr operator __hip_bfloat16_raw() const { return __hip_bfloat16_raw{__x}; }
    operator float() const { return f(); }
    operator bool() const { return f() != 0.0f; }
    operator char() const { return static_cast<char>(f()); }
    operator signed char() const { return static_cast<signed char>(f()); }
    operator unsigned char() const { return static_cast<unsigned char>(f()); }
    operator short() const { return static_cast<short>(f()); }
    operator unsigned short() const { return static_cast<unsigned short>(f()); }
    operator int() const { return static_cast<int>(f()); }
    operator unsigned() const { return static_cast<unsigned>(f()); }
    operator long() const { return static_cast<long>(f()); }
    operator unsigned long() const { return static_cast<unsigned long>(f()); }
    operator long long() const { return static_cast<long long>(f()); }
    operator unsigned long long() const { return static_cast<unsigned long long>(f()); }

  private:
    float f() const { return rocmbuild_host::bfloat_to_float(__x); }
    template <class T>
    static unsigned short from(T value) {
        // bf16 has the range of f32, so what f32 would round is rounded to odd first.
        if constexpr (std::is_same<T, float>::value || (std::is_integral<T>::value && sizeof(T) <= 2))
            return rocmbuild_host::float_to_bfloat(static_cast<float>(value));
        else if constexpr (std::is_integral<T>::value && sizeof(T) == 8)
            return rocmbuild_host::float_to_bfloat(rocmbuild_host::to_odd(wide_to_odd(value)));
        else
            return rocmbuild_host::float_to_bfloat(rocmbuild_host::to_odd(static_cast<double>(value)));
    }
    template <class T>
    static double wide_to_odd(T value) {
        const double high = static_cast<double>(static_cast<int64_t>(value >> 32)) * 4294967296.0;
        const double low = static_cast<double>(static_cast<uint32_t>(value));
        if constexpr (std::is_unsigned<T>::value)
            return rocmbuild_host::add_to_odd(static_cast<double>(static_cast<uint32_t>(value >> 32)) * 4294967296.0, low);
        else
            return rocmbuild_host::add_to_odd(high, low);
    }
};
static_assert(sizeof(__hip_bfloat16) == 2 && std::is_trivially_default_constructible<__hip_bfloat16>::value,
              "may lie in shared memory");

struct alignas(4) __hip_bfloat162 {
    __hip_bfloat16 x, y;

    __hip_bfloat162() = default;
    constexpr __hip_bfloat162(const __hip_bfloat16& a, const __hip_bfloat16& b) : x(a), y(b) {}
    constexpr __hip_bfloat162(const __hip_bfloat162_raw& raw)
        : x(__hip_bfloat16_raw{raw.x}), y(__hip_bfloat16_raw{raw.y}) {}
    constexpr operator __hip_bfloat162_raw() const { return __hip_bfloat162_raw{x.__x, y.__x}; }
    operator float2() const { return float2{float(x), float(y)}; }
};
static_assert(sizeof(__hip_bfloat162) == 4 && std::is_trivially_default_constructible<__hip_bfloat162>::value,
              "may lie in shared memory");

#define HIPRT_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3F80U)
#define HIPRT_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000U)
#define HIPRT_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7F80U)
#define HIPRT_MAX_NORMAL_BF16 __ushort_as_bfloat16((unsigned short)0x7F7FU)
#define HIPRT_MIN_DENORM_BF16 __ushort_as_bfloat16((unsigned short)0x0001U)
#define HIPRT_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7FFFU)
#define HIPRT_NEG_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x8000U)

// ---- bits and parts ----
ROCMBUILD_HOST_FN short __bfloat16_as_short(__hip_bfloat16 x) { return static_cast<short>(x.__x); }
ROCMBUILD_HOST_FN unsigned short __bfloat16_as_ushort(__hip_bfloat16 x) { return x.__x; }
ROCMBUILD_HOST_FN __hip_bfloat16 __short_as_bfloat16(short x) { return __hip_bfloat16_raw{static_cast<unsigned short>(x)}; }
ROCMBUILD_HOST_FN __hip_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __hip_bfloat16_raw{x}; }
ROCMBUILD_HOST_FN __hip_bfloat162 make_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return __hip_bfloat162(x, y); }
ROCMBUILD_HOST_FN __hip_bfloat162 __bfloat162bfloat162(__hip_bfloat16 a) { return __hip_bfloat162(a, a); }
ROCMBUILD_HOST_FN __hip_bfloat162 __halves2bfloat162(__hip_bfloat16 a, __hip_bfloat16 b) { return __hip_bfloat162(a, b); }
ROCMBUILD_HOST_FN __hip_bfloat16 __low2bfloat16(__hip_bfloat162 a) { return a.x; }
ROCMBUILD_HOST_FN __hip_bfloat16 __high2bfloat16(__hip_bfloat162 a) { return a.y; }
ROCMBUILD_HOST_FN __hip_bfloat162 __low2bfloat162(__hip_bfloat162 a) { return __hip_bfloat162(a.x, a.x); }
ROCMBUILD_HOST_FN __hip_bfloat162 __high2bfloat162(__hip_bfloat162 a) { return __hip_bfloat162(a.y, a.y); }
ROCMBUILD_HOST_FN __hip_bfloat162 __lows2bfloat162(__hip_bfloat162 a, __hip_bfloat162 b) { return __hip_bfloat162(a.x, b.x); }
ROCMBUILD_HOST_FN __hip_bfloat162 __highs2bfloat162(__hip_bfloat162 a, __hip_bfloat162 b) { return __hip_bfloat162(a.y, b.y); }
ROCMBUILD_HOST_FN __hip_bfloat162 __lowhigh2highlow(__hip_bfloat162 a) { return __hip_bfloat162(a.y, a.x); }

// ---- conversions ----
ROCMBUILD_HOST_FN float __bfloat162float(__hip_bfloat16 x) { return rocmbuild_host::bfloat_to_float(x.__x); }
ROCMBUILD_HOST_FN __hip_bfloat16 __float2bfloat16(float x) { return __hip_bfloat16_raw{rocmbuild_host::float_to_bfloat(x)}; }
ROCMBUILD_HOST_FN __hip_bfloat16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }
ROCMBUILD_HOST_FN __hip_bfloat16 __double2bfloat16(double x) { return __hip_bfloat16(x); }
ROCMBUILD_HOST_FN __hip_bfloat16 __int2bfloat16_rn(int x) { return __hip_bfloat16(x); }
ROCMBUILD_HOST_FN __hip_bfloat162 __float2bfloat162_rn(float x) { return __bfloat162bfloat162(__float2bfloat16(x)); }
ROCMBUILD_HOST_FN __hip_bfloat162 __floats2bfloat162_rn(float x, float y) { return __hip_bfloat162(__float2bfloat16(x), __float2bfloat16(y)); }
ROCMBUILD_HOST_FN __hip_bfloat162 __float22bfloat162_rn(float2 a) { return __floats2bfloat162_rn(a.x, a.y); }
ROCMBUILD_HOST_FN float2 __bfloat1622float2(__hip_bfloat162 a) { return float2{__bfloat162float(a.x), __bfloat162float(a.y)}; }
ROCMBUILD_HOST_FN float __low2float(__hip_bfloat162 a) { return __bfloat162float(a.x); }
ROCMBUILD_HOST_FN float __high2float(__hip_bfloat162 a) { return __bfloat162float(a.y); }

// ---- arithmetic ----
ROCMBUILD_HOST_FN bool __hisnan(__hip_bfloat16 x) { return (x.__x & 0x7fff) > 0x7f80; }
ROCMBUILD_HOST_FN int __hisinf(__hip_bfloat16 x) { return x.__x == 0x7f80 ? 1 : x.__x == 0xff80 ? -1 : 0; }
#define ROCMBUILD_HOST_BFLOAT_OPERATOR(OP)                                                                                   \
    ROCMBUILD_HOST_FN __hip_bfloat16 operator OP(const __hip_bfloat16& a, const __hip_bfloat16& b) {                         \
        return __float2bfloat16(__bfloat162float(a) OP __bfloat162float(b));                                                 \
    }                                                                                                                        \
    ROCMBUILD_HOST_FN __hip_bfloat16& operator OP##=(__hip_bfloat16& a, const __hip_bfloat16& b) { return a = a OP b; }      \
    ROCMBUILD_HOST_FN __hip_bfloat162 operator OP(const __hip_bfloat162& a, const __hip_bfloat162& b) {                      \
        return __hip_bfloat162(a.x OP b.x, a.y OP b.y);                                                                      \
    }                                                                                                                        \
    ROCMBUILD_HOST_FN __hip_bfloat162& operator OP##=(__hip_bfloat162& a, const __hip_bfloat162& b) { return a = a OP b; }
ROCMBUILD_HOST_BFLOAT_OPERATOR(+)
ROCMBUILD_HOST_BFLOAT_OPERATOR(-)
ROCMBUILD_HOST_BFLOAT_OPERATOR(*)
ROCMBUILD_HOST_BFLOAT_OPERATOR(/)
ROCMBUILD_HOST_FN __hip_bfloat16 operator+(const __hip_bfloat16& a) { return a; }
ROCMBUILD_HOST_FN __hip_bfloat16 operator-(const __hip_bfloat16& a) { return __hip_bfloat16_raw{static_cast<unsigned short>(a.__x ^ 0x8000)}; }
ROCMBUILD_HOST_FN __hip_bfloat162 operator-(const __hip_bfloat162& a) { return __hip_bfloat162(-a.x, -a.y); }
ROCMBUILD_HOST_FN __hip_bfloat16 __hadd(__hip_bfloat16 a, __hip_bfloat16 b) { return a + b; }
ROCMBUILD_HOST_FN __hip_bfloat16 __hsub(__hip_bfloat16 a, __hip_bfloat16 b) { return a - b; }
ROCMBUILD_HOST_FN __hip_bfloat16 __hmul(__hip_bfloat16 a, __hip_bfloat16 b) { return a * b; }
ROCMBUILD_HOST_FN __hip_bfloat16 __hdiv(__hip_bfloat16 a, __hip_bfloat16 b) { return a / b; }
ROCMBUILD_HOST_FN __hip_bfloat16 __hneg(__hip_bfloat16 a) { return -a; }
ROCMBUILD_HOST_FN __hip_bfloat16 __habs(__hip_bfloat16 a) { return __hip_bfloat16_raw{static_cast<unsigned short>(a.__x & 0x7fff)}; }
ROCMBUILD_HOST_FN __hip_bfloat16 __hfma(__hip_bfloat16 a, __hip_bfloat16 b, __hip_bfloat16 c) {
    return __float2bfloat16(__builtin_fmaf(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
ROCMBUILD_HOST_FN __hip_bfloat162 __hadd2(__hip_bfloat162 a, __hip_bfloat162 b) { return a + b; }
ROCMBUILD_HOST_FN __hip_bfloat162 __hsub2(__hip_bfloat162 a, __hip_bfloat162 b) { return a - b; }
ROCMBUILD_HOST_FN __hip_bfloat162 __hmul2(__hip_bfloat162 a, __hip_bfloat162 b) { return a * b; }
ROCMBUILD_HOST_FN __hip_bfloat162 __h2div(__hip_bfloat162 a, __hip_bfloat162 b) { return a / b; }
ROCMBUILD_HOST_FN __hip_bfloat162 __hneg2(__hip_bfloat162 a) { return -a; }
ROCMBUILD_HOST_FN __hip_bfloat162 __habs2(__hip_bfloat162 a) { return __hip_bfloat162(__habs(a.x), __habs(a.y)); }
ROCMBUILD_HOST_FN __hip_bfloat162 __hfma2(__hip_bfloat162 a, __hip_bfloat162 b, __hip_bfloat162 c) {
    return __hip_bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

// ---- comparisons ----
#define ROCMBUILD_HOST_BFLOAT_COMPARE(NAME, OP, INVERSE)                                                                       \
    ROCMBUILD_HOST_FN bool operator OP(const __hip_bfloat16& a, const __hip_bfloat16& b) {                                     \
        return __bfloat162float(a) OP __bfloat162float(b);                                                                     \
    }                                                                                                                          \
    ROCMBUILD_HOST_FN bool __h##NAME(__hip_bfloat16 a, __hip_bfloat16 b) { return __bfloat162float(a) OP __bfloat162float(b); } \
    ROCMBUILD_HOST_FN bool __h##NAME##u(__hip_bfloat16 a, __hip_bfloat16 b) {                                                  \
        return !(__bfloat162float(a) INVERSE __bfloat162float(b)) || __hisnan(a) || __hisnan(b);                               \
    }                                                                                                                          \
    ROCMBUILD_HOST_FN __hip_bfloat162 __h##NAME##2(__hip_bfloat162 a, __hip_bfloat162 b) {                                     \
        return __hip_bfloat162(__hip_bfloat16(int(__h##NAME(a.x, b.x))), __hip_bfloat16(int(__h##NAME(a.y, b.y))));            \
    }                                                                                                                          \
    ROCMBUILD_HOST_FN bool __hb##NAME##2(__hip_bfloat162 a, __hip_bfloat162 b) { return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y); }
ROCMBUILD_HOST_BFLOAT_COMPARE(eq, ==, !=)
ROCMBUILD_HOST_BFLOAT_COMPARE(ne, !=, ==)
ROCMBUILD_HOST_BFLOAT_COMPARE(lt, <, >=)
ROCMBUILD_HOST_BFLOAT_COMPARE(le, <=, >)
ROCMBUILD_HOST_BFLOAT_COMPARE(gt, >, <=)
ROCMBUILD_HOST_BFLOAT_COMPARE(ge, >=, <)
ROCMBUILD_HOST_FN bool operator==(const __hip_bfloat162& a, const __hip_bfloat162& b) { return a.x == b.x && a.y == b.y; }
ROCMBUILD_HOST_FN bool operator!=(const __hip_bfloat162& a, const __hip_bfloat162& b) { return !(a == b); }
ROCMBUILD_HOST_FN __hip_bfloat16 __hmax(__hip_bfloat16 a, __hip_bfloat16 b) {
    if (__hisnan(a)) return __hisnan(b) ? HIPRT_NAN_BF16 : b;
    return __hisnan(b) || a > b ? a : b;
}
ROCMBUILD_HOST_FN __hip_bfloat16 __hmin(__hip_bfloat16 a, __hip_bfloat16 b) {
    if (__hisnan(a)) return __hisnan(b) ? HIPRT_NAN_BF16 : b;
    return __hisnan(b) || !(a > b) ? a : b;
}
ROCMBUILD_HOST_FN __hip_bfloat162 __hmax2(__hip_bfloat162 a, __hip_bfloat162 b) { return __hip_bfloat162(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
ROCMBUILD_HOST_FN __hip_bfloat162 __hmin2(__hip_bfloat162 a, __hip_bfloat162 b) { return __hip_bfloat162(__hmin(a.x, b.x), __hmin(a.y, b.y)); }

// ---- functions ----
#define ROCMBUILD_HOST_BFLOAT_FUNCTION(NAME, EXPRESSION)              \
    ROCMBUILD_HOST_FN __hip_bfloat16 h##NAME(__hip_bfloat16 h) {      \
        const float x = __bfloat162float(h);                          \
        return __float2bfloat16(EXPRESSION);                          \
    }                                                                 \
    ROCMBUILD_HOST_FN __hip_bfloat162 h2##NAME(__hip_bfloat162 a) { return __hip_bfloat162(h##NAME(a.x), h##NAME(a.y)); }
ROCMBUILD_HOST_BFLOAT_FUNCTION(trunc, __builtin_truncf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(ceil, __builtin_ceilf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(floor, __builtin_floorf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(rint, __builtin_rintf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(sin, __builtin_sinf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(cos, __builtin_cosf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(exp, __builtin_expf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(exp2, __builtin_exp2f(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(exp10, __builtin_powf(10.0f, x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(log, __builtin_logf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(log2, __builtin_log2f(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(log10, __builtin_log10f(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(rcp, 1.0f / x)
ROCMBUILD_HOST_BFLOAT_FUNCTION(sqrt, __builtin_sqrtf(x))
ROCMBUILD_HOST_BFLOAT_FUNCTION(rsqrt, 1.0f / __builtin_sqrtf(x))
