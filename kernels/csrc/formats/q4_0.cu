// Q4_0: 32 weights in 18 bytes, d * (nibble - 8).
#include "launch/format_ops.cuh"

namespace gguf {

struct Q4_0Format {
  static constexpr Type kType = Q4_0;
  static constexpr int kBlockElements = 32;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;      // half
    uint8_t qs[16];  // low nibble of byte j is element j, high nibble element j + 16
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 18, "no padding");

  static constexpr int kOffset = -8;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t qs[4];
    uint16_t d;
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.d = load_u16(block);
    load_words<4, 2>(block + 2, got.qs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w.q[i] = tile.qs[i] & 0x0f0f0f0fu;
      w.q[i + 4] = (tile.qs[i] >> 4) & 0x0f0f0f0fu;
    }
    w.scale[0] = half_to_float(tile.d);
    return w;
  }
};

GGUF_DEFINE_FORMAT(Q4_0, Q4_0Format)

}  // namespace gguf
