// Products with 1 to 8 vectors for NVIDIA GPUs since Hopper; any format.
//
// A block stays on its multiprocessor and works through units of 16 rows. Some warps copy pieces of rows into a ring of
// stages in shared memory, far ahead, so that memory never idles; others take tiles from there, each another part of K;
// one adds up what those found and stores it. None waits for another of its kind, so what one unit costs beside its
// weights hides behind the others.
//
// In a step a warp has 16 rows by 4 tiles. Lane 4 g + t decodes tile t of rows g and g + 8, whole, as on other GPUs,
// and the integer matrix instruction multiplies. Its k is then four tiles side by side, 8 weights of each at a time, so
// B is kept apart by columns: column 2 t + j holds vector j in the places of k that are tile t's, and zeros in the
// others. So a lane receives the very sums that belong to the tiles it decoded, and scales them.
#pragma once

#include <type_traits>

#include "device/hopper.cuh"
#include "device/mat_vec.cuh"

namespace gguf {

constexpr int kStagedWarps = 8;  // that compute
constexpr int kCopyWarps = 2;
// Warps in this order: those that compute, those that copy weights, one that copies activations, one that adds up.
constexpr int kActivationWarp = kStagedWarps + kCopyWarps;
constexpr int kSumWarp = kActivationWarp + 1;
constexpr int kStagedThreads = (kSumWarp + 1) * kWave;
constexpr int kSums = 4;  // units whose sums can wait to be added up
constexpr int kStagedRows = 16;
constexpr int kRowsPerCopyWarp = kStagedRows / kCopyWarps;
constexpr int kStepTiles = 4;  // of each row
constexpr int kMaxStages = 16;
constexpr int kQuantizedVectors = 2;  // at most, that the kernel quantises itself

struct StagedArgs {
  const uint8_t* weight;
  int64_t weight_bytes;
  ActivationView x;
  const void* raw;  // the activations before quantisation, of `dtype`, where the kernel quantises them, else null
  int64_t raw_stride;
  void* out;
  const void* ids;  // of routed products, else null
  int64_t experts;
  int64_t expert_bytes;
  int64_t row_bytes;
  int64_t cols;
  int64_t vectors;  // of the whole call, or tokens
  uint32_t rows;
  uint32_t units;      // row_units for each group of vectors, or for each slot
  uint32_t row_units;  // ceil(rows / 16)
  uint32_t top_k;
  uint32_t tiles;        // of a row
  uint32_t chunk_tiles;  // of a stage
  uint32_t chunks;       // stages that a unit takes
  uint32_t stages;
  uint32_t row_slot;        // bytes from one row of a stage to the next
  uint32_t q_slot;          // bytes from one vector's q to the next, in shared memory
  uint32_t scale_slot;      // and of its scales
  uint32_t activations_at;  // in a stage, or from the start of the dynamic shared memory where they are resident
  uint32_t ring_at;
  uint32_t stage_bytes;
  Dtype dtype;
  bool wide_ids;
  bool resident;  // there is one group of vectors, which is copied once
  bool aligned;   // weight is a multiple of 16
};

// A stage of a unit.
struct StagedPlace {
  uint32_t slot;  // group of vectors, or (token, slot) of a routed product
  uint32_t row;   // first of the unit
  uint32_t chunk;

  __device__ __forceinline__ StagedPlace(const StagedArgs& args, uint32_t unit)
      : slot(unit / args.row_units), row((unit - slot * args.row_units) * kStagedRows), chunk(0) {}
  __device__ __forceinline__ void next_unit(const StagedArgs& args) {
    row += kStagedRows;
    if (row >= args.rows) row = 0, ++slot;
  }
  __device__ __forceinline__ void next(const StagedArgs& args) {
    if (++chunk < args.chunks) return;
    chunk = 0;
    next_unit(args);
  }
};

template <typename Format, int kVectors>
struct Staged {
  static constexpr uint32_t kTileBlocks = Format::kTileElements / kActivationBlock;
  static constexpr int kPairs = (kVectors + 1) / 2;
  static constexpr int kScales = Format::Decoded::kScales;
  static constexpr int kMinima = Format::Decoded::kMinima;

