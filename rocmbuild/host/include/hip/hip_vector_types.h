// Vector types of HIP (int2, float4, ...) as plain aggregates: trivial, so that they may lie in shared memory.
#pragma once

#include <rocmbuild/host/lanes.h>

#include <type_traits>

namespace rocmbuild_host {
template <class V>
struct vector_of {
    static constexpr int lanes = 0;
};
template <class V, class R = V>
using if_vector = typename std::enable_if<(vector_of<V>::lanes > 0), R>::type;
}  // namespace rocmbuild_host

#define ROCMBUILD_HOST_VECTOR_1(NAME, T) \
    struct NAME##1 {                     \
        T x;                             \
    };                                   \
    constexpr NAME##1 make_##NAME##1(T x) { return NAME##1{x}; }
#define ROCMBUILD_HOST_VECTOR_2(NAME, T)   \
    struct alignas(2 * sizeof(T)) NAME##2 { \
        T x, y;                            \
    };                                     \
    constexpr NAME##2 make_##NAME##2(T x, T y) { return NAME##2{x, y}; }
#define ROCMBUILD_HOST_VECTOR_3(NAME, T) \
    struct NAME##3 {                     \
        T x, y, z;                       \
    };
#define ROCMBUILD_HOST_MAKE_3(NAME, T) \
    constexpr NAME##3 make_##NAME##3(T x, T y, T z) { return NAME##3{x, y, z}; }
#define ROCMBUILD_HOST_VECTOR_4(NAME, T)                                        \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) NAME##4 {            \
        T x, y, z, w;                                                           \
    };                                                                          \
    constexpr NAME##4 make_##NAME##4(T x, T y, T z, T w) { return NAME##4{x, y, z, w}; }
#define ROCMBUILD_HOST_TRAIT(V, T, N)                 \
    template <>                                       \
    struct rocmbuild_host::vector_of<V> {             \
        static constexpr int lanes = N;               \
        using type = T;                               \
    };
#define ROCMBUILD_HOST_TRAITS(NAME, T)   \
    ROCMBUILD_HOST_TRAIT(NAME##1, T, 1)  \
    ROCMBUILD_HOST_TRAIT(NAME##2, T, 2)  \
    ROCMBUILD_HOST_TRAIT(NAME##3, T, 3)  \
    ROCMBUILD_HOST_TRAIT(NAME##4, T, 4)
#define ROCMBUILD_HOST_VECTORS(NAME, T) \
    ROCMBUILD_HOST_VECTOR_1(NAME, T)    \
    ROCMBUILD_HOST_VECTOR_2(NAME, T)    \
    ROCMBUILD_HOST_VECTOR_3(NAME, T)    \
    ROCMBUILD_HOST_MAKE_3(NAME, T)      \
    ROCMBUILD_HOST_VECTOR_4(NAME, T)    \
    ROCMBUILD_HOST_TRAITS(NAME, T)

ROCMBUILD_HOST_VECTORS(char, signed char)
ROCMBUILD_HOST_VECTORS(uchar, unsigned char)
ROCMBUILD_HOST_VECTORS(short, short)
ROCMBUILD_HOST_VECTORS(ushort, unsigned short)
ROCMBUILD_HOST_VECTORS(int, int)
ROCMBUILD_HOST_VECTOR_1(uint, unsigned)
ROCMBUILD_HOST_VECTOR_2(uint, unsigned)
ROCMBUILD_HOST_MAKE_3(uint, unsigned)  // the type itself stands in lanes.h
ROCMBUILD_HOST_VECTOR_4(uint, unsigned)
ROCMBUILD_HOST_TRAITS(uint, unsigned)
ROCMBUILD_HOST_VECTORS(long, long)
ROCMBUILD_HOST_VECTORS(ulong, unsigned long)
ROCMBUILD_HOST_VECTORS(longlong, long long)
ROCMBUILD_HOST_VECTORS(ulonglong, unsigned long long)
ROCMBUILD_HOST_VECTORS(float, float)
ROCMBUILD_HOST_VECTORS(double, double)

// Element-wise operators, as HIP has them; a project's own operator on the same type is preferred to a template.
#define ROCMBUILD_HOST_VECTOR_OPERATOR(OP)                                                              \
    template <class V>                                                                                  \
    constexpr rocmbuild_host::if_vector<V> operator OP(const V& a, const V& b) {                        \
        V r = a;                                                                                        \
        r.x = a.x OP b.x;                                                                               \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 1) r.y = a.y OP b.y;                        \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 2) r.z = a.z OP b.z;                        \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 3) r.w = a.w OP b.w;                        \
        return r;                                                                                       \
    }                                                                                                   \
    template <class V>                                                                                  \
    constexpr rocmbuild_host::if_vector<V> operator OP(const V& a,                                      \
                                                       typename rocmbuild_host::vector_of<V>::type s) { \
        V b = a;                                                                                        \
        b.x = s;                                                                                        \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 1) b.y = s;                                 \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 2) b.z = s;                                 \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 3) b.w = s;                                 \
        return a OP b;                                                                                  \
    }                                                                                                   \
    template <class V>                                                                                  \
    constexpr rocmbuild_host::if_vector<V> operator OP(typename rocmbuild_host::vector_of<V>::type s,   \
                                                       const V& a) {                                    \
        V b = a;                                                                                        \
        b.x = s;                                                                                        \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 1) b.y = s;                                 \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 2) b.z = s;                                 \
        if constexpr (rocmbuild_host::vector_of<V>::lanes > 3) b.w = s;                                 \
        return b OP a;                                                                                  \
    }                                                                                                   \
    template <class V>                                                                                  \
    constexpr rocmbuild_host::if_vector<V, V&> operator OP##=(V & a, const V & b) {                     \
        return a = a OP b;                                                                              \
    }                                                                                                   \
    template <class V>                                                                                  \
    constexpr rocmbuild_host::if_vector<V, V&> operator OP##=(                                          \
        V & a, typename rocmbuild_host::vector_of<V>::type s) {                                         \
        return a = a OP s;                                                                              \
    }
ROCMBUILD_HOST_VECTOR_OPERATOR(+)
ROCMBUILD_HOST_VECTOR_OPERATOR(-)
ROCMBUILD_HOST_VECTOR_OPERATOR(*)
ROCMBUILD_HOST_VECTOR_OPERATOR(/)

template <class V>
constexpr rocmbuild_host::if_vector<V, bool> operator==(const V& a, const V& b) {
    bool same = a.x == b.x;
    if constexpr (rocmbuild_host::vector_of<V>::lanes > 1) same = same && a.y == b.y;
    if constexpr (rocmbuild_host::vector_of<V>::lanes > 2) same = same && a.z == b.z;
    if constexpr (rocmbuild_host::vector_of<V>::lanes > 3) same = same && a.w == b.w;
    return same;
}
template <class V>
constexpr rocmbuild_host::if_vector<V, bool> operator!=(const V& a, const V& b) {
    return !(a == b);
}
template <class V>
constexpr rocmbuild_host::if_vector<V> operator-(const V& a) {
    return V{} - a;
}
