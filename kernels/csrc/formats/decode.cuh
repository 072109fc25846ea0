// What several formats' decoders have in common.
#pragma once

#include "device/platform.cuh"
#include "device/weights.cuh"

namespace gguf {

// Byte i of `word`.
static __device__ __forceinline__ uint32_t byte_of(uint32_t word, int i) { return word >> (8 * i) & 0xffu; }

// Four bytes, the first the lowest.
constexpr uint32_t pack_bytes(int a, int b, int c, int d) {
  return (static_cast<uint32_t>(a) & 0xffu) | (static_cast<uint32_t>(b) & 0xffu) << 8 |
         (static_cast<uint32_t>(c) & 0xffu) << 16 | (static_cast<uint32_t>(d) & 0xffu) << 24;
}

// Each bit goes `count` places down and around, by any count, negative ones too: a bit of every byte reaches the wanted
// place of its byte with one instruction, and the bits that cross bytes are masked off.
static __device__ __forceinline__ uint32_t rotate_right(uint32_t word, int count) {
  const uint32_t right = static_cast<uint32_t>(count) & 31;
  return word >> right | word << ((32 - right) & 31);
}

// 4 adjacent bits of `bits`, from bit `from` on, one in each byte at bit `to`, 0 to 6; nothing else is set.
static __device__ __forceinline__ uint32_t spread_bits(uint32_t bits, int from, int to) {
  const int shift = from - to;
  const uint32_t four = (shift >= 0 ? bits >> shift : bits << -shift) & (15u << to);
#if defined(GGUF_AMD_DEVICE)
  return __umul24(four, 0x204081u) & (0x01010101u << to);
#else
  return four * 0x204081u & (0x01010101u << to);
#endif
}

// Scales and minima of Q4_K and Q5_K, 6 bits each, of sub-blocks 2 * pair and 2 * pair + 1, in the two low bytes each.
// Of the 12 bytes behind d and dmin in `head`, bytes 0 to 3 hold in their low 6 bits scales 0 to 3, bytes 4 to 7 minima
// 0 to 3; bytes 8 to 11 the low 4 bits of scales (low nibble) and minima 4 to 7, whose high 2 bits are the top bits of
// bytes 0 to 3 and 4 to 7.
static __device__ __forceinline__ void scales_and_minima(const uint32_t* head, uint32_t pair, uint32_t* scales,
                                                         uint32_t* minima) {
  // Masks and no condition, which lanes would differ in: AMD's compiler makes branches of it, and each wave takes both.
  const uint32_t shift = 16 * (pair & 1);
  const uint32_t own = shift + (pair & 2);     // in the first eight bytes, of which the upper pairs want the top bits
  const uint32_t low = (pair >> 1) * 0x0f0fu;  // what the upper pairs take from the last four bytes
  const uint32_t rest = low ^ 0x3f3fu;
  *scales = (head[1] >> own & rest) | (head[3] >> shift & low);
  *minima = (head[2] >> own & rest) | (head[3] >> (shift + 4) & low);
}

// Words 2 * index and 2 * index + 1 of a table that is 8-byte aligned.
static __device__ __forceinline__ uint2 lookup_pair(const uint32_t* table, uint32_t index) {
#if defined(GGUF_NVIDIA_DEVICE)
  return reinterpret_cast<const uint2*>(table)[index];
#else
  return make_uint2(table[2 * index], table[2 * index + 1]);
#endif
}

// Byte i of `bytes` negated where bit i of `signs` is set, i from 0 to 3. No byte may be 0, so that no negation has a
// carry; `signs` may have 7 bits, no more, so that no two bits meet in the product that spreads them.
static __device__ __forceinline__ uint32_t with_signs(uint32_t bytes, uint32_t signs) {
  const uint32_t negative = 0x01010100u - bytes;  // ~bytes + 0x01010101
#if defined(GGUF_AMD_DEVICE)
  const uint32_t second = __umul24(signs, 0x810204u) & 0x04040404u;  // bit i in bit 8 i + 2: a byte of `negative`
  return __builtin_amdgcn_perm(negative, bytes, second | 0x03020100u);
#elif defined(GGUF_NVIDIA_DEVICE)
  uint32_t mask;  // bit i in bit 8 i + 7, and then all over its byte, for which the intrinsic has no way to ask
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(mask) : "r"(signs * 0x10204080u));
  return (bytes & ~mask) | (negative & mask);
#else
  const uint32_t mask = (signs * 0x204081u & 0x01010101u) * 0xffu;
  return (bytes & ~mask) | (negative & mask);
#endif
}

// 8 weights with the signs of a byte.
static __device__ __forceinline__ void put_signs_of_8(uint2 bytes, uint32_t signs, uint32_t* words) {
  words[0] = with_signs(bytes.x, signs & 15);
  words[1] = with_signs(bytes.y, signs >> 4 & 15);
}

// 8 weights with 7 stored signs; the last one makes their number even.
static __device__ __forceinline__ void put_signs_of_7(uint2 bytes, uint32_t signs, uint32_t* words) {
  words[0] = with_signs(bytes.x, signs);
  words[1] = with_signs(bytes.y, signs >> 4 | static_cast<uint32_t>(__popc(signs)) << 3);
}

// 8 weights of the grid of IQ1, in eighths and 9 more than they are: codes 0, 1, 2 are -8, 0, 8, and 1 to either side.
static __device__ __forceinline__ void put_shift(uint32_t codes, bool plus, uint32_t* words) {
  const uint32_t shift = plus ? 0x02020202u : 0u;
  words[0] = (codes << 3 & 0x18181818u) | shift;
  words[1] = (codes >> 1 & 0x18181818u) | shift;
}

// Values of the codes of 4-bit formats.
static __device__ constexpr uint32_t kIQ4_values[4] = {pack_bytes(-127, -104, -83, -65), pack_bytes(-49, -35, -22, -10),
                                                       pack_bytes(1, 13, 25, 38), pack_bytes(53, 69, 89, 113)};
static __device__ constexpr uint32_t kE2M1_doubled[4] = {pack_bytes(0, 1, 2, 3), pack_bytes(4, 6, 8, 12),
                                                         pack_bytes(0, -1, -2, -3), pack_bytes(-4, -6, -8, -12)};

}  // namespace gguf