  struct Shared {
    Barrier full[kMaxStages];
    Barrier empty[kMaxStages];
    Barrier summands[kSums];
    Barrier summed[kSums];
    int32_t start[kMaxStages];  // the expert's address modulo 16, or -1 where there is none
    float partial[kSums][kStagedWarps][kVectors][kStagedRows];
    alignas(16) uint32_t zeros[kTileBlocks * kActivationBlock / 4];  // where activations are none
    alignas(16) uint32_t table[Format::kTableWords > 0 ? Format::kTableWords : 1];
  };

  // Of whole blocks.
  static __host__ __device__ constexpr uint32_t bytes_of(uint32_t tiles) {
    return tiles / (Format::kBlockElements / Format::kTileElements) * Format::kBlockBytes;
  }

  static __device__ __forceinline__ uint32_t chunk_tiles(const StagedArgs& args, uint32_t chunk) {
    const uint32_t left = args.tiles - chunk * args.chunk_tiles;
    return left < args.chunk_tiles ? left : args.chunk_tiles;
  }

  // Byte of a row where a chunk's first block starts.
  static __device__ __forceinline__ uint32_t chunk_at(const StagedArgs& args, uint32_t chunk) {
    return bytes_of(chunk * args.chunk_tiles);
  }

  // --- the warps that copy, each some of the rows ---

  static __device__ __forceinline__ int64_t expert_of(const StagedArgs& args, uint32_t slot) {
    if (args.ids == nullptr) return 0;
    const int64_t* wide = static_cast<const int64_t*>(args.ids);
    const int32_t* narrow = static_cast<const int32_t*>(args.ids);
    const int64_t expert = args.wide_ids ? wide[slot] : narrow[slot];
    return expert < args.experts ? expert : -1;
  }

  // The rows of one copying warp, by its first lane. The copy engine takes pieces of 16 bytes at multiples of 16, so a
  // row's copy starts up to 15 bytes before the row, and ends as much behind it.
  static __device__ __forceinline__ void copy_weights(const StagedArgs& args, Shared& shared, uint8_t* ring,
                                                      uint32_t warp, uint32_t stage, const StagedPlace& place,
                                                      int64_t expert) {
    Barrier& full = shared.full[stage];
    const uint32_t first_row = place.row + warp * kRowsPerCopyWarp;
    const uint32_t bytes = bytes_of(chunk_tiles(args, place.chunk));
    const int64_t matrix = expert < 0 ? 0 : expert * args.expert_bytes;
    const int64_t first = matrix + first_row * args.row_bytes + chunk_at(args, place.chunk);
    uint8_t* to = ring + stage * args.stage_bytes + warp * kRowsPerCopyWarp * args.row_slot;
    const uint32_t left = expert < 0 || first_row >= args.rows ? 0 : args.rows - first_row;
    const uint32_t rows = left < kRowsPerCopyWarp ? left : kRowsPerCopyWarp;
    const bool leader = threadIdx.x % kWave == 0;
    if (leader && warp == 0) shared.start[stage] = expert < 0 ? -1 : static_cast<int32_t>(matrix & 15);
    const int64_t end = (first + (int64_t{rows} - 1) * args.row_bytes + bytes + 15) & ~int64_t{15};
    if (rows > 0 && (!args.aligned || end > args.weight_bytes)) {
      copy_by_hand(args, full, to, first, rows, bytes);
      return;
    }
    if (!leader) return;
    const uint32_t row_bytes = static_cast<uint32_t>(args.row_bytes);
    const auto before = [&](uint32_t r) { return (static_cast<uint32_t>(first) + r * row_bytes) & 15; };
    const auto size = [&](uint32_t r) { return (before(r) + bytes + 15) & ~15u; };
    uint32_t total = 0;
#pragma unroll
    for (uint32_t r = 0; r < kRowsPerCopyWarp; ++r) {
      if (r < rows) total += size(r);
    }
    full.arrive(total);
    const uint8_t* from = args.weight + first;
#pragma unroll
    for (uint32_t r = 0; r < kRowsPerCopyWarp; ++r) {
      if (r < rows) full.copy(to, from - before(r), size(r));
      to += args.row_slot;
      from += args.row_bytes;
    }
  }

  // The same without the copy engine, for weights at odd places, and for the last rows, behind which nothing may be
  // read.
  static __device__ __noinline__ void copy_by_hand(const StagedArgs& args, Barrier& full, uint8_t* to, int64_t first,
                                                   uint32_t rows, uint32_t bytes) {
    for (uint32_t r = 0; r < rows; ++r) {
      const int64_t at = first + r * args.row_bytes;
      uint8_t* row = to + r * args.row_slot + (at & 15);
      using Unit = std::conditional_t<Format::kBlockBytes % 2 == 0, uint16_t, uint8_t>;
      copy_bytes<Unit>(args.weight + at, row, bytes, threadIdx.x % kWave, kWave);
    }
    __syncwarp();
    if (threadIdx.x % kWave == 0) full.arrive();
  }

