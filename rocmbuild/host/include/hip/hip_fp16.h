// __half and __half2: storage of 16 bits, arithmetic through f32 (exact enough to round as if once) or f64 for fma.
#pragma once

#include <hip/hip_common.h>
#include <hip/hip_vector_types.h>
#include <rocmbuild/host/float16.h>

struct __half_raw {
    unsigned short x;
};
struct __half2_raw {
    unsigned short x, y;
};

struct __half {
    unsigned short __x;

    __half() = default;
    constexpr __half(const __half_raw& raw) : __x(raw.x) {}
    template <class T, typename std::enable_if<std::is_arithmetic<T>::value, int>::type = 0>
    __half(T value) : __x(from(value)) {}

    constexpr operator __half_raw() const { return __half_raw{__x}; }
    template <class T, typename std::enable_if<std::is_arithmetic<T>::value, int>::type = 0>
    operator T() const {
        return static_cast<T>(rocmbuild_host::half_to_float(__x));
    }

    __half& operator=(const __half&) = default;
    template <class T, typename std::enable_if<std::is_arithmetic<T>::value, int>::type = 0>
    __half& operator=(T value) {
        __x = from(value);
        return *this;
    }
    __half& operator+=(const __half& other) { return *this = *this + other; }
    __half& operator-=(const __half& other) { return *this = *this - other; }
    __half& operator*=(const __half& other) { return *this = *this * other; }
    __half& operator/=(const __half& other) { return *this = *this / other; }
    __half& operator++() { return *this += __half(1); }
    __half& operator--() { return *this -= __half(1); }
    __half operator++(int) {
        const __half before = *this;
        ++*this;
        return before;
    }
    __half operator--(int) {
        const __half before = *this;
        --*this;
        return before;
    }
    __half operator+() const { return *this; }
    __half operator-() const { return __half_raw{static_cast<unsigned short>(__x ^ 0x8000)}; }

    friend __half operator+(const __half& a, const __half& b) { return of(a.f() + b.f()); }
    friend __half operator-(const __half& a, const __half& b) { return of(a.f() - b.f()); }
    friend __half operator*(const __half& a, const __half& b) { return of(a.f() * b.f()); }
    friend __half operator/(const __half& a, const __half& b) { return of(a.f() / b.f()); }
    friend bool operator==(const __half& a, const __half& b) { return a.f() == b.f(); }
    friend bool operator!=(const __half& a, const __half& b) { return a.f() != b.f(); }
    friend bool operator<(const __half& a, const __half& b) { return a.f() < b.f(); }
    friend bool operator>(const __half& a, const __half& b) { return a.f() > b.f(); }
    friend bool operator<=(const __half& a, const __half& b) { return a.f() <= b.f(); }
    friend bool operator>=(const __half& a, const __half& b) { return a.f() >= b.f(); }

  private:
    float f() const { return rocmbuild_host::half_to_float(__x); }
    static __half of(float value) { return __half_raw{rocmbuild_host::float_to_half(value)}; }
    template <class T>
    static unsigned short from(T value) {
        // Integers of up to 24 bits are exact in f32, and larger ones are infinite in f16 either way.
        if constexpr (std::is_same<T, double>::value || std::is_same<T, long double>::value)
            return rocmbuild_host::float_to_half(rocmbuild_host::to_odd(static_cast<double>(value)));
        else
            return rocmbuild_host::float_to_half(static_cast<float>(value));
    }
};
static_assert(sizeof(__half) == 2 && std::is_trivially_default_constructible<__half>::value, "may lie in shared memory");

struct alignas(4) __half2 {
    __half x, y;

