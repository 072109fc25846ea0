// One product of matrix cores: 16 tokens x 16 rows of weights x 32 of k, signed bytes, exact sums; the same for AMD's
// WMMA, NVIDIA's mma.sync, the CPU executor and the dot product of four bytes.
//
// Neighbouring lanes hold neighbouring rows of weights, which lie side by side in the output: with WMMA tokens are the A
// operand and weights B, with mma.sync the reverse. A tile type has
//   Tokens, Rows   fragments: a lane's share of 16 tokens, or rows, of 32 bytes each, which lie `stride` bytes apart in
//                  shared memory; load_tokens and load_rows fill them from the tile's address plus token_place or
//                  row_place of the lane. `stride` is 16 modulo 128, so no banks collide
//   multiply       sums[h][i] = kMagic + the sum over k of result i of a lane; with two halves, of k 0 to 15 and 16 to 31.
//                  Where `all` is not set only the first 8 tokens matter, and the first kResultsOf8Tokens results
//   kTokens, kRows   how many different tokens and rows a lane's 8 results have; result i has token number
//                  token_of_result(i) of them, which is token token_of_lane(lane, number) of the 16, the same distance
//                  from number 0 in every lane; rows likewise
//
// Layouts. WMMA, wave32, "Matrix element storage in VGPRs" of AMD's RDNA3 and RDNA4 instruction set documents:
//   gfx11   lane l holds row l % 16 of A, and column l % 16 of B, whole: k 4 i .. 4 i + 3 in VGPR i of 4. Lanes 16 to 31
//           must hold what lanes 0 to 15 hold. VGPR i of D is row 2 i + l / 16, column l % 16.
//   gfx12   lane l holds row l % 16 of A, and column l % 16 of B: k 8 (l / 16) + 4 i .. + 3 in VGPR i of 2. VGPR i of D is
//           row 8 (l / 16) + i, column l % 16.
// mma.sync m16n8k32 and m16n8k16, s8, of the PTX manual: see NvidiaTile.
#pragma once

#include "device/platform.cuh"

#if defined(GGUF_HOST_EXECUTOR) && !defined(GGUF_HOST_WMMA)
#define GGUF_HOST_WMMA 12  // whose layout of matrix cores the CPU executor has: 11 or 12, for gfx11 or gfx12
#endif