  // One group of vectors, or one token; columns of some tiles.
  static __device__ __forceinline__ void copy_activations(const StagedArgs& args, Barrier& full, uint8_t* to,
                                                          uint32_t slot, uint32_t first_tile, uint32_t tiles) {
    const int64_t first = args.ids == nullptr ? int64_t{slot} * kVectors : slot / args.top_k;
    const int64_t left = args.vectors - first;
    const int count = left < kVectors ? static_cast<int>(left) : kVectors;
    const uint32_t q_bytes = tiles * Format::kTileElements;
    const uint32_t scale_bytes = (tiles * kTileBlocks * static_cast<uint32_t>(sizeof(ActivationScale)) + 15) & ~15u;
    const int64_t stride = scale_stride(args.cols);
    if (threadIdx.x % kWave == 0) {
      full.arrive(count * (q_bytes + scale_bytes));
#pragma unroll 1
      for (int v = 0; v < count; ++v) {
        full.copy(to + v * args.q_slot,
                  args.x.q + (first + v) * args.cols + int64_t{first_tile} * Format::kTileElements, q_bytes);
        full.copy(to + kVectors * args.q_slot + v * args.scale_slot,
                  args.x.scale + (first + v) * stride + int64_t{first_tile} * kTileBlocks, scale_bytes);
      }
    }
  }

  static __device__ __forceinline__ void produce(const StagedArgs& args, Shared& shared, uint8_t* dynamic,
                                                 uint32_t begin, uint32_t end) {
    const uint32_t warp = static_cast<uint32_t>(wave_number()) - kStagedWarps;
    const bool weights = warp < kCopyWarps;
    if (!weights && args.resident) return;
    uint8_t* ring = dynamic + args.ring_at;
    const uint32_t total = (end - begin) * args.chunks;
    StagedPlace place(args, begin);
    // Weights and ids do not depend on the kernel before this one where that quantises the activations.
    if (!weights || args.raw != nullptr) wait_for_earlier_kernels();
    uint32_t slot = place.slot;
    int64_t expert = expert_of(args, slot);
    uint32_t stage = 0;
    uint32_t parity = 1;
#pragma unroll 1
    for (uint32_t i = 0; i < total; ++i) {
      shared.empty[stage].wait(parity);  // the phase before the first counts as complete
      if (weights) {
        if (place.slot != slot) slot = place.slot, expert = expert_of(args, slot);
        copy_weights(args, shared, ring, warp, stage, place, expert);
      } else {
        copy_activations(args, shared.full[stage], ring + stage * args.stage_bytes + args.activations_at, place.slot,
                         place.chunk * args.chunk_tiles, chunk_tiles(args, place.chunk));
      }
      place.next(args);
      if (++stage == args.stages) stage = 0, parity ^= 1;
    }
  }

  // --- the warps that compute ---

  // As a float 1.5 * 2^23, to which whole numbers below 2^22 add exactly. Conversions are slow instructions.
  static constexpr int kMagic = 0x4b400000;
  static __device__ __forceinline__ float magic(int more) { return __int_as_float(kMagic + more); }
  // Two sums of half the products each where there are two scales, or else too few products to hide their latency.
  static constexpr int kChains = kScales == 2 || kPairs == 1 ? 2 : 1;

