// IQ1_M: 256 weights in 56 bytes, d * (2 * scale + 1) * (-1, 0 or 1 from a grid, + or - 1/8), with a scale of 3 bits
// every 16 and a shift every 8.
#include "formats/decode.cuh"
#include "formats/iq_grids.h"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ1_MFormat {
  static constexpr Type kType = IQ1_M;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint8_t qs[32];      // for each 8 elements the low 8 bits of an index into the grid
    uint8_t qh[16];      // for each 8 elements a nibble: the high 3 bits of an index, minus instead of plus
    uint16_t scales[4];  // for each 64 elements four times 3 bits of scale; the top nibbles are those of d, a half
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 56, "no padding");

  static constexpr int kOffset = -9;
  static constexpr int kTableWords = sizeof kIQ1_grid / 4;
  using Decoded = Weights<2, 0>;

  struct Tile {
    uint32_t qs;
    uint32_t qh;
    uint32_t scales[2];
    uint32_t eighth;  // which 32 of the block
  };

  static __device__ __forceinline__ const uint32_t* table() { return kIQ1_grid; }

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.eighth = tile % 8;
    load_words<1, 4>(block + 4 * got.eighth, &got.qs);
    got.qh = load_u16(block + 32 + 2 * got.eighth);
    load_words<2, 8>(block + 48, got.scales);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t* grid) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t index = byte_of(tile.qs, i) | (tile.qh >> (4 * i) & 7) << 8;
      put_shift(grid[index], (tile.qh >> (4 * i) & 8) == 0, w.q + 2 * i);
    }
    const uint32_t bits = (tile.scales[0] >> 12 & 0xfu) | (tile.scales[0] >> 24 & 0xf0u) |
                          (tile.scales[1] >> 4 & 0xf00u) | (tile.scales[1] >> 16 & 0xf000u);
    const float d = half_to_float(static_cast<uint16_t>(bits)) * 0.125f;
    const uint32_t scales = (tile.eighth < 4 ? tile.scales[0] : tile.scales[1]) >>
                            (16 * (tile.eighth / 2 % 2) + 6 * (tile.eighth % 2));
    w.scale[0] = d * static_cast<float>(2 * (scales & 7) + 1);
    w.scale[1] = d * static_cast<float>(2 * (scales >> 3 & 7) + 1);
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ1_M, IQ1_MFormat)

}  // namespace gguf
