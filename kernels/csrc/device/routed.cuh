// The experts of a routed layer: gate and up projections in one kernel with SwiGLU, and the down projection with the
// routing weights. Direct kernels: one wave a few rows of one expert, nothing is sorted; any format.
#pragma once

#include "device/activations.cuh"
#include "device/hopper.cuh"
#include "device/mat_vec.cuh"
#include "device/platform.cuh"
#include "device/weights.cuh"

namespace gguf {

// AMD's compiler is told that 16 waves are to share a SIMD.
#if defined(ROCMBUILD_PLATFORM_ROCM)
#define GGUF_ROUTED_BOUNDS __launch_bounds__(kMatVecThreads, 16)
#else
#define GGUF_ROUTED_BOUNDS __launch_bounds__(kMatVecThreads)
#endif

// One projection of all experts, where it lies: gate and up may be halves of one tensor, or its even and odd rows.
struct Experts {
  const uint8_t* first;
  int64_t expert_stride;  // bytes
  int64_t row_stride;     // bytes
};

// Which experts the slots of the tokens go to; slot z is slot z % top_k of token z / top_k.
struct Routing {
  const void* ids;
  int64_t experts;
  int64_t top_k;
  bool wide_ids;  // int64, else int32

  // -1 for every id that names no expert.
  __device__ __forceinline__ int64_t expert(int64_t z) const {
    const int64_t id = wide_ids ? static_cast<const int64_t*>(ids)[z] : static_cast<const int32_t*>(ids)[z];
    return id < 0 || id >= experts ? -1 : id;
  }
};

// silu(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset), where silu(g) = g / (1 + exp(-alpha * g)).
struct SwiGlu {
  float alpha;
  float limit;  // infinity: none
  float up_offset;

  // Comparisons and not fminf, which would turn NaN into the limit.
  __device__ __forceinline__ float operator()(float gate, float up) const {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return gate / (1.0f + expf(-alpha * gate)) * (up + up_offset);
  }
};

// sum[i] += what one lane's tiles of row i give with one vector. Tile t belongs to lane t % 32.
template <typename Format, int kN>
static __device__ __forceinline__ void add_lane_products(const uint8_t* const (&row)[kN], const int8_t* q,
                                                         const ActivationScale* scale, uint32_t tiles,
                                                         const uint32_t* table, float (&sum)[kN]) {
  constexpr uint32_t kTileBlocks = Format::kTileElements / kActivationBlock;
  const uint32_t lane = threadIdx.x % kWave;
  // Large tiles are taken row by row, and what is decoded is used at once: there are no registers for more.
  constexpr bool kRowByRow = kN > 1 && sizeof(typename Format::Tile) > 64;
  constexpr bool kInOrder = kN > 1;
  constexpr int kAtOnce = kRowByRow ? 1 : kN;
  const auto step = [&](uint32_t tile) {
#pragma unroll
    for (int first = 0; first < kN; first += kAtOnce) {
      typename Format::Tile raw[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) raw[i] = Format::load(row[first + i], tile);
#pragma unroll
      for (uint32_t part = 0; part < kTileBlocks; ++part) {
        const Activations x = load_activations(q, scale, tile * kTileBlocks + part);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          sum[first + i] += dot<Format::kOffset>(Format::decode(raw[i], static_cast<int>(part), table), x);
          if (kInOrder) keep_order();
        }
      }
    }
  };
  uint32_t base = 0;
  for (; base + kWave <= tiles; base += kWave) step(base + lane);
  if (base + lane < tiles) step(base + lane);
}

// --- MXFP4 on NVIDIA's GPUs ---
//
// Integer instructions are what those have too few of, so the codes of a word are looked up where they stand, two bytes at
// a time, which gives elements j, j + 16, j + 1, j + 17, and interleaved activations have their bytes in that order.
//
// In a selector of PRMT the top bit of a nibble asks for the sign of the byte that the others name, which is 0 in a table
// of magnitudes. So a code is its own selector: what is negative gives 0, and with the top bits turned what is positive.

