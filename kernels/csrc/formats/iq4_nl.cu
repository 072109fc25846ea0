// IQ4_NL: 32 weights in 18 bytes, d * kIQ4_values[nibble].
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct IQ4_NLFormat {
  static constexpr Type kType = IQ4_NL;
  static constexpr int kBlockElements = 32;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;      // half
    uint8_t qs[16];  // low nibble of byte j is element j, high nibble element j + 16
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 18, "no padding");

  static constexpr int kOffset = 0;
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
    for (int i = 0; i < 4; ++i) lookup_nibbles(kIQ4_values, tile.qs[i], &w.q[i], &w.q[i + 4]);
    w.scale[0] = half_to_float(tile.d);
    return w;
  }
};

GGUF_DEFINE_FORMAT(IQ4_NL, IQ4_NLFormat)

}  // namespace gguf
