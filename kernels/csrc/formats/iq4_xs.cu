// IQ4_XS: 256 weights in 136 bytes, d * (scale - 32) * kIQ4_values[nibble], with a scale of 6 bits every 32.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ4_XSFormat {
  static constexpr Type kType = IQ4_XS;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;           // half
    uint16_t scales_h;    // bits 2 k, 2 k + 1 are the high ones of scale k
    uint8_t scales_l[4];  // low nibble of byte k is of scale 2 k, high nibble of scale 2 k + 1
    uint8_t qs[128];      // for each 32 elements 16 bytes; low nibble of byte j is element j, high nibble j + 16
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 136, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t head[2];  // d and scales_h, scales_l
    uint32_t qs[4];
    uint32_t eighth;  // which 32 of the block
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.eighth = tile % 8;
    load_words<2, 8>(block, got.head);
    load_words<4, 8>(block + 8 + 16 * got.eighth, got.qs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) lookup_nibbles(kIQ4_values, tile.qs[i], &w.q[i], &w.q[i + 4]);
    const uint32_t scale = (tile.head[1] >> (4 * tile.eighth) & 15) | (tile.head[0] >> (16 + 2 * tile.eighth) & 3) << 4;
    w.scale[0] = half_to_float(static_cast<uint16_t>(tile.head[0] & 0xffffu)) *
                 static_cast<float>(static_cast<int>(scale) - 32);
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ4_XS, IQ4_XSFormat)

}  // namespace gguf
