// IQ3_XXS: 256 weights in 98 bytes, d * (2 * scale + 1) / 4 * (4 to 62 from a grid, or minus that), with a
// scale of 4 bits every 32.
#include "formats/decode.cuh"
#include "formats/iq_grids.h"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ3_XXSFormat {
  static constexpr Type kType = IQ3_XXS;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;          // half
    uint8_t qs[64];      // for each 4 elements an index into the grid
    uint8_t signs[32];   // for each 32 elements a word: four times 7 signs, and the scale
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 98, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = sizeof kIQ3_XXS_grid / 4;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t qs[2];
    uint32_t signs;
    uint16_t d;
  };

  static __device__ __forceinline__ const uint32_t* table() { return kIQ3_XXS_grid; }

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    const uint32_t eighth = tile % 8;
    got.d = load_u16(block);
    load_words<2, 2>(block + 2 + 8 * eighth, got.qs);
    load_words<1, 2>(block + 66 + 4 * eighth, &got.signs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t* grid) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t indices = tile.qs[i / 2] >> (16 * (i % 2));
      const uint2 bytes = make_uint2(grid[indices & 255], grid[indices >> 8 & 255]);
      put_signs_of_7(bytes, tile.signs >> (7 * i) & 127, w.q + 2 * i);
    }
    w.scale[0] = half_to_float(tile.d) * static_cast<float>(tile.signs >> 27 | 1) * 0.25f;
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ3_XXS, IQ3_XXSFormat)

}  // namespace gguf