    __half2() = default;
    constexpr __half2(const __half& a, const __half& b) : x(a), y(b) {}
    constexpr __half2(const __half2_raw& raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
    constexpr operator __half2_raw() const { return __half2_raw{x.__x, y.__x}; }

    __half2& operator+=(const __half2& other) { return *this = *this + other; }
    __half2& operator-=(const __half2& other) { return *this = *this - other; }
    __half2& operator*=(const __half2& other) { return *this = *this * other; }
    __half2& operator/=(const __half2& other) { return *this = *this / other; }
    __half2 operator+() const { return *this; }
    __half2 operator-() const { return __half2(-x, -y); }
    friend __half2 operator+(const __half2& a, const __half2& b) { return __half2(a.x + b.x, a.y + b.y); }
    friend __half2 operator-(const __half2& a, const __half2& b) { return __half2(a.x - b.x, a.y - b.y); }
    friend __half2 operator*(const __half2& a, const __half2& b) { return __half2(a.x * b.x, a.y * b.y); }
    friend __half2 operator/(const __half2& a, const __half2& b) { return __half2(a.x / b.x, a.y / b.y); }
    friend bool operator==(const __half2& a, const __half2& b) { return a.x == b.x && a.y == b.y; }
    friend bool operator!=(const __half2& a, const __half2& b) { return !(a == b); }
};
static_assert(sizeof(__half2) == 4 && std::is_trivially_default_constructible<__half2>::value, "may lie in shared memory");

using half = __half;
using half2 = __half2;

#define HIPRT_INF_FP16 __ushort_as_half(0x7C00U)
#define HIPRT_MAX_NORMAL_FP16 __ushort_as_half(0x7BFFU)
#define HIPRT_MIN_DENORM_FP16 __ushort_as_half(0x0001U)
#define HIPRT_NAN_FP16 __ushort_as_half(0x7FFFU)
#define HIPRT_NEG_ZERO_FP16 __ushort_as_half(0x8000U)
#define HIPRT_ONE_FP16 __ushort_as_half(0x3C00U)
#define HIPRT_ZERO_FP16 __ushort_as_half(0x0000U)

// ---- bits and parts ----
ROCMBUILD_HOST_FN short __half_as_short(__half x) { return static_cast<short>(x.__x); }
ROCMBUILD_HOST_FN unsigned short __half_as_ushort(__half x) { return x.__x; }
ROCMBUILD_HOST_FN __half __short_as_half(short x) { return __half_raw{static_cast<unsigned short>(x)}; }
ROCMBUILD_HOST_FN __half __ushort_as_half(unsigned short x) { return __half_raw{x}; }
ROCMBUILD_HOST_FN __half2 make_half2(__half x, __half y) { return __half2(x, y); }
ROCMBUILD_HOST_FN __half __low2half(__half2 a) { return a.x; }
ROCMBUILD_HOST_FN __half __high2half(__half2 a) { return a.y; }
ROCMBUILD_HOST_FN __half2 __half2half2(__half a) { return __half2(a, a); }
ROCMBUILD_HOST_FN __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
ROCMBUILD_HOST_FN __half2 __low2half2(__half2 a) { return __half2(a.x, a.x); }
ROCMBUILD_HOST_FN __half2 __high2half2(__half2 a) { return __half2(a.y, a.y); }
ROCMBUILD_HOST_FN __half2 __lows2half2(__half2 a, __half2 b) { return __half2(a.x, b.x); }
ROCMBUILD_HOST_FN __half2 __highs2half2(__half2 a, __half2 b) { return __half2(a.y, b.y); }
ROCMBUILD_HOST_FN __half2 __lowhigh2highlow(__half2 a) { return __half2(a.y, a.x); }

// ---- conversions ----
ROCMBUILD_HOST_FN float __half2float(__half x) { return rocmbuild_host::half_to_float(x.__x); }
ROCMBUILD_HOST_FN __half __float2half(float x) { return __half_raw{rocmbuild_host::float_to_half(x)}; }
ROCMBUILD_HOST_FN __half __float2half_rn(float x) { return __float2half(x); }
ROCMBUILD_HOST_FN __half __float2half_rz(float x) { return __half_raw{rocmbuild_host::float_to_half(x, rocmbuild_host::Rounding::to_zero)}; }
ROCMBUILD_HOST_FN __half __float2half_rd(float x) { return __half_raw{rocmbuild_host::float_to_half(x, rocmbuild_host::Rounding::down)}; }
ROCMBUILD_HOST_FN __half __float2half_ru(float x) { return __half_raw{rocmbuild_host::float_to_half(x, rocmbuild_host::Rounding::up)}; }
ROCMBUILD_HOST_FN __half __double2half(double x) { return __half(x); }
ROCMBUILD_HOST_FN __half2 __float2half2_rn(float x) { return __half2half2(__float2half(x)); }
ROCMBUILD_HOST_FN __half2 __floats2half2_rn(float x, float y) { return __half2(__float2half(x), __float2half(y)); }
ROCMBUILD_HOST_FN __half2 __float22half2_rn(float2 a) { return __floats2half2_rn(a.x, a.y); }
ROCMBUILD_HOST_FN float __low2float(__half2 a) { return __half2float(a.x); }
ROCMBUILD_HOST_FN float __high2float(__half2 a) { return __half2float(a.y); }
ROCMBUILD_HOST_FN float2 __half22float2(__half2 a) { return float2{__half2float(a.x), __half2float(a.y)}; }
#define ROCMBUILD_HOST_HALF_INTEGER(NAME, I)                                                                          \
    ROCMBUILD_HOST_FN I __half2##NAME##_rn(__half x) { return rocmbuild_host::to_integer<I>(__builtin_rintf(__half2float(x))); }  \
    ROCMBUILD_HOST_FN I __half2##NAME##_rz(__half x) { return rocmbuild_host::to_integer<I>(__builtin_truncf(__half2float(x))); } \
    ROCMBUILD_HOST_FN I __half2##NAME##_rd(__half x) { return rocmbuild_host::to_integer<I>(__builtin_floorf(__half2float(x))); } \
    ROCMBUILD_HOST_FN I __half2##NAME##_ru(__half x) { return rocmbuild_host::to_integer<I>(__builtin_ceilf(__half2float(x))); }  \
    ROCMBUILD_HOST_FN __half __##NAME##2half_rn(I x) { return __half(x); }
ROCMBUILD_HOST_HALF_INTEGER(short, short)
ROCMBUILD_HOST_HALF_INTEGER(ushort, unsigned short)
ROCMBUILD_HOST_HALF_INTEGER(int, int)
ROCMBUILD_HOST_HALF_INTEGER(uint, unsigned)
ROCMBUILD_HOST_HALF_INTEGER(ll, long long)
ROCMBUILD_HOST_HALF_INTEGER(ull, unsigned long long)

// ---- arithmetic ----
ROCMBUILD_HOST_FN bool __hisnan(__half x) { return (x.__x & 0x7fff) > 0x7c00; }
ROCMBUILD_HOST_FN int __hisinf(__half x) { return x.__x == 0x7c00 ? 1 : x.__x == 0xfc00 ? -1 : 0; }
ROCMBUILD_HOST_FN __half __hadd(__half a, __half b) { return a + b; }
ROCMBUILD_HOST_FN __half __hsub(__half a, __half b) { return a - b; }
ROCMBUILD_HOST_FN __half __hmul(__half a, __half b) { return a * b; }
ROCMBUILD_HOST_FN __half __hdiv(__half a, __half b) { return a / b; }
ROCMBUILD_HOST_FN __half __hadd_rn(__half a, __half b) { return a + b; }
ROCMBUILD_HOST_FN __half __hsub_rn(__half a, __half b) { return a - b; }
ROCMBUILD_HOST_FN __half __hmul_rn(__half a, __half b) { return a * b; }
ROCMBUILD_HOST_FN __half __hneg(__half a) { return -a; }
ROCMBUILD_HOST_FN __half __habs(__half a) { return __half_raw{static_cast<unsigned short>(a.__x & 0x7fff)}; }
/// a * b + c, rounded once.
ROCMBUILD_HOST_FN __half __hfma(__half a, __half b, __half c) {
    const double product = double(__half2float(a)) * double(__half2float(b));
    return __half_raw{rocmbuild_host::float_to_half(
        rocmbuild_host::to_odd(rocmbuild_host::add_to_odd(product, double(__half2float(c)))))};
}
namespace rocmbuild_host {
ROCMBUILD_HOST_FN __half clamp_01(__half x) {
    const float value = __half2float(x);
    return value > 0.0f ? (value < 1.0f ? x : __half(1)) : __half(0);
}
}  // namespace rocmbuild_host
ROCMBUILD_HOST_FN __half __hadd_sat(__half a, __half b) { return rocmbuild_host::clamp_01(a + b); }
ROCMBUILD_HOST_FN __half __hsub_sat(__half a, __half b) { return rocmbuild_host::clamp_01(a - b); }
ROCMBUILD_HOST_FN __half __hmul_sat(__half a, __half b) { return rocmbuild_host::clamp_01(a * b); }
ROCMBUILD_HOST_FN __half __hfma_sat(__half a, __half b, __half c) { return rocmbuild_host::clamp_01(__hfma(a, b, c)); }
ROCMBUILD_HOST_FN __half __hmax(__half a, __half b) {
    if (__hisnan(a)) return __hisnan(b) ? HIPRT_NAN_FP16 : b;
    return __hisnan(b) || a > b ? a : b;
}
ROCMBUILD_HOST_FN __half __hmin(__half a, __half b) {
    if (__hisnan(a)) return __hisnan(b) ? HIPRT_NAN_FP16 : b;
    return __hisnan(b) || !(a > b) ? a : b;
}
ROCMBUILD_HOST_FN __half __hmax_nan(__half a, __half b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmax(a, b); }
ROCMBUILD_HOST_FN __half __hmin_nan(__half a, __half b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmin(a, b); }

ROCMBUILD_HOST_FN __half2 __hadd2(__half2 a, __half2 b) { return a + b; }
ROCMBUILD_HOST_FN __half2 __hsub2(__half2 a, __half2 b) { return a - b; }
ROCMBUILD_HOST_FN __half2 __hmul2(__half2 a, __half2 b) { return a * b; }
ROCMBUILD_HOST_FN __half2 __h2div(__half2 a, __half2 b) { return a / b; }
ROCMBUILD_HOST_FN __half2 __hneg2(__half2 a) { return -a; }
ROCMBUILD_HOST_FN __half2 __habs2(__half2 a) { return __half2(__habs(a.x), __habs(a.y)); }
ROCMBUILD_HOST_FN __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
ROCMBUILD_HOST_FN __half2 __hmax2(__half2 a, __half2 b) { return __half2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
ROCMBUILD_HOST_FN __half2 __hmin2(__half2 a, __half2 b) { return __half2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }
ROCMBUILD_HOST_FN float amd_mixed_dot(__half2 a, __half2 b, float c, bool saturate) {
    const float dot = __half2float(a.x) * __half2float(b.x) + __half2float(a.y) * __half2float(b.y) + c;
    return saturate ? __saturatef(dot) : dot;
}

// ---- comparisons: plain ones are false for NaN, those ending in u true; the 2 forms give 1 or 0 a lane, b2 both ----
#define ROCMBUILD_HOST_HALF_COMPARE(NAME, OP, INVERSE)                                                                 \
    ROCMBUILD_HOST_FN bool __h##NAME(__half a, __half b) { return a OP b; }                                            \
    ROCMBUILD_HOST_FN bool __h##NAME##u(__half a, __half b) { return !(a INVERSE b) || __hisnan(a) || __hisnan(b); }   \
    ROCMBUILD_HOST_FN __half2 __h##NAME##2(__half2 a, __half2 b) { return __half2(__half(int(a.x OP b.x)), __half(int(a.y OP b.y))); } \
    ROCMBUILD_HOST_FN bool __hb##NAME##2(__half2 a, __half2 b) { return a.x OP b.x && a.y OP b.y; }
ROCMBUILD_HOST_HALF_COMPARE(eq, ==, !=)
ROCMBUILD_HOST_HALF_COMPARE(ne, !=, ==)
ROCMBUILD_HOST_HALF_COMPARE(lt, <, >=)
ROCMBUILD_HOST_HALF_COMPARE(le, <=, >)
ROCMBUILD_HOST_HALF_COMPARE(gt, >, <=)
ROCMBUILD_HOST_HALF_COMPARE(ge, >=, <)

// ---- functions ----
#define ROCMBUILD_HOST_HALF_FUNCTION(NAME, EXPRESSION)                            \
    ROCMBUILD_HOST_FN __half h##NAME(__half h) {                                  \
        const float x = __half2float(h);                                          \
        return __float2half(EXPRESSION);                                          \
    }                                                                             \
    ROCMBUILD_HOST_FN __half2 h2##NAME(__half2 a) { return __half2(h##NAME(a.x), h##NAME(a.y)); }
ROCMBUILD_HOST_HALF_FUNCTION(trunc, __builtin_truncf(x))
ROCMBUILD_HOST_HALF_FUNCTION(ceil, __builtin_ceilf(x))
ROCMBUILD_HOST_HALF_FUNCTION(floor, __builtin_floorf(x))
ROCMBUILD_HOST_HALF_FUNCTION(rint, __builtin_rintf(x))
ROCMBUILD_HOST_HALF_FUNCTION(sin, __builtin_sinf(x))
ROCMBUILD_HOST_HALF_FUNCTION(cos, __builtin_cosf(x))
ROCMBUILD_HOST_HALF_FUNCTION(exp, __builtin_expf(x))
ROCMBUILD_HOST_HALF_FUNCTION(exp2, __builtin_exp2f(x))
ROCMBUILD_HOST_HALF_FUNCTION(exp10, __builtin_powf(10.0f, x))
ROCMBUILD_HOST_HALF_FUNCTION(log, __builtin_logf(x))
ROCMBUILD_HOST_HALF_FUNCTION(log2, __builtin_log2f(x))
ROCMBUILD_HOST_HALF_FUNCTION(log10, __builtin_log10f(x))
ROCMBUILD_HOST_HALF_FUNCTION(rcp, 1.0f / x)
ROCMBUILD_HOST_HALF_FUNCTION(sqrt, __builtin_sqrtf(x))
ROCMBUILD_HOST_HALF_FUNCTION(rsqrt, 1.0f / __builtin_sqrtf(x))
