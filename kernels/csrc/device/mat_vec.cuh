// Products of quantised weights with 1 to 8 quantised vectors; any format.
//
// A wave computes kRows rows. A lane takes whole tiles (a tile is the weights that a format loads at once, 32 or a
// multiple), so scales are read and unpacked once, weights come in the widest loads the layout allows, the activations
// that a lane loads serve all rows of its wave, and the weights it decodes serve all vectors.
#pragma once

#include "device/activations.cuh"
#include "device/platform.cuh"
#include "device/weights.cuh"

namespace gguf {

constexpr int kMatVecWaves = 4;
constexpr int kMatVecThreads = kMatVecWaves * kWave;
constexpr int kMaxVectors = 8;

enum class Dtype : int32_t { f32 = 0, f16 = 1, bf16 = 30 };  // as GgufScalar

struct MatVecArgs {
  const uint8_t* weight;  // of the one expert, or of the first
  ActivationView x;
  void* out;
  Dtype dtype;
  int64_t row_bytes;
  int64_t rows;
  int64_t cols;
  int64_t first_group;   // of kMatVecWaves * kRows rows
  int64_t first_vector;  // of this launch
  int64_t vectors;       // of the whole call
  const void* raw;       // the activations before quantisation, of `dtype`, where the product quantises them, else null
  int64_t raw_stride;    // elements from one vector to the next
};

// Element first + at of `out`; `first` is the same in all lanes.
static __device__ __forceinline__ void store_result(void* out, Dtype dtype, int64_t first, int64_t at, float value) {
  if (dtype == Dtype::f32) {
    (static_cast<float*>(out) + first)[at] = value;
  } else {
    const __half half = Scalar<__half>::put(value);
    const __nv_bfloat16 bfloat = Scalar<__nv_bfloat16>::put(value);
    uint16_t bits[2];
    memcpy(&bits[0], &half, 2);
    memcpy(&bits[1], &bfloat, 2);
    (static_cast<uint16_t*>(out) + first)[at] = dtype == Dtype::f16 ? bits[0] : bits[1];
  }
}
static __device__ __forceinline__ void store_result(void* out, Dtype dtype, int64_t at, float value) {
  store_result(out, dtype, 0, at, value);
}

// Tiles of a row. That the columns fit 32 bits AMD's compiler is not to see here: knowing that no offset within a row
// has a carry, it would step a pointer of 64 bits for each load.
template <typename Format>
static __device__ __forceinline__ uint32_t tiles_of(int64_t cols) {
  return static_cast<uint32_t>(static_cast<uint64_t>(cols) / Format::kTileElements);
}

// Rows first_row .. first_row + kRows - 1 of one matrix with `count` adjacent vectors, 1 to kVectors; out_vector is the
// first one's row of the result. Called by whole waves, all parameters the same in every lane.
template <typename Format, int kVectors, int kRows>
static __device__ __forceinline__ void mat_vec_rows_of_wave(const MatVecArgs& args, const uint8_t* weight,
                                                            int64_t first_row, int64_t x_vector, int64_t out_vector,
                                                            int count) {
  constexpr uint32_t kTileBlocks = Format::kTileElements / kActivationBlock;
  const uint32_t lane = threadIdx.x % kWave;
  // These fit 32 bits, which saves scalar instructions: there are less than 2^31 columns, of little more than a byte.
  const uint32_t cols = static_cast<uint32_t>(args.cols);
  const uint32_t row_bytes = static_cast<uint32_t>(args.row_bytes);
  const uint32_t stride = static_cast<uint32_t>(scale_stride(cols));
  const uint32_t tiles = tiles_of<Format>(args.cols);
  const int rows = args.rows - first_row < kRows ? static_cast<int>(args.rows - first_row) : kRows;

  // Past the end it is the last row, and the last vector, again; those results are not stored.
  const uint8_t* row[kRows];
  row[0] = weight + first_row * row_bytes;
#pragma unroll
  for (int r = 1; r < kRows; ++r) row[r] = one_address(row[r - 1] + (r < rows ? row_bytes : 0));
  const int8_t* q[kVectors];
  const ActivationScale* scale[kVectors];
  q[0] = args.x.q + x_vector * cols;
  scale[0] = args.x.scale + x_vector * stride;
#pragma unroll
  for (int v = 1; v < kVectors; ++v) {
    q[v] = one_address(q[v - 1] + (v < count ? cols : 0));
    scale[v] = one_address(scale[v - 1] + (v < count ? stride : 0));
  }

  const uint32_t* table = table_of<Format>();
  float sum[kVectors * kRows] = {};  // v * kRows + r
  const auto step = [&](uint32_t tile) {
    typename Format::Tile raw[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) raw[r] = Format::load(row[r], tile);
#pragma unroll
    for (uint32_t part = 0; part < kTileBlocks; ++part) {
      typename Format::Decoded weights[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) weights[r] = Format::decode(raw[r], static_cast<int>(part), table);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const Activations x = load_activations(q[v], scale[v], tile * kTileBlocks + part);
#pragma unroll
        for (int r = 0; r < kRows; ++r) sum[v * kRows + r] += dot<Format::kOffset>(weights[r], x);
        if (kVectors > 2 && v % 4 == 3) keep_order();
      }
      if (kVectors > 1 && kTileBlocks > 1) keep_order();
    }
  };
  // Whole waves of tiles in a loop of scalar control, the rest once with some lanes off.
  uint32_t base = 0;
  for (; base + kWave <= tiles; base += kWave) step(base + lane);
  if (base + lane < tiles) step(base + lane);

