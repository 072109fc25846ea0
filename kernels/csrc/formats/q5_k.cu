// Q5_K: 256 weights in 176 bytes, d * scale * (5 bits) - dmin * minimum, with a scale and a minimum of 6 bits every 32.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct Q5_KFormat {
  static constexpr Type kType = Q5_K;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 64;

  struct Block {
    uint16_t d;          // half
    uint16_t dmin;       // half
    uint8_t scales[12];  // see scales_and_minima
    uint8_t qh[32];      // bit s of byte j is the fifth bit of element 32 s + j
    uint8_t qs[128];     // for each 64 elements 32 bytes; low nibble of byte j is element j, high nibble element j + 32
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 176, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 1>;

  struct Tile {
    uint32_t head[4];  // d and dmin, then the 12 bytes of scales
    uint32_t qh[8];
    uint32_t qs[8];
    uint32_t pair;  // which 64 of the block
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 4 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.pair = tile % 4;
    load_words<4, 16>(block, got.head);
    load_words<8, 16>(block + 16, got.qh);
    load_words<8, 16>(block + 48 + 32 * got.pair, got.qs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int part, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t fifth = rotate_right(tile.qh[i], 2 * static_cast<int>(tile.pair) - 4) >> part;
      w.q[i] = (tile.qs[i] >> (4 * part) & 0x0f0f0f0fu) | (fifth & 0x10101010u);
    }
    uint32_t scales, minima;
    scales_and_minima(tile.head, tile.pair, &scales, &minima);
    w.scale[0] = half_to_float(static_cast<uint16_t>(tile.head[0] & 0xffffu)) *
                 byte_to_float(scales, part);
    w.minimum[0] = half_to_float(static_cast<uint16_t>(tile.head[0] >> 16)) * byte_to_float(minima, part);
    return w;
  }
};

GGUF_DEFINE_FORMAT(Q5_K, Q5_KFormat)

}  // namespace gguf
