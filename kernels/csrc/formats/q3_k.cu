// Q3_K: 256 weights in 110 bytes, d * (scale - 32) * (3 bits - 4), with a scale of 6 bits every 16.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct Q3_KFormat {
  static constexpr Type kType = Q3_K;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 64;

  struct Block {
    uint8_t hmask[32];   // bit s of byte j is the third bit of element 32 s + j
    uint8_t qs[64];      // for each 128 elements 32 bytes; bits 2 s, 2 s + 1 of byte j are element 32 s + j
    uint8_t scales[12];  // scale k: its low 4 bits are nibble k / 8 of byte k % 8, its high 2 bits those from bit
                         // 2 (k / 4) on of byte 8 + k % 4
    uint16_t d;          // half
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 110, "no padding");

  static constexpr int kOffset = -4;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<2, 0>;

  struct Tile {
    uint32_t qs[8];
    uint32_t hmask[8];
    uint32_t low;    // of four scales, and of the four 8 behind or before them
    uint32_t end[2];  // the last 8 bytes
    int quarter;     // which 64 of the block
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 4 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    const uint32_t quarter = tile % 4;
    load_words<8, 2>(block, got.hmask);
    load_words<8, 2>(block + 32 + 32 * (quarter / 2), got.qs);
    load_words<1, 2>(block + 96 + 4 * (quarter % 2), &got.low);
    load_words<2, 2>(block + 102, got.end);
    got.quarter = static_cast<int>(quarter);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int part, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t third = rotate_right(tile.hmask[i], 2 * tile.quarter - 2) >> part;
      w.q[i] = (tile.qs[i] >> (tile.quarter % 2 * 4 + 2 * part) & 0x03030303u) | (third & 0x04040404u);
    }
    const uint32_t high = tile.end[0] >> 16 | tile.end[1] << 16;
    const uint32_t scales =
        (tile.low >> (tile.quarter / 2 * 4) & 0x0f0f0f0fu) | (high >> (2 * tile.quarter) & 0x03030303u) << 4;
    const float d = half_to_float(static_cast<uint16_t>(tile.end[1] >> 16));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      w.scale[half] = d * (byte_to_float(scales, 2 * part + half) - 32.0f);
    }
    return w;
  }
};

GGUF_DEFINE_FORMAT(Q3_K, Q3_KFormat)

}  // namespace gguf