  const float result = wave_sums(sum);  // lane v * kRows + r has that of vector v and row r
  const uint32_t own_row = lane % kRows;
  if (lane < kRows * static_cast<uint32_t>(count) && own_row < static_cast<uint32_t>(rows)) {
    const int64_t first = out_vector * args.rows + first_row;
    store_result(args.out, args.dtype, first, lane / kRows * args.rows + own_row, result);
  }
}

template <int kRows>
static __device__ __forceinline__ int64_t first_row_of_wave(int64_t first_group) {
  const int wave = wave_uniform(static_cast<int>(threadIdx.x) / kWave);
  return ((first_group + blockIdx.x) * kMatVecWaves + wave) * kRows;
}

// Grid: x over groups of kMatVecWaves * kRows rows, y over groups of kMaxVectors vectors, the last of which may have
// fewer; where kVectors is less than that there is one group.
template <typename Format, int kVectors, int kRows>
static __global__ void __launch_bounds__(kMatVecThreads) GGUF_REGISTERS(96) mul_mat_vec(MatVecArgs args) {
  const int64_t first_row = first_row_of_wave<kRows>(args.first_group);
  if (first_row >= args.rows) return;
  const int64_t vector = kVectors < kMaxVectors ? 0 : args.first_vector + static_cast<int64_t>(blockIdx.y) * kVectors;
  int count = kVectors;
  if (kVectors > 1 && args.vectors - vector < kVectors) count = static_cast<int>(args.vectors - vector);
  mat_vec_rows_of_wave<Format, kVectors, kRows>(args, args.weight, first_row, vector, vector, count);
}

// The lane of row r keeps and stores it.
template <int kRows>
static __device__ __forceinline__ void store_rows(void* out, Dtype dtype, int64_t out_row, int64_t rows,
                                                  int64_t first_row, float result) {
  const uint32_t lane = threadIdx.x % kWave;
  if (lane < kRows && (lane == 0 || first_row + lane < rows)) {
    store_result(out, dtype, out_row * rows + first_row, lane, result);
  }
}

struct MoeVecArgs {
  MatVecArgs product;  // its first_vector is the first token of this launch
  const void* ids;
  int64_t experts;
  int64_t expert_bytes;
  int64_t top_k;
  int64_t first_slot;
  bool wide_ids;  // int64, else int32
};

// Grid: x as above, y over tokens, z over the slots of a token.
template <typename Format, int kRows>
static __global__ void __launch_bounds__(kMatVecThreads) GGUF_REGISTERS(96) moe_vec(MoeVecArgs args) {
  wait_for_earlier_kernels();
  const MatVecArgs& product = args.product;
  const int64_t first_row = first_row_of_wave<kRows>(product.first_group);
  if (first_row >= product.rows) return;
  const int64_t token = product.first_vector + blockIdx.y;
  const int64_t z = token * args.top_k + args.first_slot + blockIdx.z;
  const int64_t* wide = static_cast<const int64_t*>(args.ids);
  const int32_t* narrow = static_cast<const int32_t*>(args.ids);
  const int64_t expert = args.wide_ids ? wide[z] : narrow[z];
  if (expert < 0 || expert >= args.experts) {
    store_rows<kRows>(product.out, product.dtype, z, product.rows, first_row, 0.0f);
    return;
  }
  mat_vec_rows_of_wave<Format, 1, kRows>(product, product.weight + expert * args.expert_bytes, first_row, token, z, 1);
}

}  // namespace gguf
