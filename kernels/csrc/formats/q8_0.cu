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

  using Tile = HalfAndWords<8>;

  static __device__ __forceinline__ Tile load(const uint8_t* row, uint32_t tile) {
    return load_half_and_words<8>(row + static_cast<size_t>(tile * static_cast<uint32_t>(kBlockBytes)));
  }

  static __device__ __forceinline__ float dot(const Tile& w, const Activations* x) {
    int total = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) total = dot4(w.words[i], x->q[i], total);
    // In this order no partial product leaves the range of float where the result does not.
    return static_cast<float>(total) * half_to_float(w.half) * x->d;
  }

  // Elements 8 * group .. 8 * group + 7 of a block.
  static __device__ __forceinline__ void dequantize(const uint8_t* block, int group, float* value) {
    const float d = half_to_float(load_u16(block));
    const uint8_t* qs = block + 2 + 8 * group;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint16_t pair = load_u16(qs + 2 * i);
      value[2 * i] = mul_rounded(d, static_cast<float>(static_cast<int8_t>(pair & 0xff)));
      value[2 * i + 1] = mul_rounded(d, static_cast<float>(static_cast<int8_t>(pair >> 8)));
    }
  }
};

GGUF_DEFINE_FORMAT(Q8_0, Q8_0Format)

}  // namespace gguf
