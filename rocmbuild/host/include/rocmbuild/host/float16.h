// Conversions of the 16-bit formats, by integers alone: the same bits on every machine, whatever the float unit flushes.
#pragma once

#include <rocmbuild/host/intrinsics.h>

namespace rocmbuild_host {

/// f16 -> f32, exact; a NaN keeps its payload and is made quiet.
ROCMBUILD_HOST_FN float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 31;
    const uint32_t mantissa = half & 0x3ff;
    uint32_t bits;
    if (exponent == 31) {
        bits = 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
    } else if (exponent != 0) {
        bits = (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa != 0) {
        const uint32_t shift = uint32_t(__builtin_clz(mantissa)) - 21;  // brings the leading one to bit 10
        bits = (113 - shift) << 23 | (mantissa << shift & 0x3ff) << 13;
    } else {
        bits = 0;
    }
    return bits_as<float>(sign | bits);
}

/// f32 -> f16, to nearest, ties to even; overflow gives infinity, a NaN stays one and is made quiet.
ROCMBUILD_HOST_FN uint16_t float_to_half(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000) return uint16_t(sign | 0x7c00);  // 65536 and above; what rounds up to it comes below
    if (magnitude >= 0x38800000) {                                // normal from 2^-14 on
        const uint32_t rebased = magnitude - 0x38000000;
        return uint16_t(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
    }
    if (magnitude < 0x33000000) return sign;                        // below half of the least denormal
    const uint32_t shift = 126 - (magnitude >> 23);                 // 14 to 24
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    const uint32_t middle = 1u << (shift - 1);
    return uint16_t(sign | (kept + (rest > middle || (rest == middle && (kept & 1)))));
}

enum class Rounding { to_zero, down, up };

/// f32 -> f16 in another direction.
ROCMBUILD_HOST_FN uint16_t float_to_half(float value, Rounding rounding) {
    uint16_t half = float_to_half(value);
    if (value != value) return half;
    const float back = half_to_float(half);
    const bool negative = half & 0x8000;
    const bool towards_zero = rounding == Rounding::to_zero || (rounding == Rounding::down) != negative;
    if (back == value) return half;
    const bool is_larger = negative ? back < value : back > value;  // in magnitude
    if (towards_zero && is_larger) --half;
    if (!towards_zero && !is_larger) ++half;
    return half;
}

ROCMBUILD_HOST_FN float bfloat_to_float(uint16_t value) { return bits_as<float>(uint32_t(value) << 16); }

/// f32 -> bf16, to nearest, ties to even; a NaN stays one and is made quiet.
ROCMBUILD_HOST_FN uint16_t float_to_bfloat(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// f64 -> f32 rounded to odd: what is then rounded to a format of at most 22 bits is rounded as if once.
ROCMBUILD_HOST_FN float to_odd(double value) {
    const float near = float(value);
    if (value != value || double(near) == value) return near;
    uint32_t bits = bits_as<uint32_t>(near);
    if ((bits & 0x7fffffff) == 0x7f800000) return near;  // an overflow is one in the narrow format too
    const bool is_larger = (near < 0 ? -double(near) : double(near)) > (value < 0 ? -value : value);
    if (is_larger) --bits;
    return bits_as<float>(bits | 1);
}

/// x + y rounded to odd in f64.
ROCMBUILD_HOST_FN double add_to_odd(double x, double y) {
    const double sum = x + y;
    if (!(__builtin_fabs(sum) < __builtin_inf())) return sum;
    const double part = sum - x;
    const double error = (x - (sum - part)) + (y - part);
    uint64_t bits = bits_as<uint64_t>(sum);
    if (error == 0 || (bits & 1)) return sum;
    bits = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
    return bits_as<double>(bits);
}

}  // namespace rocmbuild_host
