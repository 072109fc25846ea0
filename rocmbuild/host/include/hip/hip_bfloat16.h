// hip_bfloat16, HIP's older type of the same format: made from f32 explicitly only.
#pragma once

#include <hip/hip_common.h>
#include <rocmbuild/host/float16.h>

struct hip_bfloat16 {
    enum truncate_t { truncate };

    unsigned short data;

    hip_bfloat16() = default;
    explicit hip_bfloat16(float value) : data(rocmbuild_host::float_to_bfloat(value)) {}
    explicit hip_bfloat16(float value, truncate_t) : data(truncated(value)) {}
    operator float() const { return rocmbuild_host::bfloat_to_float(data); }
    hip_bfloat16& operator=(const float& value) {
        data = rocmbuild_host::float_to_bfloat(value);
        return *this;
    }
    static hip_bfloat16 round_to_bfloat16(float value) { return hip_bfloat16(value); }
    static hip_bfloat16 round_to_bfloat16(float value, truncate_t) { return hip_bfloat16(value, truncate); }

  private:
    static unsigned short truncated(float value) {
        const uint32_t bits = rocmbuild_host::bits_as<uint32_t>(value);
        const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
        return static_cast<unsigned short>(bits >> 16 | (is_nan ? 1 : 0));
    }
};
static_assert(sizeof(hip_bfloat16) == 2 && std::is_trivially_default_constructible<hip_bfloat16>::value,
              "may lie in shared memory");

ROCMBUILD_HOST_FN hip_bfloat16 operator+(hip_bfloat16 a) { return a; }
ROCMBUILD_HOST_FN hip_bfloat16 operator-(hip_bfloat16 a) {
    a.data ^= 0x8000;
    return a;
}
#define ROCMBUILD_HOST_OLD_BFLOAT_OPERATOR(OP)                                                                   \
    ROCMBUILD_HOST_FN hip_bfloat16 operator OP(hip_bfloat16 a, hip_bfloat16 b) { return hip_bfloat16(float(a) OP float(b)); } \
    ROCMBUILD_HOST_FN hip_bfloat16& operator OP##=(hip_bfloat16& a, hip_bfloat16 b) { return a = a OP b; }
ROCMBUILD_HOST_OLD_BFLOAT_OPERATOR(+)
ROCMBUILD_HOST_OLD_BFLOAT_OPERATOR(-)
ROCMBUILD_HOST_OLD_BFLOAT_OPERATOR(*)
ROCMBUILD_HOST_OLD_BFLOAT_OPERATOR(/)
#define ROCMBUILD_HOST_OLD_BFLOAT_COMPARE(OP) \
    ROCMBUILD_HOST_FN bool operator OP(hip_bfloat16 a, hip_bfloat16 b) { return float(a) OP float(b); }
ROCMBUILD_HOST_OLD_BFLOAT_COMPARE(==)
ROCMBUILD_HOST_OLD_BFLOAT_COMPARE(!=)
ROCMBUILD_HOST_OLD_BFLOAT_COMPARE(<)
ROCMBUILD_HOST_OLD_BFLOAT_COMPARE(<=)
ROCMBUILD_HOST_OLD_BFLOAT_COMPARE(>)
ROCMBUILD_HOST_OLD_BFLOAT_COMPARE(>=)
