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

// The same address, which all lanes share. How it comes about is hidden from AMD's compiler, which would add it up anew
// for each load, in vector registers.
template <typename T>
static __device__ __forceinline__ const T* one_address(const T* address) {
#if defined(GGUF_AMD_DEVICE)
  uint64_t bits = reinterpret_cast<uint64_t>(address);
  asm("" : "+s"(bits));
  return (const T*)reinterpret_cast<const __attribute__((address_space(1))) T*>(bits);
#else
  return address;
#endif
}

// At most so many vector registers; NVIDIA's compiler is not told. 96 are 16 waves on each SIMD where a lane has 1,536
// (gfx1100, gfx1101, gfx1151, gfx12), and 10 on the other GPUs of gfx11, which have 1,024.
#if defined(__HIP__)
#define GGUF_REGISTERS(count) __attribute__((amdgpu_num_vgpr(count)))
#else
#define GGUF_REGISTERS(count)
#endif

// The compiler moves nothing across: it would load what comes later first, for which there is no room in registers.
static __device__ __forceinline__ void keep_order() {
#if defined(GGUF_AMD_DEVICE)
  __builtin_amdgcn_sched_barrier(0);
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

// The sum over the wave of value i, in every lane whose number modulo N, a power of two, is i. The bits are the same for
// any N: each step adds the same lanes, and the first steps halve the number of values as well.
template <int N, int Mask = 1>
static __device__ __forceinline__ float wave_sums(const float (&value)[N]) {
  static_assert(N >= 1 && N <= kWave && (N & (N - 1)) == 0, "each value in a lane of its own");
  if constexpr (Mask < kWave) {
    float rest[N > 1 ? N / 2 : 1];
    if constexpr (N > 1) {
      const bool odd = (threadIdx.x & Mask) != 0;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const float own = odd ? value[2 * i + 1] : value[2 * i];
        const float other = odd ? value[2 * i] : value[2 * i + 1];
        rest[i] = own + wave_xor<Mask>(other);
      }
    } else {
      rest[0] = value[0] + wave_xor<Mask>(value[0]);
    }
    return wave_sums<(N > 1 ? N / 2 : 1), 2 * Mask>(rest);
  } else {
    return value[0];
  }
}

// Addresses within shared memory of NVIDIA's GPUs, of 32 bits, which the compiler keeps in registers as they are.
static __device__ __forceinline__ uint32_t shared_address(const void* pointer) {
#if defined(GGUF_NVIDIA_DEVICE)
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
  asm("" : "+r"(address));
  return address;
#else
  (void)pointer;
  return 0;
#endif
}

static __device__ __forceinline__ const uint8_t* shared_pointer(uint32_t address) {
#if defined(GGUF_NVIDIA_DEVICE)
  return static_cast<const uint8_t*>(__cvta_shared_to_generic(address));
#else
  (void)address;
  return nullptr;
#endif
}

// One bit a lane; all lanes of the wave take part.
static __device__ __forceinline__ uint32_t wave_ballot(bool value) {
#if defined(GGUF_AMD_DEVICE)
  return __builtin_amdgcn_ballot_w32(value);
#elif defined(GGUF_NVIDIA_DEVICE)
  return __ballot_sync(0xffffffffu, value);
#elif defined(GGUF_HOST_EXECUTOR)
  return static_cast<uint32_t>(__ballot_sync(0xffffffffull, value));
#else
  return value;
#endif
}

// Which wave of its block this is, known to the compiler as the same in all lanes, all of which take part.
static __device__ __forceinline__ int wave_number() {
#if defined(GGUF_NVIDIA_DEVICE)
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWave, 0, kWave);
#else
  return wave_uniform(static_cast<int>(threadIdx.x) / kWave);
#endif
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
typedef uint32_t Pair __attribute__((ext_vector_type(2)));
template <typename T>
struct __attribute__((packed, aligned(1), may_alias)) Unaligned {
  T value;
};
#endif

// The bytes that the four low nibbles of `select` number, 0 to 3 in low and 4 to 7 in high; only NVIDIA has it so.
// A nibble whose top bit is set asks for the sign of its byte instead, in all eight bits.
static __device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t select) {
#if defined(GGUF_NVIDIA_DEVICE)
  uint32_t result;  // the intrinsic masks the nibbles' top bits off
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(select));
  return result;
#else
  (void)high, (void)select;
  return low;
#endif
}

// Byte i of a word, in one instruction where there is one for it; where there is none, not by the slow conversion.
static __device__ __forceinline__ float byte_to_float(uint32_t word, int i) {
#if defined(GGUF_NVIDIA_DEVICE)
  return __uint_as_float(pick_bytes(word, 0x4b000000u, 0x7440u + static_cast<uint32_t>(i))) - 8388608.0f;
#else
  return static_cast<float>(word >> (8 * i) & 0xffu);
#endif
}