namespace gguf {

// Sums start at the bits of 1.5 * 2^23, so that they, taken as the bits of a float, are that float plus the sum: exact
// while the sum's magnitude is below 2^22, and 32 * 128 * 127 is below 2^19.
constexpr int kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;

constexpr int kTile = 16;
constexpr int kTileWaves = 16;  // a block may have

static __device__ __forceinline__ float float_of_bits(int bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static __device__ __forceinline__ void load_16_bytes(const int8_t* at, uint32_t* words) {
  const uint4 four = *reinterpret_cast<const uint4*>(at);
  words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}

static __device__ __forceinline__ void load_8_bytes(const int8_t* at, uint32_t* words) {
  const uint2 two = *reinterpret_cast<const uint2*>(at);
  words[0] = two.x, words[1] = two.y;
}

#if defined(GGUF_HOST_EXECUTOR)
// The instruction itself, as the documents have it, for a wave of the executor: d = A B + c over 16 of k. kWords is 4 for
// gfx11 and 2 for gfx12. It reads the lanes' registers and knows nothing of how they were filled.
template <int kWords>
static __device__ inline void wmma_i32_16x16x16_iu8(const uint32_t* a, const uint32_t* b, const int* c, int* d) {
  static_assert(kWords == 4 || kWords == 2, "gfx11 or gfx12");
  __shared__ uint32_t registers[kTileWaves][kWave][2][4];
  const unsigned lane = threadIdx.x % kWave;
  auto& wave = registers[threadIdx.x / kWave];
  for (int i = 0; i < kWords; ++i) wave[lane][0][i] = a[i], wave[lane][1][i] = b[i];
  __syncwarp();
  for (int i = 0; i < 8; ++i) {
    const unsigned row = kWords == 4 ? 2 * i + lane / 16 : 8 * (lane / 16) + i;
    const unsigned column = lane % 16;
    int sum = c[i];
    for (unsigned k = 0; k < 16; k += 4) {
      const unsigned half = kWords == 4 ? 0 : k / 8 * 16;
      const unsigned word = k / 4 % kWords;
      sum = dot4(wave[row + half][0][word], wave[column + half][1][word], sum);
      // On gfx11 the upper lanes have to repeat the lower ones; hardware that finds anything else gives anything.
      if (kWords == 4 && (wave[row + 16][0][word] != wave[row][0][word] ||
                          wave[column + 16][1][word] != wave[column][1][word])) {
        sum = 0x55555555;
      }
    }
    d[i] = sum;
  }
  __syncwarp();
}
#endif

#if defined(GGUF_AMD_DEVICE)
typedef int Int2 __attribute__((ext_vector_type(2)));
typedef int Int4 __attribute__((ext_vector_type(4)));
typedef int Int8 __attribute__((ext_vector_type(8)));
#endif

struct Fragment8 {
  uint32_t word[8];
};

struct Fragment4 {
  uint32_t word[4];
};

// gfx11.
struct Gfx11Tile {
  using Tokens = Fragment8;  // k 0 to 15 in the first four words, 16 to 31 in the others
  using Rows = Fragment8;
  static constexpr int kTokens = 8;
  static constexpr int kRows = 1;
  static __device__ __forceinline__ int token_of_lane(int lane, int number) { return 2 * number + lane / 16; }
  static __device__ __forceinline__ int row_of_lane(int lane, int) { return lane % 16; }
  static __host__ __device__ constexpr int token_of_result(int i) { return i; }
  static __host__ __device__ constexpr int row_of_result(int) { return 0; }
  static constexpr int kResultsOf8Tokens = 8;

  static __device__ __forceinline__ int token_place(int lane, int stride) { return lane % 16 * stride; }
  static __device__ __forceinline__ int row_place(int lane, int stride) { return lane % 16 * stride; }
  static __device__ __forceinline__ Rows load_rows(const int8_t* own) {
    Rows fragment;
    load_16_bytes(own, fragment.word);
    load_16_bytes(own + 16, fragment.word + 4);
    return fragment;
  }
  static __device__ __forceinline__ Tokens load_tokens(const int8_t* own, int) { return load_rows(own); }

  static __device__ __forceinline__ void multiply_half(const uint32_t* a, const uint32_t* b, int (&sums)[8]) {
#if defined(GGUF_AMD_DEVICE) && defined(__GFX11__)
    const Int4 x = {static_cast<int>(a[0]), static_cast<int>(a[1]), static_cast<int>(a[2]), static_cast<int>(a[3])};
    const Int4 y = {static_cast<int>(b[0]), static_cast<int>(b[1]), static_cast<int>(b[2]), static_cast<int>(b[3])};
    const Int8 c = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]};
    const Int8 d = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x, true, y, c, false);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = d[i];
#elif defined(GGUF_HOST_EXECUTOR)
    wmma_i32_16x16x16_iu8<4>(a, b, sums, sums);
#else
    (void)a, (void)b, (void)sums;
#endif
  }

  template <int kHalves>
  static __device__ __forceinline__ void multiply(const Tokens& tokens, const Rows& rows, bool,
                                                  int (&sums)[kHalves][8]) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[h][i] = kMagicBits;
    }
    multiply_half(tokens.word, rows.word, sums[0]);
    multiply_half(tokens.word + 4, rows.word + 4, sums[kHalves - 1]);
  }
};