  // Adds to acc[h][v] what a tile of rows g and g + 8 gives with vector v. q: of the vector and tile that this lane
  // holds in the first pair of columns of B, or zeros, and pair_stride bytes on for the next; scales: of the lane's own
  // tile.
  static __device__ __forceinline__ void step(const typename Format::Tile& raw0, const typename Format::Tile& raw1,
                                              bool valid, uint32_t q, uint32_t pair_stride, uint32_t scales,
                                              uint32_t scale_slot, const uint32_t* table, float (&acc)[2][kVectors]) {
#pragma unroll
    for (uint32_t part = 0; part < kTileBlocks; ++part) {
      const typename Format::Decoded w[2] = {Format::decode(raw0, static_cast<int>(part), table),
                                             Format::decode(raw1, static_cast<int>(part), table)};
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const uint4* from =
            reinterpret_cast<const uint4*>(shared_pointer(q + p * pair_stride) + part * kActivationBlock);
        const uint4 low = from[0];
        const uint4 high = from[1];
        int d[kChains][4];
#pragma unroll
        for (int s = 0; s < kChains; ++s) d[s][0] = d[s][1] = d[s][2] = d[s][3] = kMagic;
        multiply_tile(d[0], w[0].q[0], w[1].q[0], w[0].q[1], w[1].q[1], low.x, low.y);
        multiply_tile(d[kChains - 1], w[0].q[4], w[1].q[4], w[0].q[5], w[1].q[5], high.x, high.y);
        multiply_tile(d[0], w[0].q[2], w[1].q[2], w[0].q[3], w[1].q[3], low.z, low.w);
        multiply_tile(d[kChains - 1], w[0].q[6], w[1].q[6], w[0].q[7], w[1].q[7], high.z, high.w);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int v = 2 * p + j;
          if (v >= kVectors) continue;
          const ActivationScale x =
              reinterpret_cast<const ActivationScale*>(shared_pointer(scales + v * scale_slot))[part];
          const int sum = x.sum;
          const int sum_high = x.high;
          const int sum_low = sum - sum_high;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float first = __int_as_float(d[0][2 * h + j]);
            const float second = __int_as_float(d[kChains - 1][2 * h + j]);
            float value;
            if constexpr (kScales == 1) {
              value = first - magic(-Format::kOffset * sum);
              if constexpr (kChains == 2) value += second - magic(0);
              value *= w[h].scale[0];
            } else {
              value = (first - magic(-Format::kOffset * sum_low)) * w[h].scale[0] +
                      (second - magic(-Format::kOffset * sum_high)) * w[h].scale[1];
            }
            if constexpr (kMinima == 1) value -= w[h].minimum[0] * (magic(sum) - magic(0));
            if constexpr (kMinima == 2) {
              value -= w[h].minimum[0] * (magic(sum_low) - magic(0)) + w[h].minimum[1] * (magic(sum_high) - magic(0));
            }
            if (valid) acc[h][v] += value * x.d;
          }
        }
      }
    }
  }

  // The one group of vectors, by the computing warps, with loads that do not queue behind the weights' copies.
  static __device__ __forceinline__ void load_resident(const StagedArgs& args, uint8_t* to) {
    const uint32_t q_pieces = args.tiles * Format::kTileElements / 16;
    const uint32_t scale_pieces = args.scale_slot / 16;
    const int64_t stride = scale_stride(args.cols);
#pragma unroll 1
    for (int v = 0; v < kVectors; ++v) {
      if (v >= args.vectors) break;
      const uint4* q = reinterpret_cast<const uint4*>(args.x.q + v * args.cols);
      const uint4* scales = reinterpret_cast<const uint4*>(args.x.scale + v * stride);
#pragma unroll 4
      for (uint32_t i = threadIdx.x; i < q_pieces; i += kStagedWarps * kWave) {
        reinterpret_cast<uint4*>(to + v * args.q_slot)[i] = q[i];
      }
      for (uint32_t i = threadIdx.x; i < scale_pieces; i += kStagedWarps * kWave) {
        reinterpret_cast<uint4*>(to + kVectors * args.q_slot + v * args.scale_slot)[i] = scales[i];
      }
    }
  }

  // The same from activations that are not quantised yet: 16 elements a lane at a time.
  template <typename T>
  static __device__ __forceinline__ void quantize_resident(const StagedArgs& args, uint8_t* to) {
    constexpr uint32_t kPiece = 16;
    const uint32_t pieces = static_cast<uint32_t>(args.cols) / kPiece;
    const bool aligned =
        (reinterpret_cast<uintptr_t>(args.raw) | args.raw_stride * static_cast<int64_t>(sizeof(T))) % 16 == 0;
    const uint32_t lane = threadIdx.x % kWave;
    union Loaded {
      uint4 words[sizeof(T)];
      T values[kPiece];
      __device__ Loaded() {}
    };
#pragma unroll 1
    for (uint32_t first = threadIdx.x - lane; first < pieces; first += kStagedWarps * kWave) {
      const uint32_t piece = first + lane;
      Loaded loaded[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const T* from = static_cast<const T*>(args.raw) + v * args.raw_stride + piece * kPiece;
#pragma unroll
        for (uint32_t i = 0; i < sizeof(T); ++i) loaded[v].words[i] = make_uint4(0, 0, 0, 0);
        if (piece >= pieces || v >= args.vectors) continue;
        if (aligned) {
#pragma unroll
          for (uint32_t i = 0; i < sizeof(T); ++i) loaded[v].words[i] = reinterpret_cast<const uint4*>(from)[i];
        } else {
#pragma unroll
          for (uint32_t i = 0; i < kPiece; ++i) loaded[v].values[i] = from[i];
        }
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float x[kPiece];
#pragma unroll
        for (uint32_t i = 0; i < kPiece; ++i) x[i] = Scalar<T>::get(loaded[v].values[i]);
        uint32_t packed[kPiece / 4];
        const ActivationScale scale = quantize_by_lanes(x, packed);
        if (piece >= pieces) continue;
        reinterpret_cast<uint4*>(to + v * args.q_slot)[piece] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
        if (piece % 2 == 1) {
          reinterpret_cast<ActivationScale*>(to + kVectors * args.q_slot + v * args.scale_slot)[piece / 2] = scale;
        }
      }
    }
  }

  static __device__ __forceinline__ void consume(const StagedArgs& args, Shared& shared, uint8_t* dynamic,
                                                 uint32_t begin, uint32_t end) {
    constexpr uint32_t kRound = kStagedWarps * kStepTiles;
    constexpr uint32_t kScaleBytes = kTileBlocks * sizeof(ActivationScale);
    constexpr uint32_t kStepBytes = bytes_of(kRound);
    static_assert(kRound * Format::kTileElements % Format::kBlockElements == 0, "whole blocks from step to step");
    const uint32_t warp = threadIdx.x / kWave;
    const uint32_t lane = threadIdx.x % kWave;
    const uint32_t g = lane / 4;
    const uint32_t t = lane % 4;
    if (args.resident) {
      wait_for_earlier_kernels();
      uint8_t* to = dynamic + args.activations_at;
      if (args.raw == nullptr) {
        load_resident(args, to);
      } else if constexpr (kVectors <= kQuantizedVectors) {
        switch (args.dtype) {
          case Dtype::f32: quantize_resident<float>(args, to); break;
          case Dtype::f16: quantize_resident<__half>(args, to); break;
          case Dtype::bf16: quantize_resident<__nv_bfloat16>(args, to); break;
        }
      }
      meet<1, kStagedWarps * kWave>();
    }
    // Lanes that hold no weights' activations, only zeros, stay at the zeros whatever is added for the others.
    const bool own_column = g / 2 == t && (kVectors > 1 || g % 2 == 0);
    const uint32_t moves = own_column ? 1 : 0;
    const uint32_t own = warp * kStepTiles + t;
    const uint32_t base = shared_address(dynamic);
    const uint32_t ring = base + args.ring_at + g * args.row_slot;
    const uint32_t second = 8 * args.row_slot;
    const uint32_t past0 = g * static_cast<uint32_t>(args.row_bytes);  // that of a unit's first row is a multiple of 16
    const uint32_t past1 = past0 + 8 * static_cast<uint32_t>(args.row_bytes);
    const uint32_t activations = base + args.activations_at;
    const uint32_t own_q =
        own_column ? activations + own * Format::kTileElements + g % 2 * args.q_slot : shared_address(shared.zeros);
    const uint32_t own_scales = activations + kVectors * args.q_slot + own * kScaleBytes;
    const uint32_t pair_stride = moves * 2 * args.q_slot;
    const uint32_t scale_slot = args.scale_slot;
    const uint32_t* table = Format::kTableWords > 0 ? shared.table : nullptr;
    uint32_t stage = 0;
    uint32_t parity = 0;
    uint32_t sum = 0;
    uint32_t sum_parity = 1;
    for (uint32_t index = begin; index < end; ++index) {
      float acc[2][kVectors] = {};
      for (uint32_t chunk = 0; chunk < args.chunks; ++chunk) {
        shared.full[stage].wait(parity);
        const int32_t start = shared.start[stage];
        const uint32_t tiles = chunk_tiles(args, chunk);
        if (start >= 0 && warp * kStepTiles < tiles) {
          const uint32_t past = static_cast<uint32_t>(start) + chunk_at(args, chunk);
          const uint32_t at = ring + stage * args.stage_bytes;
          const uint8_t* row0 = shared_pointer(at + ((past0 + past) & 15));
          const uint8_t* row1 = shared_pointer(at + second + ((past1 + past) & 15));
          const uint32_t first = args.resident ? chunk * args.chunk_tiles : 0;
          const uint32_t moved = args.resident ? 0 : args.ring_at + stage * args.stage_bytes;
          const uint32_t q = own_q + moves * (moved + first * Format::kTileElements);
          const uint32_t scales = own_scales + moved + first * kScaleBytes;
          // A lane without a tile in the last step reads what happens to lie there.
          const uint32_t steps = (tiles - warp * kStepTiles + kRound - 1) / kRound;
#pragma unroll 2
          for (uint32_t i = 0; i < steps; ++i) {
            step(Format::load(row0 + i * kStepBytes, own), Format::load(row1 + i * kStepBytes, own),
                 own + i * kRound < tiles, q + i * moves * (kRound * Format::kTileElements), pair_stride,
                 scales + i * (kRound * kScaleBytes), scale_slot, table, acc);
          }
        }
        __syncwarp();
        if (lane == 0) shared.empty[stage].arrive();
        if (++stage == args.stages) stage = 0, parity ^= 1;
      }
      shared.summed[sum].wait(sum_parity);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          acc[h][v] += wave_xor<1>(acc[h][v]);
          acc[h][v] += wave_xor<2>(acc[h][v]);
          if (t == 0) shared.partial[sum][warp][v][g + 8 * h] = acc[h][v];
        }
      }
      __syncwarp();
      if (lane == 0) shared.summands[sum].arrive();
      if (++sum == kSums) sum = 0, sum_parity ^= 1;
    }
  }

  // --- the warp that adds up ---

  static __device__ __forceinline__ void finish(const StagedArgs& args, Shared& shared, uint32_t begin, uint32_t end) {
    const uint32_t lane = threadIdx.x % kWave;
    const uint32_t r = lane % kStagedRows;
    uint32_t sum = 0;
    uint32_t parity = 0;
    StagedPlace unit(args, begin);
    for (uint32_t index = begin; index < end; ++index) {
      shared.summands[sum].wait(parity);
#pragma unroll
      for (uint32_t v = lane / kStagedRows; v < (kVectors + 1) / 2 * 2; v += 2) {
        if (v >= kVectors) break;
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < kStagedWarps; ++w) total += shared.partial[sum][w][v][r];
        const uint32_t row = unit.row + r;
        const int64_t out = args.ids == nullptr ? int64_t{unit.slot} * kVectors + v : unit.slot;
        if (row < args.rows && (args.ids != nullptr || out < args.vectors)) {
          store_result(args.out, args.dtype, out * args.rows + row, total);
        }
      }
      __syncwarp();
      if (lane == 0) shared.summed[sum].arrive();
      if (++sum == kSums) sum = 0, parity ^= 1;
      unit.next_unit(args);
    }
  }
};