// words = the 4 N bytes at `at`, which is a multiple of kAlign where the rows of a format start at one of 16.
//
// AMD's global loads need no alignment: it is N / 4 loads of 16 bytes, then one of 8, then one of 4. NVIDIA's do: there
// an address of less than 4 is read as the N or N + 1 aligned words that hold the bytes, and shifted into place.
template <int N, int kAlign>
static __device__ __forceinline__ void load_words(const uint8_t* at, uint32_t* words) {
#if defined(GGUF_NVIDIA_DEVICE)
  if constexpr (kAlign % 16 == 0 && N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(at)[i];
      words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
  } else if constexpr (kAlign % 8 == 0 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const uint2 two = reinterpret_cast<const uint2*>(at)[i];
      words[2 * i] = two.x, words[2 * i + 1] = two.y;
    }
  } else if constexpr (kAlign % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = reinterpret_cast<const uint32_t*>(at)[i];
  } else {
    const uint32_t past = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at)) & 3;
    const uint32_t* aligned = reinterpret_cast<const uint32_t*>(at - past);
    const uint32_t select = 0x3210 + 0x1111 * past;
    uint32_t raw[N + 1];
#pragma unroll
    for (int i = 0; i < N; ++i) raw[i] = aligned[i];
    raw[N] = aligned[past != 0 ? N : N - 1];  // no word behind the bytes, which could be nobody's memory
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = pick_bytes(raw[i], raw[i + 1], select);
  }
#elif defined(GGUF_AMD_DEVICE)
#pragma unroll
  for (int i = 0; i + 4 <= N; i += 4) {
    const Quad quad = reinterpret_cast<const Unaligned<Quad>*>(at + 4 * i)->value;
    words[i] = quad.x, words[i + 1] = quad.y, words[i + 2] = quad.z, words[i + 3] = quad.w;
  }
  if constexpr (N % 4 >= 2) {
    const Pair pair = reinterpret_cast<const Unaligned<Pair>*>(at + 4 * (N / 4 * 4))->value;
    words[N / 4 * 4] = pair.x, words[N / 4 * 4 + 1] = pair.y;
  }
  if constexpr (N % 2 == 1) words[N - 1] = reinterpret_cast<const Unaligned<uint32_t>*>(at + 4 * (N - 1))->value;
#else
  memcpy(words, at, 4 * N);
#endif
}

// Copies bytes, whole `Unit`s of which both addresses are multiples, by `threads` threads of which this is number
// `thread`; 16 at a time where both addresses allow it.
template <typename Unit>
static __device__ __forceinline__ void copy_bytes(const uint8_t* from, uint8_t* to, uint32_t bytes, uint32_t thread,
                                                  uint32_t threads) {
  const auto copy = [&](auto unit, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin + thread * static_cast<uint32_t>(sizeof unit); i < end; i += threads * sizeof unit) {
#if defined(GGUF_NVIDIA_DEVICE)
      *reinterpret_cast<decltype(unit)*>(to + i) = *reinterpret_cast<const decltype(unit)*>(from + i);
#else
      memcpy(to + i, from + i, sizeof unit);
#endif
    }
  };
  const bool wide = ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) & 15) == 0;
  const uint32_t even = wide ? bytes / 16 * 16 : 0;
  copy(uint4{}, 0, even);
  copy(Unit{}, even, bytes);
}

// The 16 bits at `at`, a multiple of 2.
static __device__ __forceinline__ uint16_t load_u16(const uint8_t* at) {
#if defined(GGUF_NVIDIA_DEVICE)
  return *reinterpret_cast<const uint16_t*>(at);
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

// A difference that is rounded by itself.
static __device__ __forceinline__ float sub_rounded(float a, float b) {
#if defined(GGUF_NVIDIA_DEVICE)
  return __fsub_rn(a, b);
#else
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
  return a - b;
#endif
}

// Byte i of low is table[low nibble of byte i of codes], and of high the same for the high nibbles. The table is 16 bytes.
static __device__ __forceinline__ void lookup_nibbles(const uint32_t (&table)[4], uint32_t codes, uint32_t* low,
                                                      uint32_t* high) {
#if defined(GGUF_NVIDIA_DEVICE)
  // PRMT takes four selectors from the low half of a word, nibble by nibble; their top bits must be off.
  const uint32_t within = codes & 0x77777777u;
  const uint32_t upper = ((codes & 0x88888888u) >> 1) | 0x32103210u;
  const uint32_t a = __byte_perm(__byte_perm(table[0], table[1], within), __byte_perm(table[2], table[3], within), upper);
  const uint32_t b = __byte_perm(__byte_perm(table[0], table[1], within >> 16),
                                 __byte_perm(table[2], table[3], within >> 16), upper >> 16);
  *low = __byte_perm(a, b, 0x6420);
  *high = __byte_perm(a, b, 0x7531);
#elif defined(GGUF_AMD_DEVICE)
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t shifted = half == 0 ? codes : codes >> 4;
    const uint32_t within = shifted & 0x07070707u;
    const uint32_t upper = ((half == 0 ? codes >> 1 : codes >> 5) & 0x04040404u) | 0x03020100u;
    const uint32_t found = __builtin_amdgcn_perm(__builtin_amdgcn_perm(table[3], table[2], within),
                                                 __builtin_amdgcn_perm(table[1], table[0], within), upper);
    (half == 0 ? *low : *high) = found;
  }
#else
  uint8_t bytes[16];
  memcpy(bytes, table, 16);
  *low = *high = 0;
  for (int i = 0; i < 4; ++i) {
    *low |= static_cast<uint32_t>(bytes[codes >> (8 * i) & 15]) << (8 * i);
    *high |= static_cast<uint32_t>(bytes[codes >> (8 * i + 4) & 15]) << (8 * i);
  }
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
