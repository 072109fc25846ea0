// IQ2_S: 256 weights in 82 bytes, d * (2 * scale + 1) / 8 * (8, 25 or 43 from a grid, or minus that), with a
// scale of 4 bits every 16.
#include "formats/decode.cuh"
#include "formats/iq_grids.h"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ2_SFormat {
  static constexpr Type kType = IQ2_S;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;         // half
    uint8_t qs[32];     // for each 8 elements the low 8 bits of an index into the grid
    uint8_t signs[32];  // for each 8 elements
    uint8_t qh[8];      // for each 32 elements four times the high 2 bits of an index
    uint8_t scales[8];  // low nibble of byte k is of the sixteen 2 k, high nibble of the next
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 82, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = sizeof kIQ2_S_grid / 4;
  using Decoded = Weights<2, 0>;

  struct Tile {
    uint32_t qs;
    uint32_t signs;
    uint32_t qh;
    uint32_t scales;  // two
    uint16_t d;
  };

  static __device__ __forceinline__ const uint32_t* table() { return kIQ2_S_grid; }

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    const uint32_t eighth = tile % 8;
    got.d = load_u16(block);
    load_words<1, 2>(block + 2 + 4 * eighth, &got.qs);
    load_words<1, 2>(block + 34 + 4 * eighth, &got.signs);
    got.qh = block[66 + eighth];
    got.scales = block[74 + eighth];
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t* grid) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t index = byte_of(tile.qs, i) | (tile.qh >> (2 * i) & 3) << 8;
      put_signs_of_8(lookup_pair(grid, index), byte_of(tile.signs, i), w.q + 2 * i);
    }
    const float d = half_to_float(tile.d) * 0.125f;
    w.scale[0] = d * static_cast<float>(2 * (tile.scales & 15) + 1);
    w.scale[1] = d * static_cast<float>(2 * (tile.scales >> 4) + 1);
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ2_S, IQ2_SFormat)

}  // namespace gguf