// Grid: x over blocks, each of which takes the same number of units, or one less.
template <typename Format, int kVectors>
static __global__ void __launch_bounds__(kStagedThreads, 1) mat_vec_staged(const __grid_constant__ StagedArgs args) {
  using S = Staged<Format, kVectors>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ typename S::Shared shared;
  const uint32_t begin = static_cast<uint32_t>(uint64_t{args.units} * blockIdx.x / gridDim.x);
  const uint32_t end = static_cast<uint32_t>(uint64_t{args.units} * (blockIdx.x + 1) / gridDim.x);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < args.stages; ++i) {
      shared.full[i].init(kCopyWarps + (args.resident ? 0 : 1));
      shared.empty[i].init(kStagedWarps);
    }
    for (int i = 0; i < kSums; ++i) {
      shared.summands[i].init(kStagedWarps);
      shared.summed[i].init(1);
    }
    publish_barriers();
  }
  if (threadIdx.x < sizeof shared.zeros / 4) shared.zeros[threadIdx.x] = 0;
  if constexpr (Format::kTableWords > 0) {
    for (int i = threadIdx.x; i < Format::kTableWords; i += kStagedThreads) shared.table[i] = Format::table()[i];
  }
  __syncthreads();
  let_next_kernel_start();
  const uint32_t warp = threadIdx.x / kWave;
  if (warp < kStagedWarps) {
    S::consume(args, shared, dynamic, begin, end);
  } else if (warp < kSumWarp) {
    S::produce(args, shared, dynamic, begin, end);
  } else {
    S::finish(args, shared, begin, end);
  }
}

}  // namespace gguf