// The sum of twice the values of 32 codes times interleaved activations.
static __device__ __forceinline__ int mxfp4_interleaved_dot(const uint32_t (&codes)[4], const uint32_t (&x)[8]) {
  constexpr uint32_t kLow = 0x03020100;
  constexpr uint32_t kHigh = 0x0c080604;
  int plus = 0;
  int minus = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t turned = codes[w] ^ 0x88888888u;
    plus = dot4(pick_bytes(kLow, kHigh, codes[w]), x[2 * w], plus);
    minus = dot4(pick_bytes(kLow, kHigh, turned), x[2 * w], minus);
    plus = dot4(pick_bytes(kLow, kHigh, codes[w] >> 16), x[2 * w + 1], plus);
    minus = dot4(pick_bytes(kLow, kHigh, turned >> 16), x[2 * w + 1], minus);
  }
  return plus - minus;
}

// As add_lane_products, for interleaved activations, each row with a vector of its own. A block of 17 bytes lies in 5
// aligned words wherever it begins, and a lane's blocks all begin at the same place of a word.
template <int kN>
static __device__ __forceinline__ void add_mxfp4_products(const uint8_t* const (&row)[kN], const int8_t* const (&q)[kN],
                                                          const ActivationScale* const (&scale)[kN], uint32_t tiles,
                                                          float (&sum)[kN]) {
  constexpr uint32_t kWordsOfRound = 17 * kWave / 4;
  const uint32_t lane = threadIdx.x % kWave;
  const uint32_t* at[kN];
  uint32_t past[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const uint8_t* first = row[i] + 17 * lane;
    past[i] = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(first)) & 3;
    at[i] = reinterpret_cast<const uint32_t*>(first - past[i]);
  }
  const auto step = [&](uint32_t round) {
    uint32_t raw[kN][5];
#pragma unroll
    for (int i = 0; i < kN; ++i) {
#pragma unroll
      for (int w = 0; w < 5; ++w) raw[i][w] = at[i][round * kWordsOfRound + w];
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const Activations x = load_activations(q[i], scale[i], round * kWave + lane);
      const uint32_t e = pick_bytes(raw[i][0], 0, past[i] | 0x4440);
      uint32_t codes[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) codes[w] = pick_bytes(raw[i][w], raw[i][w + 1], 0x4321 + 0x1111 * past[i]);
      // The exponent of a float, but for 0, whose power is a denormal, and 255, which is NaN.
      uint32_t bits = e << 23 > 0x00400000u ? e << 23 : 0x00400000u;
      bits = e == 255 ? 0x7fc00000u : bits;
      float power;
      memcpy(&power, &bits, 4);
      sum[i] += static_cast<float>(mxfp4_interleaved_dot(codes, x.q)) * power * x.d;
    }
  };
  const uint32_t rounds = tiles / kWave;
#pragma unroll 2
  for (uint32_t round = 0; round < rounds; ++round) step(round);
  if (rounds * kWave + lane < tiles) step(rounds);
#pragma unroll
  for (int i = 0; i < kN; ++i) sum[i] *= 0.5f;
}

struct GateUpArgs {
  Experts gate;
  Experts up;
  Routing routing;
  ActivationView x;  // one vector a token
  SwiGlu activation;
  void* out;  // [tokens * top_k, rows]
  Dtype dtype;
  int64_t rows;
  int64_t cols;
  int64_t first_group;  // of kMatVecWaves * kRows rows
  int64_t first_token;
  int64_t first_slot;
  bool interleaved;  // how the bytes of x lie
};

