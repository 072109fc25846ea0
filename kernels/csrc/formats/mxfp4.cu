// MXFP4: 32 weights in 17 bytes, 2^(e - 127) * kE2M1_doubled[nibble] / 2.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct MXFP4Format {
  static constexpr Type kType = MXFP4;
  static constexpr int kBlockElements = 32;
  static constexpr int kTileElements = 32;

  struct Block {
    uint8_t e;       // E8M0: 0 is 2^-127, a denormal float; 255 is NaN, as the OCP standard has it
    uint8_t qs[16];  // low nibble of byte j is element j, high nibble element j + 16
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 17, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t qs[4];
    uint32_t e;
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.e = block[0];
    load_words<4, 1>(block + 1, got.qs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 4; ++i) lookup_nibbles(kE2M1_doubled, tile.qs[i], &w.q[i], &w.q[i + 4]);
    // The exponent of a float; with the top bit of the mantissa 0 becomes 2^-127 and 255 NaN.
    const uint32_t top = ((tile.e + 1) & 0xffu) < 2 ? 0x00400000u : 0u;
    const uint32_t bits = tile.e << 23 | top;
    float power;
    memcpy(&power, &bits, 4);
    w.scale[0] = power * 0.5f;
    return w;
  }
};

GGUF_DEFINE_FORMAT(MXFP4, MXFP4Format)

}  // namespace gguf
