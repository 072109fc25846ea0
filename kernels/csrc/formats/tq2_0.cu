// TQ2_0: 256 weights in 66 bytes, d * (2 bits - 1).
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct TQ2_0Format {
  static constexpr Type kType = TQ2_0;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 64;

  struct Block {
    uint8_t qs[64];  // for each 128 elements 32 bytes; bits 2 s, 2 s + 1 of byte j are element 32 s + j
    uint16_t d;      // half
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 66, "no padding");

  static constexpr int kOffset = -1;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t qs[8];
    uint16_t d;
    int shift;  // of the first 32 elements' bits
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 4 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    const uint32_t quarter = tile % 4;
    load_words<8, 2>(block + 32 * (quarter / 2), got.qs);
    got.d = load_u16(block + 64);
    got.shift = static_cast<int>(quarter % 2 * 4);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int part, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = tile.qs[i] >> (tile.shift + 2 * part) & 0x03030303u;
    w.scale[0] = half_to_float(tile.d);
    return w;
  }
};

GGUF_DEFINE_FORMAT(TQ2_0, TQ2_0Format)

}  // namespace gguf