// Grid: x over groups of kMatVecWaves * kRows rows, y over tokens, z over the slots of a token.
template <typename Format, int kRows, bool kInterleaved>
static __global__ void GGUF_ROUTED_BOUNDS moe_gate_up(GateUpArgs args) {
  wait_for_earlier_kernels();
  const int64_t first_row = first_row_of_wave<kRows>(args.first_group);
  if (first_row >= args.rows) return;
  const int64_t token = args.first_token + blockIdx.y;
  const int64_t z = token * args.routing.top_k + args.first_slot + blockIdx.z;
  const int64_t expert = args.routing.expert(z);
  float result = 0.0f;
  if (expert >= 0) {
    const uint8_t* gate = args.gate.first + expert * args.gate.expert_stride;
    const uint8_t* up = args.up.first + expert * args.up.expert_stride;
    const uint8_t* row[2 * kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Past the end it is the last again, not stored.
      const int64_t own = r == 0 || first_row + r < args.rows ? first_row + r : args.rows - 1;
      row[r] = gate + own * args.gate.row_stride;
      row[kRows + r] = up + own * args.up.row_stride;
    }
    const uint32_t cols = static_cast<uint32_t>(args.cols);
    const int8_t* q = args.x.q + token * cols;
    const ActivationScale* scale = args.x.scale + token * static_cast<uint32_t>(scale_stride(cols));
    const uint32_t tiles = tiles_of<Format>(args.cols);
    float sum[2 * kRows] = {};
    if constexpr (kInterleaved) {
      const int8_t* own_q[2 * kRows];
      const ActivationScale* own_scale[2 * kRows];
#pragma unroll
      for (int i = 0; i < 2 * kRows; ++i) own_q[i] = q, own_scale[i] = scale;
      add_mxfp4_products(row, own_q, own_scale, tiles, sum);
    } else {
      add_lane_products<Format>(row, q, scale, tiles, table_of<Format>(), sum);
    }
    const float gate_or_up = wave_sums(sum);  // lane r has gate's row r, lane kRows + r up's
    result = args.activation(gate_or_up, wave_xor<kRows>(gate_or_up));
  }
  store_rows<kRows>(args.out, args.dtype, z, args.rows, first_row, result);
}

struct DownArgs {
  Experts down;
  Routing routing;
  const void* weights;  // [tokens * top_k]
  Dtype weights_dtype;
  ActivationView x;  // one vector a slot
  void* out;         // [tokens, rows]
  Dtype dtype;
  int64_t rows;
  int64_t cols;
  int64_t first_group;
  int64_t first_token;
};

static __device__ __forceinline__ float load_scalar(const void* from, Dtype dtype, int64_t at) {
  if (dtype == Dtype::f32) return static_cast<const float*>(from)[at];
  if (dtype == Dtype::f16) return Scalar<__half>::get(static_cast<const __half*>(from)[at]);
  return Scalar<__nv_bfloat16>::get(static_cast<const __nv_bfloat16*>(from)[at]);
}

// A row's products with all slots of a token are summed in registers, in the order of the slots in each lane, then over
// the lanes. Grid: x over groups of kMatVecWaves * kRows rows, y over tokens.
template <typename Format, int kRows, bool kInterleaved>
static __global__ void GGUF_ROUTED_BOUNDS GGUF_REGISTERS(32) moe_down(DownArgs args) {
  constexpr int kSlots = kInterleaved ? 2 : 1;  // at once
  wait_for_earlier_kernels();
  const int64_t first_row = first_row_of_wave<kRows>(args.first_group);
  if (first_row >= args.rows) return;
  const int64_t token = args.first_token + blockIdx.y;
  const int64_t first_slot = token * args.routing.top_k;
  const uint32_t tiles = static_cast<uint32_t>(args.cols / Format::kTileElements);
  int64_t row_at[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    row_at[r] = (first_row + r < args.rows ? first_row + r : args.rows - 1) * args.down.row_stride;
  }
  float total[kRows] = {};
  for (int64_t slot = 0; slot < args.routing.top_k; slot += kSlots) {
    int64_t expert[kSlots];
    int64_t any = -1;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      expert[s] = slot + s < args.routing.top_k ? args.routing.expert(first_slot + slot + s) : -1;
      any = expert[s] >= 0 ? expert[s] : any;
    }
    if (any < 0) continue;
    const uint8_t* row[kSlots * kRows];
    const int8_t* q[kSlots * kRows];
    const ActivationScale* scale[kSlots * kRows];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      // A slot without an expert does as another one, for nothing.
      const int64_t z = first_slot + (slot + s < args.routing.top_k ? slot + s : slot);
      const uint8_t* weight = args.down.first + (expert[s] >= 0 ? expert[s] : any) * args.down.expert_stride;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        row[s * kRows + r] = weight + row_at[r];
        q[s * kRows + r] = args.x.q + z * args.cols;
        scale[s * kRows + r] = args.x.scale + z * scale_stride(args.cols);
      }
    }
    float sum[kSlots * kRows] = {};
    if constexpr (kInterleaved) {
      add_mxfp4_products(row, q, scale, tiles, sum);
    } else {
      add_lane_products<Format>(row, q[0], scale[0], tiles, table_of<Format>(), sum);
    }
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if (expert[s] < 0) continue;
      const float weight = load_scalar(args.weights, args.weights_dtype, first_slot + slot + s);
