// IQ2_XS: 256 weights in 74 bytes, d * (2 * scale + 1) / 8 * (8, 25 or 43 from a grid, or minus that), with a
// scale of 4 bits every 16.
#include "formats/decode.cuh"
#include "formats/iq_grids.h"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ2_XSFormat {
  static constexpr Type kType = IQ2_XS;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;         // half
    uint16_t qs[32];    // for each 8 elements 9 bits of index into the grid, 7 signs
    uint8_t scales[8];  // low nibble of byte k is of the sixteen 2 k, high nibble of the next
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 74, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = sizeof kIQ2_XS_grid / 4;
  using Decoded = Weights<2, 0>;

  struct Tile {
    uint32_t qs[2];
    uint16_t d;
    uint32_t scales;  // two
  };

  static __device__ __forceinline__ const uint32_t* table() { return kIQ2_XS_grid; }

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.d = load_u16(block);
    load_words<2, 2>(block + 2 + 8 * (tile % 8), got.qs);
    got.scales = block[66 + tile % 8];
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t* grid) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t code = tile.qs[i / 2] >> (16 * (i % 2));
      put_signs_of_7(lookup_pair(grid, code & 511), code >> 9 & 127, w.q + 2 * i);
    }
    const float d = half_to_float(tile.d) * 0.125f;
    w.scale[0] = d * static_cast<float>(2 * (tile.scales & 15) + 1);
    w.scale[1] = d * static_cast<float>(2 * (tile.scales >> 4) + 1);
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ2_XS, IQ2_XSFormat)

}  // namespace gguf
