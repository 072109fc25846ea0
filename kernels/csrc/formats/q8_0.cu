// Q8_0: 32 weights in 34 bytes, d * q.
#include "launch/format_ops.cuh"

namespace gguf {

struct Q8_0Format {
  static constexpr Type kType = Q8_0;
  static constexpr int kBlockElements = 32;
  static constexpr int kTileElements = 32;

  struct Block {
    uint16_t d;  // half
    int8_t qs[32];
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 34, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t qs[8];
    uint16_t d;
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.d = load_u16(block);
    load_words<8, 2>(block + 2, got.qs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = tile.qs[i];
    w.scale[0] = half_to_float(tile.d);
    return w;
  }
};

GGUF_DEFINE_FORMAT(Q8_0, Q8_0Format)

}  // namespace gguf
