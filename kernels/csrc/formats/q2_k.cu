// Q2_K: 256 weights in 84 bytes, d * scale * (2 bits) - dmin * minimum, with a scale and a minimum of 4 bits every 16.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct Q2_KFormat {
  static constexpr Type kType = Q2_K;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 64;

  struct Block {
    uint8_t scales[16];  // low nibble the scale, high nibble the minimum
    uint8_t qs[64];      // for each 128 elements 32 bytes; bits 2 s, 2 s + 1 of byte j are element 32 s + j
    uint16_t d;          // half
    uint16_t dmin;       // half
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 84, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<2, 2>;

  struct Tile {
    uint32_t qs[8];
    uint32_t scales;  // of the four sixteens
    uint32_t d;       // and dmin
    int shift;        // of the first 32 elements' bits
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 4 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    const uint32_t quarter = tile % 4;
    load_words<1, 4>(block + 4 * quarter, &got.scales);
    load_words<8, 4>(block + 16 + 32 * (quarter / 2), got.qs);
    load_words<1, 4>(block + 80, &got.d);
    got.shift = static_cast<int>(quarter % 2 * 4);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int part, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = tile.qs[i] >> (tile.shift + 2 * part) & 0x03030303u;
    const float d = half_to_float(static_cast<uint16_t>(tile.d & 0xffffu));
    const float dmin = half_to_float(static_cast<uint16_t>(tile.d >> 16));
    const uint32_t scales = tile.scales & 0x0f0f0f0fu;
    const uint32_t minima = tile.scales >> 4 & 0x0f0f0f0fu;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      w.scale[half] = d * byte_to_float(scales, 2 * part + half);
      w.minimum[half] = dmin * byte_to_float(minima, 2 * part + half);
    }
    return w;
  }
};

GGUF_DEFINE_FORMAT(Q2_K, Q2_KFormat)

}  // namespace gguf
