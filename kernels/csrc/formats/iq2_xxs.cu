// IQ2_XXS: 256 weights in 66 bytes, d * (2 * scale + 1) / 8 * (8, 25 or 43 from a grid, or minus that), with a
// scale of 4 bits every 32.
#include "formats/decode.cuh"
#include "formats/iq_grids.h"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ2_XXSFormat {
  static constexpr Type kType = IQ2_XXS;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;       // half
    uint16_t qs[32];  // for each 32 elements two words: four indices into the grid; four times 7 signs, and the scale
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 66, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = sizeof kIQ2_XXS_grid / 4;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t qs[2];
    uint16_t d;
  };

  static __device__ __forceinline__ const uint32_t* table() { return kIQ2_XXS_grid; }

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.d = load_u16(block);
    load_words<2, 2>(block + 2 + 8 * (tile % 8), got.qs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t* grid) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      put_signs_of_7(lookup_pair(grid, byte_of(tile.qs[0], i)), tile.qs[1] >> (7 * i) & 127, w.q + 2 * i);
    }
    w.scale[0] = half_to_float(tile.d) * static_cast<float>(tile.qs[1] >> 27 | 1) * 0.125f;
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ2_XXS, IQ2_XXSFormat)

}  // namespace gguf
