// Q6_K: 256 weights in 210 bytes, d * scale * (6 bits - 32), with a signed scale of 8 bits every 16.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct Q6_KFormat {
  static constexpr Type kType = Q6_K;
  static constexpr int kBlockElements = 256;
  static constexpr int kTileElements = 64;

  struct Block {
    uint8_t ql[128];    // for each 128 elements 64 bytes; low nibble of byte j is element j, high nibble element j + 64
    uint8_t qh[64];     // for each 128 elements 32 bytes; bits 2 s, 2 s + 1 of byte j are high, of element 32 s + j
    int8_t scales[16];
    uint16_t d;         // half
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 210, "no padding");

  static constexpr int kOffset = -32;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<2, 0>;

  struct Tile {
    uint32_t ql[16];
    uint32_t qh[8];
    uint32_t scales;  // of the four sixteens
    uint16_t d;
    int shift;  // of the nibbles, 0 or 4
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 4 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    const uint32_t quarter = tile % 4;
    load_words<16, 2>(block + 64 * (quarter / 2), got.ql);
    load_words<8, 2>(block + 128 + 32 * (quarter / 2), got.qh);
    load_words<1, 2>(block + 192 + 4 * quarter, &got.scales);
    got.d = load_u16(block + 208);
    got.shift = static_cast<int>(quarter % 2 * 4);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int part, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t high = rotate_right(tile.qh[i], tile.shift - 4) >> (2 * part);
      w.q[i] = (tile.ql[8 * part + i] >> tile.shift & 0x0f0f0f0fu) | (high & 0x30303030u);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      w.scale[half] =
          half_to_float(tile.d) * static_cast<float>(static_cast<int8_t>(byte_of(tile.scales, 2 * part + half)));
    }
    return w;
  }
};

GGUF_DEFINE_FORMAT(Q6_K, Q6_KFormat)

}  // namespace gguf