// gfx12.
struct Gfx12Tile {
  using Tokens = Fragment4;  // of k 0 to 15 in the first two words, of 16 to 31 in the others
  using Rows = Fragment4;
  static constexpr int kTokens = 8;
  static constexpr int kRows = 1;
  static __device__ __forceinline__ int token_of_lane(int lane, int number) { return lane / 16 * 8 + number; }
  static __device__ __forceinline__ int row_of_lane(int lane, int) { return lane % 16; }
  static __host__ __device__ constexpr int token_of_result(int i) { return i; }
  static __host__ __device__ constexpr int row_of_result(int) { return 0; }
  static constexpr int kResultsOf8Tokens = 8;

  static __device__ __forceinline__ int token_place(int lane, int stride) { return lane % 16 * stride + lane / 16 * 8; }
  static __device__ __forceinline__ int row_place(int lane, int stride) { return token_place(lane, stride); }
  static __device__ __forceinline__ Rows load_rows(const int8_t* own) {
    Rows fragment;
    load_8_bytes(own, fragment.word);
    load_8_bytes(own + 16, fragment.word + 2);
    return fragment;
  }
  static __device__ __forceinline__ Tokens load_tokens(const int8_t* own, int) { return load_rows(own); }

  static __device__ __forceinline__ void multiply_half(const uint32_t* a, const uint32_t* b, int (&sums)[8]) {
#if defined(GGUF_AMD_DEVICE) && defined(__GFX12__)
    const Int2 x = {static_cast<int>(a[0]), static_cast<int>(a[1])};
    const Int2 y = {static_cast<int>(b[0]), static_cast<int>(b[1])};
    const Int8 c = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]};
    const Int8 d = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x, true, y, c, false);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = d[i];
#elif defined(GGUF_HOST_EXECUTOR)
    wmma_i32_16x16x16_iu8<2>(a, b, sums, sums);
#else
    (void)a, (void)b, (void)sums;
#endif
  }

  template <int kHalves>
  static __device__ __forceinline__ void multiply(const Tokens& tokens, const Rows& rows, bool,
                                                  int (&sums)[kHalves][8]) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[h][i] = kMagicBits;
    }
    multiply_half(tokens.word, rows.word, sums[0]);
    multiply_half(tokens.word + 2, rows.word + 2, sums[kHalves - 1]);
  }
};

// mma.sync of compute capability 8.0 and up, with the operands the other way round: two instructions of 8 tokens, so that
// the second can be left out. With g = lane / 4 and t = lane % 4, A's words are bytes 4 t .. 4 t + 3 of row g, then of row
// g + 8, then the same of k 16 and up; B's are those of column g, then of k 16 and up. Results are columns 2 t and 2 t + 1
// of row g, then of row g + 8.
struct NvidiaTile {
  using Tokens = Fragment4;  // tokens 0 to 7 in the first two words, 8 to 15 in the others
  using Rows = Fragment4;
  static constexpr int kTokens = 4;
  static constexpr int kRows = 2;
  static __device__ __forceinline__ int token_of_lane(int lane, int number) {
    return 2 * (lane % 4) + number % 2 + number / 2 * 8;
  }
  static __device__ __forceinline__ int row_of_lane(int lane, int number) { return lane / 4 + 8 * number; }
  static __host__ __device__ constexpr int token_of_result(int i) { return i % 2 + i / 4 * 2; }
  static __host__ __device__ constexpr int row_of_result(int i) { return i / 2 % 2; }
  static constexpr int kResultsOf8Tokens = 4;

  // Of four matrices of 8 x 16 bytes lane l gives the address of row l % 8 of matrix l / 8.
  static __device__ __forceinline__ int token_place(int lane, int stride) {
    return (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 16;
  }
  static __device__ __forceinline__ int row_place(int lane, int stride) { return lane % 16 * stride + lane / 16 * 16; }
  static __device__ __forceinline__ Rows load_rows(const int8_t* own) {
    Rows fragment{};
#if defined(GGUF_NVIDIA_DEVICE)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment.word[0]), "=r"(fragment.word[1]), "=r"(fragment.word[2]), "=r"(fragment.word[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own)))
                 : "memory");
#else
    (void)own;
#endif
    return fragment;
  }
  static __device__ __forceinline__ Tokens load_tokens(const int8_t* own, int) { return load_rows(own); }

