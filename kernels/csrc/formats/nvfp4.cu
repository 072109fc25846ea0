// NVFP4: 64 weights in 36 bytes, d * kE2M1_doubled[nibble] / 2, with a d of 8 bits every 16.
#include "formats/decode.cuh"
#include "launch/format_ops.cuh"

namespace gguf {

struct NVFP4Format {
  static constexpr Type kType = NVFP4;
  static constexpr int kBlockElements = 64;
  static constexpr int kTileElements = 32;

  struct Block {
    uint8_t d[4];    // UE4M3: the top bit does not count; 0x7f is 0 here, as it is for the gguf package
    uint8_t qs[32];  // for each 16 elements 8 bytes; low nibble of byte j is element j, high nibble element j + 8
  };
  static constexpr int kBlockBytes = sizeof(Block);
  static_assert(kBlockBytes == 36, "no padding");

  static constexpr int kOffset = 0;
  static constexpr int kTableWords = 0;
  using Decoded = Weights<2, 0>;

  struct Tile {
    uint32_t qs[4];
    uint32_t d;  // two of them
  };

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    const uint8_t* block = row + static_cast<size_t>(tile / 2 * static_cast<uint32_t>(kBlockBytes));
    Tile got;
    const uint32_t half = tile % 2;
    got.d = load_u16(block + 2 * half);
    load_words<4, 4>(block + 4 + 16 * half, got.qs);
    return got;
  }

  static __device__ __forceinline__ Decoded decode(const Tile& tile, int, const uint32_t*) {
    Decoded w;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        lookup_nibbles(kE2M1_doubled, tile.qs[2 * half + i], &w.q[4 * half + i], &w.q[4 * half + i + 2]);
      }
    }
    // Both at once: bit 7 of `special` where a byte is 0x7f, and zeros for that byte.
    const uint32_t special = ((tile.d & 0x7f7fu) + 0x0101u) & ~tile.d & 0x8080u;
    const uint32_t d = tile.d & 0x7f7fu & ~(special - (special >> 7));
    // The bits of a UE4M3 are those of a half 2^8 times smaller, denormals too.
    w.scale[0] = half_to_float(static_cast<uint16_t>((d & 0x7fu) << 7)) * 128.0f;
    w.scale[1] = half_to_float(static_cast<uint16_t>((d & 0x7f00u) >> 1)) * 128.0f;
    return w;
  }
};

GGUF_DEFINE_FORMAT(NVFP4, NVFP4Format)

}  // namespace gguf
