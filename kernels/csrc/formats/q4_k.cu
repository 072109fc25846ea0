// Q4_K: 256 weights in 144 bytes, d * scale * nibble - dmin * minimum, with a scale and a minimum of 6 bits every 32.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct Q4_KFormat {
  static constexpr Type kType = Q4_K;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 64;  // 32 bytes of nibbles: the low ones are 32 elements, the high ones the next

  struct Block {
    uint16_t d;          // half
    uint16_t dmin;       // half
    uint8_t scales[12];  // of 6 bits each: see scales_and_minima
    uint8_t qs[128];     // for each 64 elements 32 bytes; low nibble of byte j is element j, high nibble element j + 32
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 144, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 1>;

  struct Tile {
    uint32_t head[4];  // d and dmin, then the 12 bytes of scales
    uint32_t qs[8];
    uint32_t pair;  // which 64 of the block
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 4 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.pair = tile % 4;
    load_words<4, 16>(block, got.head);
    load_words<8, 16>(block + 16 + 32 * got.pair, got.qs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int part, const uint32_t*) {
    uint32_t scales, minima;
    scales_and_minima(tile.head, tile.pair, &scales, &minima);
    Decoded w;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = (part == 0 ? tile.qs[i] : tile.qs[i] >> 4) & 0x0f0f0f0fu;
    w.scale[0] = half_to_float(static_cast<uint16_t>(tile.head[0] & 0xffffu)) *
                 byte_to_float(scales, part);
    w.minimum[0] = half_to_float(static_cast<uint16_t>(tile.head[0] >> 16)) *
                   byte_to_float(minima, part);
    return w;
  }
};

GGUF_DEFINE_FORMAT(Q4_K, Q4_KFormat)

}  // namespace gguf