#pragma unroll
      for (int r = 0; r < kRows; ++r) total[r] += weight * sum[s * kRows + r];
    }
  }
  store_rows<kRows>(args.out, args.dtype, token, args.rows, first_row, wave_sums(total));
}

// --- what surrounds the sorted products ---

struct SwiGluArgs {
  const float* gate;  // [tokens * top_k, rows]; rows of slots without an expert are never read
  const float* up;
  Routing routing;
  SwiGlu activation;
  void* out;
  Dtype dtype;
  int64_t rows;
  int64_t first_group;  // of kMatVecThreads rows
  int64_t first_slot;
};

// Grid: x over groups of kMatVecThreads rows, y over slots.
static __global__ void __launch_bounds__(kMatVecThreads) swiglu_rows(SwiGluArgs args) {
  const int64_t row = (args.first_group + blockIdx.x) * kMatVecThreads + threadIdx.x;
  if (row >= args.rows) return;
  const int64_t z = args.first_slot + blockIdx.y;
  float result = 0.0f;
  if (args.routing.expert(z) >= 0) {
    result = args.activation(args.gate[z * args.rows + row], args.up[z * args.rows + row]);
  }
  store_result(args.out, args.dtype, z * args.rows + row, result);
}

struct CombineArgs {
  const float* products;  // [tokens * top_k, rows]; rows of slots without an expert are never read
  Routing routing;
  const void* weights;  // [tokens * top_k]
  Dtype weights_dtype;
  void* out;  // [tokens, rows]
  Dtype dtype;
  int64_t rows;
  int64_t first_group;
  int64_t first_token;
};

// The sum over a token's slots, in order. Grid: x over groups of kMatVecThreads rows, y over tokens.
static __global__ void __launch_bounds__(kMatVecThreads) combine_slots(CombineArgs args) {
  const int64_t row = (args.first_group + blockIdx.x) * kMatVecThreads + threadIdx.x;
  if (row >= args.rows) return;
  const int64_t token = args.first_token + blockIdx.y;
  float total = 0.0f;
  for (int64_t slot = 0; slot < args.routing.top_k; ++slot) {
    const int64_t z = token * args.routing.top_k + slot;
    if (args.routing.expert(z) < 0) continue;
    total += load_scalar(args.weights, args.weights_dtype, z) * args.products[z * args.rows + row];
  }
  store_result(args.out, args.dtype, token * args.rows + row, total);
}

// --- Q8_K ---

constexpr int kQ8KBlock = 256;

