// What differs between AMD, NVIDIA and the CPU executor: waves, the integer dot product, unaligned loads, half floats.
//
// A wave is 32 lanes everywhere (AMD code is compiled for wave32 only).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "the kernels are specified to the last bit in places: compile without -ffast-math"
#endif

#if defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__
#if !defined(__GFX11__) && !defined(__GFX12__)
#error "only gfx11 and gfx12 targets are supported: they have wave32 and v_dot4_i32_iu8"
#endif
#define GGUF_AMD_DEVICE 1
#elif defined(__CUDA_ARCH__)
#define GGUF_NVIDIA_DEVICE 1
#elif defined(ROCMBUILD_PLATFORM_HOST)
#define GGUF_HOST_EXECUTOR 1
#endif  // else: the host half of a GPU compilation, which parses device code and never runs it

namespace gguf {

constexpr int kWave = 32;

// A value that all lanes of the wave hold alike, in a scalar register where there are some.
static __device__ __forceinline__ int wave_uniform(int value) {
#if defined(GGUF_AMD_DEVICE)
  return __builtin_amdgcn_readfirstlane(value);
#else
  return value;
#endif
}

// The value of lane (own lane ^ Mask), for Mask 1, 2, 4, 8 or 16. All lanes of the wave take part.
template <int Mask>
static __device__ __forceinline__ uint32_t wave_xor(uint32_t value) {
  static_assert(Mask == 1 || Mask == 2 || Mask == 4 || Mask == 8 || Mask == 16, "one bit of the lane");
#if defined(GGUF_AMD_DEVICE)
  if constexpr (Mask == 16) {  // lane i of one row of 16 reads lane i of the other
    return __builtin_amdgcn_permlanex16(value, value, 0x76543210u, 0xfedcba98u, true, false);
  } else {  // 0x160 + mask is DPP's ROW_XMASK
    return __builtin_amdgcn_update_dpp(0, static_cast<int>(value), 0x160 | Mask, 0xf, 0xf, true);
  }
#elif defined(GGUF_NVIDIA_DEVICE)
  return __shfl_xor_sync(0xffffffffu, value, Mask, kWave);
#elif defined(GGUF_HOST_EXECUTOR)
  return __shfl_xor_sync(0xffffffffull, value, Mask, kWave);
#else
  return value;
#endif
}

template <int Mask>
static __device__ __forceinline__ float wave_xor(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = wave_xor<Mask>(bits);
  memcpy(&value, &bits, 4);
  return value;
}

// Sum over the wave, the same bits in every lane.
static __device__ __forceinline__ float wave_sum(float value) {
  value += wave_xor<1>(value);
  value += wave_xor<2>(value);
  value += wave_xor<4>(value);
  value += wave_xor<8>(value);
  value += wave_xor<16>(value);
  return value;
}

// c + the sum of the four products of signed bytes.
static __device__ __forceinline__ int dot4(uint32_t a, uint32_t b, int c) {
#if defined(GGUF_AMD_DEVICE)
  return __builtin_amdgcn_sudot4(true, static_cast<int>(a), true, static_cast<int>(b), c, false);
#elif defined(GGUF_NVIDIA_DEVICE) || defined(GGUF_HOST_EXECUTOR)
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
#else
  (void)a, (void)b;
  return c;
#endif
}

#if defined(GGUF_AMD_DEVICE)
// Vector types, because clang turns a memcpy into a struct into the loads that the struct's members suggest.
typedef uint32_t Quad __attribute__((ext_vector_type(4)));
struct __attribute__((packed, aligned(2), may_alias)) UnalignedQuad {
  Quad value;
};
struct __attribute__((packed, aligned(2), may_alias)) UnalignedHalf {
  uint16_t value;
};
#endif

// A 16-bit float scale followed by N words, which lie in memory without padding, 2-byte aligned.
template <int N>
struct HalfAndWords {
  uint16_t half;
  uint32_t words[N];
};

// Reads exactly 2 + 4 N bytes. AMD's global loads need no alignment, so there it is N / 4 wide loads and a short one;
// NVIDIA's do, so there it is N aligned words, from either side of the misalignment, and the 2 bytes left over.
template <int N>
static __device__ __forceinline__ HalfAndWords<N> load_half_and_words(const uint8_t* at) {
  HalfAndWords<N> got;
#if defined(GGUF_NVIDIA_DEVICE)
  const bool behind = (reinterpret_cast<uintptr_t>(at) & 2) == 0;  // the words start 2 bytes behind an aligned address
  const uint32_t* aligned = reinterpret_cast<const uint32_t*>(at + (behind ? 0 : 2));
  const uint32_t rest = __ldg(reinterpret_cast<const uint16_t*>(at + (behind ? 4 * N : 0)));
  uint32_t raw[N + 1];
#pragma unroll
  for (int i = 0; i < N; ++i) raw[i] = __ldg(aligned + i);
  raw[N] = rest;
  got.half = static_cast<uint16_t>(behind ? raw[0] : rest);
  const uint32_t select = behind ? 0x5432 : 0x3210;
#pragma unroll
  for (int i = 0; i < N; ++i) got.words[i] = __byte_perm(raw[i], raw[i + 1], select);
#elif defined(GGUF_AMD_DEVICE)
  static_assert(N % 4 == 0, "whole 16-byte loads");
  got.half = reinterpret_cast<const UnalignedHalf*>(at)->value;
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const Quad quad = reinterpret_cast<const UnalignedQuad*>(at + 2 + 16 * i)->value;
    got.words[4 * i] = quad.x, got.words[4 * i + 1] = quad.y, got.words[4 * i + 2] = quad.z,
                  got.words[4 * i + 3] = quad.w;
  }
#else
  memcpy(&got.half, at, 2);
  memcpy(got.words, at + 2, 4 * N);
#endif
  return got;
}

static __device__ __forceinline__ uint16_t load_u16(const uint8_t* at) {  // 2-byte aligned
#if defined(GGUF_NVIDIA_DEVICE)
  return __ldg(reinterpret_cast<const uint16_t*>(at));
#else
  uint16_t value;
  memcpy(&value, at, 2);
  return value;
#endif
}

static __device__ __forceinline__ float half_to_float(uint16_t bits) {
  __half value;
  memcpy(&value, &bits, 2);
  return __half2float(value);
}

// A product that is rounded by itself: no compiler may fuse it with an addition.
static __device__ __forceinline__ float mul_rounded(float a, float b) {
#if defined(GGUF_NVIDIA_DEVICE)
  return __fmul_rn(a, b);
#else
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
  return a * b;
#endif
}

// Activations and results as floats, and back with round-to-nearest-even.
template <typename T>
struct Scalar;

template <>
struct Scalar<float> {
  static __device__ __forceinline__ float get(float value) { return value; }
  static __device__ __forceinline__ float put(float value) { return value; }
};

template <>
struct Scalar<__half> {
  static __device__ __forceinline__ float get(__half value) { return __half2float(value); }
  static __device__ __forceinline__ __half put(float value) { return __float2half_rn(value); }
};

template <>
struct Scalar<__nv_bfloat16> {
  static __device__ __forceinline__ float get(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __device__ __forceinline__ __nv_bfloat16 put(float value) { return __float2bfloat16(value); }
};

}  // namespace gguf
