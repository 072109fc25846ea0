// Q5_0: 32 weights in 22 bytes, d * (5 bits - 16).
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct Q5_0Format {
  static constexpr Type kType = Q5_0;
  static constexpr int kBlockElements = 32;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;      // half
    uint8_t qh[4];   // bit j is the fifth bit of element j
    uint8_t qs[16];  // low nibble of byte j is element j, high nibble element j + 16
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 22, "no padding");

  static constexpr int kOffset = -16;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t words[5];  // qh, qs
    uint16_t d;
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.d = load_u16(block);
    load_words<5, 2>(block + 2, got.words);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w.q[i] = (tile.words[i + 1] & 0x0f0f0f0fu) | spread_bits(tile.words[0], 4 * i, 4);
      w.q[i + 4] = (tile.words[i + 1] >> 4 & 0x0f0f0f0fu) | spread_bits(tile.words[0], 4 * i + 16, 4);
    }
    w.scale[0] = half_to_float(tile.d);
    return w;
  }
};

GGUF_DEFINE_FORMAT(Q5_0, Q5_0Format)

}  // namespace gguf