// Activations as Q8_K has them, written where kernels for blocks of 32 read them: the scale of a block of 256 stands at
// each of its eight blocks of 32.
//
// m is the first of the block's elements of the largest magnitude, with its sign; s = -127 / m; q = s * x rounded to
// the nearest whole number, halves to even, at most 127; d = 1 / s. All in float, each operation rounded by itself:
// the formula of ggml's quantize_row_q8_K. d and q are 0 where m is 0, or so small that s is infinite. A block that
// holds a NaN or an infinity has d = NaN and q = 0.
//
// kInterleaved: each 32 are stored in the order 0, 16, 1, 17, ... 15, 31. One wave a block, kQuantizeThreads a thread block.
// Grid: x over chunks of 8 blocks, y over vectors.
template <typename T, bool kInterleaved = false>
static __global__ void __launch_bounds__(kQuantizeThreads) quantize_activations_q8_k(QuantizeArgs args) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  constexpr int kPerLane = kQ8KBlock / kWave;
  const int64_t vector = args.first_vector + blockIdx.y;
  const int64_t block = (args.first_chunk + blockIdx.x) * (kQuantizeThreads / kWave) + threadIdx.x / kWave;
  if (block * kQ8KBlock >= args.cols) return;  // whole waves
  const uint32_t lane = threadIdx.x % kWave;
  const int64_t col = block * kQ8KBlock + lane * kPerLane;

  float x[kPerLane];
  uint32_t largest = 0;  // bits of the largest magnitude, as in quantize_activations
  uint32_t sign = 0;     // of the first that has it in this lane
  const T* from = static_cast<const T*>(args.x) + vector * args.x_stride + col;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    x[i] = Scalar<T>::get(from[i]);
    uint32_t bits;
    memcpy(&bits, &x[i], 4);
    const uint32_t magnitude = bits & 0x7fffffffu;
    sign = magnitude > largest ? bits >> 31 : sign;
    largest = magnitude > largest ? magnitude : largest;
  }
  // Of lanes with the same magnitude the lower one's sign counts.
  const auto meet = [&](uint32_t other, uint32_t other_sign, uint32_t mask) {
    const bool take = other > largest || (other == largest && (lane & mask) != 0);
    largest = take ? other : largest;
    sign = take ? other_sign : sign;
  };
  meet(wave_xor<1>(largest), wave_xor<1>(sign), 1);
  meet(wave_xor<2>(largest), wave_xor<2>(sign), 2);
  meet(wave_xor<4>(largest), wave_xor<4>(sign), 4);
  meet(wave_xor<8>(largest), wave_xor<8>(sign), 8);
  meet(wave_xor<16>(largest), wave_xor<16>(sign), 16);

  const uint32_t max_bits = largest | sign << 31;
  float max;
  memcpy(&max, &max_bits, 4);
  const bool finite = largest < 0x7f800000u;
  const float s = -127.0f / max;
  const bool usable = finite && largest != 0 && s - s == 0.0f;
  uint32_t packed[2] = {};
  int32_t sum = 0;
  if (usable) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int q = static_cast<int>(fminf(rintf(mul_rounded(s, x[i])), 127.0f));
      sum += q;
      packed[i / 4] |= (static_cast<uint32_t>(q) & 0xffu) << (8 * (i % 4));
    }
  }
  sum += static_cast<int32_t>(wave_xor<1>(static_cast<uint32_t>(sum)));
  const int32_t half = sum;
  sum += static_cast<int32_t>(wave_xor<2>(static_cast<uint32_t>(sum)));

  uint2 stored;
  int64_t place = col;
  if constexpr (kInterleaved) {
    // Four lanes share 32. Of each two that hold elements 16 apart the lower gives the first half of what both hold.
    const bool upper = (lane & 2) != 0;
    const uint32_t other = wave_xor<2>(upper ? packed[0] : packed[1]);
    const uint32_t low = upper ? other : packed[0];
    const uint32_t high = upper ? packed[1] : other;
    stored.x = (low & 0xffu) | (high & 0xffu) << 8 | (low & 0xff00u) << 8 | (high & 0xff00u) << 16;
    stored.y = (low >> 16 & 0xffu) | (high >> 8 & 0xff00u) | (low >> 8 & 0xff0000u) | (high & 0xff000000u);
    place = col - lane % 4 * kPerLane + (lane & 1) * 16 + (lane >> 1 & 1) * 8;
  } else {
    stored.x = packed[0], stored.y = packed[1];
  }
  *reinterpret_cast<uint2*>(args.out.q + vector * args.cols + place) = stored;
  if (lane % 4 == 3) {
    const float d = usable ? 1.0f / s : finite ? 0.0f : max - max;
    args.out.scale[vector * scale_stride(args.cols) + col / kActivationBlock] = {d, static_cast<int16_t>(sum),
                                                                               static_cast<int16_t>(half)};
  }
}

}  // namespace gguf
