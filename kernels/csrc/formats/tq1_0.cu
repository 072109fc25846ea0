// TQ1_0: 256 weights in 54 bytes, d * (ternary digit - 1), five digits a byte.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct TQ1_0Format {
  static constexpr Type kType = TQ1_0;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 32;

  struct Block {
    uint8_t qs[48];  // digit n of byte j, j < 32, is element 32 n + j; of byte 32 + j it is element 160 + 16 n + j
    uint8_t qh[4];   // digit n of byte j, n < 4, is element 240 + 4 n + j
    uint16_t d;      // half
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 54, "no padding");

  static constexpr int kOffset = -1;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<1, 0>;

  struct Tile {
    uint32_t words[8];  // for the first five 32s of a block qs[0..31]; else qs[32..47] twice, and for the last one the
                        // 16 bytes that end with the block in place of the second
    uint16_t d;
    uint32_t eighth;  // which 32 of the block
  };

  static __device__ __forceinline__ uint32_t power_of_3(uint32_t n) {  // n from 0 to 4
    return n == 4 ? 81 : 0x1b090301u >> (8 * n) & 0xffu;
  }

  // Digit n of each byte, by 3^n: a byte is a fraction of 256, and what the product loses at its top are the digits
  // before; three times the rest passes 256 as often as the digit says. Two bytes at a time have room for that.
  static __device__ __forceinline__ uint32_t digits(uint32_t bytes, uint32_t power) {
    const uint32_t even = ((bytes & 0x00ff00ffu) * power & 0x00ff00ffu) * 3;
    const uint32_t odd = ((bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu) * 3;
    return (even >> 8 & 0x00030003u) | (odd & 0x03000300u);
  }

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 8 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    got.eighth = tile % 8;
    load_words<4, 2>(block + (got.eighth < 5 ? 0 : 32), got.words);
    load_words<4, 2>(block + (got.eighth < 5 ? 16 : got.eighth < 7 ? 32 : 38), got.words + 4);
    got.d = load_u16(block + 52);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t*) {
    Decoded w;
    const uint32_t eighth = tile.eighth;
    const bool last = eighth == 7;
    const uint32_t first_power = power_of_3(eighth < 5 ? eighth : 2 * eighth - 10);
    const uint32_t second_power = eighth < 5 ? first_power : 3 * first_power;
    const uint32_t qh = tile.words[6] >> 16 | tile.words[7] << 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w.q[i] = digits(tile.words[i], first_power);
      w.q[i + 4] =
          digits(last ? qh : tile.words[i + 4], last ? power_of_3(static_cast<uint32_t>(i)) : second_power);
    }
    w.scale[0] = half_to_float(tile.d);
    return w;
  }
};

GGUF_DEFINE_FORMAT(TQ1_0, TQ1_0Format)

}  // namespace gguf
