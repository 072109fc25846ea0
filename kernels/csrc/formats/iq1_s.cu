// IQ1_S: 256 weights in 50 bytes, d * (2 * scale + 1) * (-1, 0 or 1 from a grid, + or - 1/8), with a scale of 3 bits
// and a shift every 32.
#include "formats/decode.cuh"
#include "formats/iq_grids.h"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ1_SFormat {
  static constexpr Type kType = IQ1_S;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;      // half
    uint8_t qs[32];  // for each 8 elements the low 8 bits of an index into the grid
    uint16_t qh[8];  // for each 32 elements four times the high 3 bits of an index, the scale, minus instead of plus
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 50, "no padding");

  static constexpr int kOffset = -9;
  static constexpr int kTableWords = sizeof kIQ1_grid / 4;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t qs;
    uint32_t qh;
    uint16_t d;
  };

  static __device__ __forceinline__ const uint32_t* table() { return kIQ1_grid; }

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.d = load_u16(block);
    load_words<1, 2>(block + 2 + 4 * (tile % 8), &got.qs);
    got.qh = load_u16(block + 34 + 2 * (tile % 8));
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t* grid) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t index = byte_of(tile.qs, i) | (tile.qh >> (3 * i) & 7) << 8;
      put_shift(grid[index], (tile.qh & 0x8000u) == 0, w.q + 2 * i);
    }
    w.scale[0] = half_to_float(tile.d) * static_cast<float>(2 * (tile.qh >> 12 & 7) + 1) * 0.125f;
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ1_S, IQ1_SFormat)

}  // namespace gguf