  template <int kHalves>
  static __device__ __forceinline__ void multiply(const Tokens& tokens, const Rows& rows, bool all,
                                                  int (&sums)[kHalves][8]) {
#if defined(GGUF_NVIDIA_DEVICE)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      if (column == 1 && !all) break;
      if constexpr (kHalves == 1) {
        int* d = sums[0] + 4 * column;
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%10, %10, %10, %10};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(rows.word[0]), "r"(rows.word[1]), "r"(rows.word[2]), "r"(rows.word[3]),
              "r"(tokens.word[2 * column]), "r"(tokens.word[2 * column + 1]), "r"(kMagicBits));
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          int* d = sums[h] + 4 * column;
          asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
              : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
              : "r"(rows.word[2 * h]), "r"(rows.word[2 * h + 1]), "r"(tokens.word[2 * column + h]), "r"(kMagicBits));
        }
      }
    }
#else
    (void)tokens, (void)rows, (void)all, (void)sums;
#endif
  }
};

// Without matrix cores, in the layout of gfx12: the same sums, by the dot product of four bytes.
struct DotTile {
  struct Tokens {
    const int8_t* at;  // of the lane's first token
    int stride;
  };
  using Rows = Fragment8;
  static constexpr int kTokens = 8;
  static constexpr int kRows = 1;
  static __device__ __forceinline__ int token_of_lane(int lane, int number) { return lane / 16 * 8 + number; }
  static __device__ __forceinline__ int row_of_lane(int lane, int) { return lane % 16; }
  static __host__ __device__ constexpr int token_of_result(int i) { return i; }
  static __host__ __device__ constexpr int row_of_result(int) { return 0; }
  static constexpr int kResultsOf8Tokens = 8;

  static __device__ __forceinline__ int token_place(int lane, int stride) { return lane / 16 * 8 * stride; }
  static __device__ __forceinline__ int row_place(int lane, int stride) { return lane % 16 * stride; }
  static __device__ __forceinline__ Tokens load_tokens(const int8_t* own, int stride) { return {own, stride}; }
  static __device__ __forceinline__ Rows load_rows(const int8_t* own) {
    Rows fragment;
    load_16_bytes(own, fragment.word);
    load_16_bytes(own + 16, fragment.word + 4);
    return fragment;
  }

  template <int kHalves>
  static __device__ __forceinline__ void multiply(const Tokens& tokens, const Rows& rows, bool,
                                                  int (&sums)[kHalves][8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t words[8];
      load_16_bytes(tokens.at + i * tokens.stride, words);
      load_16_bytes(tokens.at + i * tokens.stride + 16, words + 4);
      int low = kMagicBits;
#pragma unroll
      for (int w = 0; w < 4; ++w) low = dot4(rows.word[w], words[w], low);
      int high = kHalves == 1 ? low : kMagicBits;
#pragma unroll
      for (int w = 4; w < 8; ++w) high = dot4(rows.word[w], words[w], high);
      sums[0][i] = low;
      sums[kHalves - 1][i] = high;
    }
  }
};

#if defined(GGUF_NVIDIA_DEVICE)
using MatrixCoreTile = NvidiaTile;
#elif defined(GGUF_AMD_DEVICE) && defined(__GFX12__)
using MatrixCoreTile = Gfx12Tile;
#elif defined(GGUF_AMD_DEVICE)
using MatrixCoreTile = Gfx11Tile;
#elif defined(GGUF_HOST_EXECUTOR) && GGUF_HOST_WMMA == 11
using MatrixCoreTile = Gfx11Tile;
#else
using MatrixCoreTile = Gfx12Tile;
#endif

}  // namespace gguf
