// IQ3_S: 256 weights in 110 bytes, d * (2 * scale + 1) * (1 to 15 from a grid, or minus that), with a
// scale of 4 bits every 32.
#include "formats/decode.cuh"
#include "formats/iq_grids.h"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ3_SFormat {
  static constexpr Type kType = IQ3_S;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;         // half
    uint8_t qs[64];     // for each 4 elements the low 8 bits of an index into the grid
    uint8_t qh[8];      // for each 32 elements eight times the ninth bit of an index
    uint8_t signs[32];  // for each 8 elements
    uint8_t scales[4];  // low nibble of byte k is of the 32 elements 2 k, high nibble of the next
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 110, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = sizeof kIQ3_S_grid / 4;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t qs[2];
    uint32_t qh;
    uint32_t signs;
    uint32_t scale;
    uint16_t d;
  };

  static __device__ __forceinline__ const uint32_t* table() { return kIQ3_S_grid; }

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    const uint32_t eighth = tile % 8;
    got.d = load_u16(block);
    load_words<2, 2>(block + 2 + 8 * eighth, got.qs);
    got.qh = block[66 + eighth];
    load_words<1, 2>(block + 74 + 4 * eighth, &got.signs);
    got.scale = static_cast<uint32_t>(block[106 + eighth / 2]) >> (4 * (eighth % 2)) & 15;
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t* grid) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t index[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int at = 2 * i + k;
        index[k] = byte_of(tile.qs[at / 4], at % 4) | (tile.qh << (8 - at) & 256);
      }
      put_signs_of_8(make_uint2(grid[index[0]], grid[index[1]]), byte_of(tile.signs, i), w.q + 2 * i);
    }
    w.scale[0] = half_to_float(tile.d) * static_cast<float>(2 * tile.scale + 1);
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ3_S, IQ3_SFormat)

}  // namespace gguf
