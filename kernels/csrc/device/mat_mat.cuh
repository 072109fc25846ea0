// Products of quantised weights with many quantised vectors, plain or routed; any format.
//
// A block computes a rectangle of kRows rows of weights by kTokens vectors, 128 of k a step. The step's weights are decoded
// once, to bytes and float scales in shared memory, and serve all vectors of the rectangle; the matrix cores (or the
// dot product of four bytes) sum whole numbers over 32, or 16, of k, and floats add up those sums in the order of k. So a
// result has the same bits whatever the rectangle's size and place, and whichever instruction multiplied.
//
// The next step's bytes are on their way during the multiplication: on NVIDIA as asynchronous copies to shared memory,
// elsewhere in registers.
#pragma once

#include "device/activations.cuh"
#include "device/mat_vec.cuh"
#include "device/platform.cuh"
#include "device/tile_mma.cuh"
#include "device/weights.cuh"

namespace gguf {

#if defined(ROCMBUILD_PLATFORM_CUDA)
constexpr bool kStagedCopies = true;
#else
constexpr bool kStagedCopies = false;
#endif

constexpr int kAlignBlock = 16;  // of sorted_token_ids that share an expert

struct MatMatArgs {
  const uint8_t* weight;
  int64_t weight_bytes;  // of all experts
  ActivationView x;
  void* out;
  Dtype dtype;
  int64_t row_bytes;
  int64_t rows;
  int64_t cols;
  int64_t slots;  // rows of the result
  int64_t top_k;  // slots that share a vector of x
  int64_t first_row_group;
  int64_t first_token_group;  // of kTokens slots; of kAlignBlock entries of sorted_ids
  // Routed products alone.
  const int32_t* sorted_ids;  // null: not routed
  const int32_t* expert_ids;
  const int32_t* padded;  // how many entries of sorted_ids count
  int64_t sorted_count;   // how many it has
  int64_t blocks;         // of kAlignBlock entries that have an expert id
  int64_t experts;
  int64_t expert_bytes;
};

constexpr int kStepK = 128;
constexpr int kStepParts = kStepK / kPartElements;
constexpr int kCodeStride = kStepK + 16;  // 16 modulo 128: a column of 16-byte pieces lies in different banks

// Of a rectangle: its waves, and what each computes.
template <int Rows, int Tokens, int RowWaves, int TokenWaves, int Ahead>
struct MatMatShape {
  static constexpr int kRows = Rows;
  static constexpr int kTokens = Tokens;
  static constexpr int kRowWaves = RowWaves;
  static constexpr int kAhead = kStagedCopies ? Ahead : 1;  // how many steps ahead of the multiplication copies begin
  static constexpr int kThreads = RowWaves * TokenWaves * kWave;
  static constexpr int kRowTiles = Rows / RowWaves / kTile;       // a wave's
  static constexpr int kTokenTiles = Tokens / TokenWaves / kTile;
  static_assert(RowWaves * TokenWaves <= kTileWaves, "see there");
};

using SmallShape = MatMatShape<64, 16, 4, 1, 3>;
using MediumShape = MatMatShape<128, 64, 4, 2, 1>;
// NVIDIA's multiprocessors have registers for 64 floats of results a lane; with 32 AMD's SIMDs hold twice the waves.
using LargeShape = MatMatShape<128, 128, 4, kStagedCopies ? 2 : 4, 1>;

// Where things lie in a block's shared memory, in bytes.
template <typename Format, typename Shape>
struct MatMatMemory {
  using Decoded = typename Format::Decoded;
  static constexpr int kRowFloats = Shape::kRows + 8;  // lanes that write neighbouring parts of a row use other banks
  static constexpr int kRowArrays = 1 + Decoded::kScales + Decoded::kMinima;  // the first two are pairs: see put_part
  static constexpr int kTokenFloats = Shape::kTokens + 8;
  static constexpr int kTokenArrays = 1 + Decoded::kMinima;  // d, and what minima are multiplied with
  static constexpr int kXBuffers = kStagedCopies ? Shape::kAhead + 1 : 1;

  // A row's share of what is copied at once: as many whole blocks as a step needs, and room to keep its place modulo 16.
  static constexpr int kChunkK = Format::kBlockElements > kStepK ? Format::kBlockElements : kStepK;
  static constexpr int kChunkSteps = kChunkK / kStepK;
  static constexpr int kChunkBytes = kChunkK / Format::kBlockElements * Format::kBlockBytes;
  static constexpr int kRawPieces = (kChunkBytes + 15 + 15) / 16 | 1;  // odd: rows begin in different banks
  static constexpr int kRawStride = kRawPieces * 16;
  // Chunks that are under way or not yet unpacked while a step is multiplied.
  static constexpr int kRawBuffers = kChunkSteps == 1 ? Shape::kAhead : Shape::kAhead / 2 + 1;
  static_assert(kRawPieces <= 16 && kChunkSteps <= 2, "see copy_chunk and kRawBuffers");
  // What a row's address is a multiple of where the weights begin at a multiple of 16.
  static constexpr int kRowAlignment = Format::kBlockBytes % 16 == 0 ? 16 : (Format::kBlockBytes & -Format::kBlockBytes);

  static constexpr int kCodes = 0;
  static constexpr int kX = kCodes + Shape::kRows * kCodeStride;
  static constexpr int kXBytes = Shape::kTokens * kCodeStride;
  static constexpr int kRowScales = kX + kXBuffers * kXBytes;
  static constexpr int kTokenScales = kRowScales + kStepParts * kRowArrays * kRowFloats * 4;
  static constexpr int kSlots = kTokenScales + kStepParts * kTokenArrays * kTokenFloats * 4;
  static constexpr int kVectors = kSlots + Shape::kTokens * 8;
  static constexpr int kRaw = kVectors + Shape::kTokens * 8;
  static constexpr int kRawBytes = Shape::kRows * kRawStride;
  static constexpr int kBytes = kRaw + (kStagedCopies ? kRawBuffers * kRawBytes : 0);
  static_assert(kRaw % 16 == 0 && kX % 16 == 0 && kXBytes % 16 == 0 && kRowScales % 16 == 0, "16-byte accesses");
};

// 16 bytes to shared memory, the first `bytes` of them read and the others zeros: under way until copies_done.
static __device__ __forceinline__ void start_copy(void* shared, const void* global, int bytes) {
#if defined(GGUF_NVIDIA_DEVICE)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(bytes)
               : "memory");
#else
  (void)shared, (void)global, (void)bytes;
#endif
}

// Ends the group of the copies that a thread has started since the last group.
static __device__ __forceinline__ void end_copies() {
#if defined(GGUF_NVIDIA_DEVICE)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all but the last kLater groups of this thread have arrived.
template <int kLater>
static __device__ __forceinline__ void copies_done() {
#if defined(GGUF_NVIDIA_DEVICE)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
#endif
}

// q of weights as signed bytes with the format's offset added: no byte of q passes 127 - offset.
template <int kOffset>
static __device__ __forceinline__ uint32_t with_offset(uint32_t q) {
  if constexpr (kOffset == 0) return q;
  constexpr uint32_t kEach = static_cast<uint32_t>(-kOffset) * 0x01010101u;
  return ((q | 0x80808080u) - kEach) ^ 0x80808080u;
}

// Whose scales reach both ends of float, so that kMagic times one may not be finite.
template <typename Format>
constexpr bool kWideScales = Format::kType == MXFP4;

// sum + d * (what 32 of k give), from the exact sums of multiply. Every operation is rounded by itself or fused, as
// written, whatever the compiler may do elsewhere.
//
// row is what put_part keeps. A scale is a half times a few bits, or a power of two, so kMagic * scale is exact, and the fused product of a sum with
// the magic in it and the scale, less that, is the sum times the scale rounded once. Not so for powers of two near the
// end of float: there the magic is taken off first.
template <typename Format>
static __device__ __forceinline__ float add_part(float sum, const int* total, const float* row, const float* token) {
  using Decoded = typename Format::Decoded;
  float value;
  if constexpr (kWideScales<Format>) {
    value = mul_rounded(float_of_bits(total[0]) - kMagic, row[0]);
  } else {
    value = fmaf(float_of_bits(total[0]), row[0], row[1]);
  }
  if constexpr (Decoded::kScales == 2) value = fmaf(float_of_bits(total[1]) - kMagic, row[2], value);
#pragma unroll
  for (int i = 0; i < Decoded::kMinima; ++i) value = fmaf(row[1 + Decoded::kScales + i], token[1 + i], value);
  return fmaf(value, token[0], sum);
}

template <typename Format, typename Shape, bool kMatrixCores>
struct MatMat {
  using Memory = MatMatMemory<Format, Shape>;
  using Decoded = typename Format::Decoded;
  static constexpr int kThreads = Shape::kThreads;
  static constexpr int kTileParts = Format::kTileElements / kPartElements;
  static_assert(kStepParts % kTileParts == 0, "a step is whole tiles");
  static constexpr int kRowTilesOfStep = kStepParts / kTileParts;
  static constexpr int kTiles = Shape::kRows * kRowTilesOfStep;  // of weights in a step
  static constexpr int kUnits = (kTiles + kThreads - 1) / kThreads;  // of them that a thread decodes
  static constexpr int kXLanes = kStepK / 16;  // that copy 16 bytes each of a vector
  static constexpr int kXUnits = (Shape::kTokens * kXLanes + kThreads - 1) / kThreads;
  static constexpr int kXScaleUnits = (Shape::kTokens * kStepParts + kThreads - 1) / kThreads;

  // What a thread has fetched for the next step.
  struct Fetched {
    typename Format::Tile weights[kStagedCopies ? 1 : kUnits];
    uint4 x[kStagedCopies ? 1 : kXUnits];
    ActivationScale scales[kXScaleUnits];
  };

  const MatMatArgs& args;
  uint8_t* memory;
  const uint8_t* weight;  // of the expert's first row in the rectangle
  int rows;      // that the rectangle has
  int count;     // slots that it has
  int parts;     // of a row
  bool direct;   // rows lie where asynchronous copies keep their alignment
  bool regular;  // all rows are there, at the same place modulo 16, and no piece of 16 bytes reaches out of the weights

  __device__ __forceinline__ int64_t* slots() const { return reinterpret_cast<int64_t*>(memory + Memory::kSlots); }
  __device__ __forceinline__ int64_t* vectors() const { return reinterpret_cast<int64_t*>(memory + Memory::kVectors); }
  __device__ __forceinline__ int8_t* codes() const { return reinterpret_cast<int8_t*>(memory + Memory::kCodes); }
  __device__ __forceinline__ int8_t* x(int step) const {
    return reinterpret_cast<int8_t*>(memory + Memory::kX + step % Memory::kXBuffers * Memory::kXBytes);
  }
  __device__ __forceinline__ float* row_scales(int part) const {
    return reinterpret_cast<float*>(memory + Memory::kRowScales) + part * (Memory::kRowArrays * Memory::kRowFloats);
  }
  __device__ __forceinline__ float* token_scales(int part) const {
    return reinterpret_cast<float*>(memory + Memory::kTokenScales) + part * (Memory::kTokenArrays * Memory::kTokenFloats);
  }
  __device__ __forceinline__ uint8_t* raw(int chunk) const {
    return memory + Memory::kRaw + chunk % Memory::kRawBuffers * Memory::kRawBytes;
  }

  // Past the end the last row again, whose results are not stored.
  __device__ __forceinline__ const uint8_t* row_at(int row) const {
    return weight + (row < rows ? row : rows - 1) * args.row_bytes;
  }

  // Copies a chunk of every row to shared memory, in pieces of 16 bytes on which both sides are aligned. A piece that
  // would reach out of the weights goes byte by byte, and so do rows that lie across their alignment.
  __device__ __forceinline__ void copy_chunk(int chunk) const {
    constexpr int kLanes = 16;  // a piece each
    constexpr int kPass = kThreads / kLanes;
    const int64_t begin = static_cast<int64_t>(chunk) * Memory::kChunkBytes;
    const int64_t left = args.row_bytes - begin;
    const int bytes = static_cast<int>(left < Memory::kChunkBytes ? left : Memory::kChunkBytes);
    const int row = static_cast<int>(threadIdx.x) / kLanes;
    const int piece = static_cast<int>(threadIdx.x) % kLanes * 16;
    uint8_t* to = raw(chunk) + row * Memory::kRawStride + piece;
    if (regular) {
      const uint8_t* from = weight + row * args.row_bytes + begin;
      const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
      if (piece >= shift + bytes) return;
      from += piece - shift;
      const int64_t stride = kPass * args.row_bytes;
#pragma unroll
      for (int i = 0; i < Shape::kRows / kPass; ++i) {
        start_copy(to + i * kPass * Memory::kRawStride, from, 16);
        from += stride;
      }
      return;
    }
    for (int i = 0; i < Shape::kRows / kPass; ++i, to += kPass * Memory::kRawStride) {
      const uint8_t* from = row_at(row + i * kPass) + begin;
      const int shift = direct ? static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15) : 0;
      if (piece >= shift + bytes) continue;
      from += piece - shift;
      if (direct && from >= args.weight && from + 16 <= args.weight + args.weight_bytes) {
        start_copy(to, from, 16);
      } else {
        for (int k = 0; k < 16; ++k) {
          if (piece + k >= shift && piece + k < shift + bytes) to[k] = from[k];
        }
      }
    }
  }

  // Starts what the codes of step `step` come from.
  __device__ __forceinline__ void fetch(int step, Fetched& fetched) const {
    const int left = parts - step * kStepParts;
    if constexpr (kStagedCopies) {
      if (step % Memory::kChunkSteps == 0) copy_chunk(step / Memory::kChunkSteps);
    } else {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int unit = u * kThreads + static_cast<int>(threadIdx.x);
        const int tile = unit % kRowTilesOfStep;
        if (unit < kTiles && tile * kTileParts < left) {
          fetched.weights[u] =
              Format::load(row_at(unit / kRowTilesOfStep), static_cast<uint32_t>(step * kRowTilesOfStep + tile));
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kXUnits; ++u) {
      const int unit = u * kThreads + static_cast<int>(threadIdx.x);
      if (Shape::kTokens * kXLanes % kThreads != 0 && unit >= Shape::kTokens * kXLanes) break;
      const int token = unit / kXLanes;
      const int piece = unit % kXLanes;
      const bool valid = token < count && piece / 2 < left;
      const int8_t* from = args.x.q + (vectors()[token] * args.cols + step * int64_t{kStepK} + piece * 16);
      if constexpr (kStagedCopies) {
        start_copy(x(step) + token * kCodeStride + piece * 16, valid ? from : args.x.q, valid ? 16 : 0);
      } else {
        fetched.x[u] = valid ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
      }
    }
  }

  // And what its scales of activations come from, which arrive in registers.
  __device__ __forceinline__ void fetch_scales(int step, Fetched& fetched) const {
    const int left = parts - step * kStepParts;
#pragma unroll
    for (int u = 0; u < kXScaleUnits; ++u) {
      const int unit = u * kThreads + static_cast<int>(threadIdx.x);
      const int token = unit / kStepParts;
      const int part = unit % kStepParts;
      fetched.scales[u] = {0.0f, 0, 0};
      if (token < count && part < left) {
        fetched.scales[u] = args.x.scale[vectors()[token] * scale_stride(args.cols) + (step * kStepParts + part)];
      }
    }
  }

  __device__ __forceinline__ void unpack(int step, const Fetched& fetched) const {
    const int left = parts - step * kStepParts;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = u * kThreads + static_cast<int>(threadIdx.x);
      if (kTiles % kThreads != 0 && unit >= kTiles) break;
      const int row = unit / kRowTilesOfStep;
      const int own = unit % kRowTilesOfStep;  // of the row's tiles in this step
      if (own * kTileParts < left) {
        typename Format::Tile tile;
        if constexpr (kStagedCopies) {
          const int chunk = step / Memory::kChunkSteps;
          const uint32_t from = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(weight)) +
                                static_cast<uint32_t>(row < rows ? row : rows - 1) * static_cast<uint32_t>(args.row_bytes) +
                                static_cast<uint32_t>(chunk) * Memory::kChunkBytes;
          const uint8_t* at = raw(chunk) + row * Memory::kRawStride + (direct ? from & 15 : 0);
          tile = Format::load(at, static_cast<uint32_t>(step % Memory::kChunkSteps * kRowTilesOfStep + own));
        } else {
          tile = fetched.weights[u];
        }
        const uint32_t* table = table_of<Format>();
#pragma unroll
        for (int p = 0; p < kTileParts; ++p) put_part(row, own * kTileParts + p, Format::decode(tile, p, table));
      } else {
#pragma unroll
        for (int p = 0; p < kTileParts; ++p) put_part(row, own * kTileParts + p, Decoded{});
      }
    }
    if constexpr (!kStagedCopies) {
#pragma unroll
      for (int u = 0; u < kXUnits; ++u) {
        const int unit = u * kThreads + static_cast<int>(threadIdx.x);
        if (Shape::kTokens * kXLanes % kThreads != 0 && unit >= Shape::kTokens * kXLanes) break;
        *reinterpret_cast<uint4*>(x(step) + unit / kXLanes * kCodeStride + unit % kXLanes * 16) = fetched.x[u];
      }
    }
#pragma unroll
    for (int u = 0; u < kXScaleUnits; ++u) {
      const int unit = u * kThreads + static_cast<int>(threadIdx.x);
      if (Shape::kTokens * kStepParts % kThreads != 0 && unit >= Shape::kTokens * kStepParts) break;
      float* to = token_scales(unit % kStepParts) + unit / kStepParts;
      const ActivationScale& scale = fetched.scales[u];
      to[0] = scale.d;
      if constexpr (Decoded::kMinima == 1) to[Memory::kTokenFloats] = static_cast<float>(scale.sum);
      if constexpr (Decoded::kMinima == 2) {
        to[Memory::kTokenFloats] = static_cast<float>(scale.sum - scale.high);
        to[2 * Memory::kTokenFloats] = static_cast<float>(scale.high);
      }
    }
  }

  // What add_part needs of a row: pairs of the first scale and -kMagic times it, then the second scale, the minima negated.
  __device__ __forceinline__ void put_part(int row, int part, const Decoded& w) const {
    uint4* to = reinterpret_cast<uint4*>(codes() + row * kCodeStride + part * kPartElements);
    uint32_t q[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = with_offset<Format::kOffset>(w.q[i]);
    to[0] = make_uint4(q[0], q[1], q[2], q[3]);
    to[1] = make_uint4(q[4], q[5], q[6], q[7]);
    float* scales = row_scales(part);
    *reinterpret_cast<float2*>(scales + 2 * row) = make_float2(w.scale[0], kWideScales<Format> ? 0.0f : -kMagic * w.scale[0]);
    if constexpr (Decoded::kScales == 2) scales[2 * Memory::kRowFloats + row] = w.scale[1];
#pragma unroll
    for (int i = 0; i < Decoded::kMinima; ++i) {
      scales[(1 + Decoded::kScales + i) * Memory::kRowFloats + row] = -w.minimum[i];
    }
  }

  struct Sums {
    float value[Shape::kTokenTiles][Shape::kRowTiles][8];
  };

  // Of a wave: its first row and token in the rectangle.
  static __device__ __forceinline__ int first_row_of(int wave) { return wave % Shape::kRowWaves * Shape::kRowTiles * kTile; }
  static __device__ __forceinline__ int first_token_of(int wave) {
    return wave / Shape::kRowWaves * Shape::kTokenTiles * kTile;
  }

  template <typename Tile>
  __device__ __forceinline__ void multiply(int step, int wave, Sums& sums) const {
    const int lane = static_cast<int>(threadIdx.x) % kWave;
    const int row0 = first_row_of(wave);
    const int token0 = first_token_of(wave);
    if (token0 >= count) return;
    const int8_t* x_codes = x(step);
    // Unrolled this loop would have all its operands in registers at once.
#pragma unroll 1
    for (int part = 0; part < kStepParts; ++part) {
      const float* scales = row_scales(part);
      typename Tile::Rows fragments[Shape::kRowTiles];
      float per_row[Shape::kRowTiles][Tile::kRows][Memory::kRowArrays];
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        const int row = row0 + r * kTile;
        fragments[r] = Tile::load_rows(codes() + row * kCodeStride + part * kPartElements, kCodeStride, lane);
#pragma unroll
        for (int n = 0; n < Tile::kRows; ++n) {
          const int own = row + Tile::row_of_lane(lane, n);
          const float2 pair = *reinterpret_cast<const float2*>(scales + 2 * own);
          per_row[r][n][0] = pair.x;
          per_row[r][n][1] = pair.y;
#pragma unroll
          for (int i = 2; i < Memory::kRowArrays; ++i) per_row[r][n][i] = scales[i * Memory::kRowFloats + own];
        }
      }
#pragma unroll
      for (int t = 0; t < Shape::kTokenTiles; ++t) {
        const int token = token0 + t * kTile;
        if (token >= count) break;  // for the whole wave
        const bool all = Shape::kTokens > kTile || token + 8 < count;
        keep_order();  // or the operands of all tiles would be in registers at once
        const typename Tile::Tokens fragment =
            Tile::load_tokens(x_codes + token * kCodeStride + part * kPartElements, kCodeStride, lane);
        float per_token[Tile::kTokens][Memory::kTokenArrays];
#pragma unroll
        for (int n = 0; n < Tile::kTokens; ++n) {
#pragma unroll
          for (int i = 0; i < Memory::kTokenArrays; ++i) {
            per_token[n][i] = token_scales(part)[i * Memory::kTokenFloats + token + Tile::token_of_lane(lane, n)];
          }
        }
#pragma unroll
        for (int r = 0; r < Shape::kRowTiles; ++r) {
          int total[Decoded::kScales][8];
          Tile::template multiply<Decoded::kScales>(fragment, fragments[r], all, total);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (i >= Tile::kResultsOf8Tokens && !all) break;
            int own[Decoded::kScales];
#pragma unroll
            for (int h = 0; h < Decoded::kScales; ++h) own[h] = total[h][i];
            sums.value[t][r][i] = add_part<Format>(sums.value[t][r][i], own, per_row[r][Tile::row_of_result(i)],
                                                   per_token[Tile::token_of_result(i)]);
          }
        }
      }
    }
  }

  template <typename Tile>
  __device__ __forceinline__ void store(int64_t first_row, int wave, const Sums& sums) const {
    const int lane = static_cast<int>(threadIdx.x) % kWave;
    const int row0 = first_row_of(wave);
    const int token0 = first_token_of(wave);
#pragma unroll
    for (int t = 0; t < Shape::kTokenTiles; ++t) {
      int64_t at[Tile::kTokens];
#pragma unroll
      for (int n = 0; n < Tile::kTokens; ++n) {
        const int token = token0 + t * kTile + Tile::token_of_lane(lane, n);
        at[n] = token < count && slots()[token] >= 0 ? slots()[token] * args.rows + first_row : -1;
      }
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int row = row0 + r * kTile + Tile::row_of_lane(lane, Tile::row_of_result(i));
          const int64_t start = at[Tile::token_of_result(i)];
          if (start >= 0 && row < rows) store_result(args.out, args.dtype, start + row, sums.value[t][r][i]);
        }
      }
    }
  }

  template <typename Tile>
  __device__ __forceinline__ void run(int64_t first_row) const {
    const int steps = (parts + kStepParts - 1) / kStepParts;
    const int wave = wave_number();
    Sums sums;
#pragma unroll
    for (int t = 0; t < Shape::kTokenTiles; ++t) {
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.value[t][r][i] = 0.0f;
      }
    }
    Fetched fetched;
#pragma unroll
    for (int step = 0; step < Shape::kAhead; ++step) {
      if (step < steps) fetch(step, fetched);
      end_copies();
    }
    if (steps > 0) fetch_scales(0, fetched);
    for (int step = 0; step < steps; ++step) {
      copies_done<Shape::kAhead - 1>();
      __syncthreads();  // the copies of all threads are there, and nobody reads the last step's operands any more
      unpack(step, fetched);
      __syncthreads();
      if (step + Shape::kAhead < steps) fetch(step + Shape::kAhead, fetched);
      end_copies();
      if (step + 1 < steps) fetch_scales(step + 1, fetched);
      multiply<Tile>(step, wave, sums);
    }
    store<Tile>(first_row, wave, sums);
  }
};

// Which slots a rectangle of routed products has. Blocks of sorted_ids that follow each other with the same expert form a
// run; every kTokens / kAlignBlock of them, from the run's start, share a rectangle, and the others have nothing to do.
// Returns the expert, or -1; all threads of the block call it.
template <typename Shape>
static __device__ __forceinline__ int64_t routed_slots(const MatMatArgs& args, int64_t* slots, int64_t* vectors,
                                                       int* shared_count) {
  constexpr int kBlocks = Shape::kTokens / kAlignBlock;
  const int64_t block = args.first_token_group + blockIdx.y;
  const int64_t padded = *args.padded < args.sorted_count ? *args.padded : args.sorted_count;
  if (block >= args.blocks || block * kAlignBlock >= padded) return -1;
  const int64_t expert = args.expert_ids[block];
  if (expert < 0 || expert >= args.experts) return -1;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kBlocks > 1) {
    // How many blocks of the run lie before this one.
    int64_t before = 0;
    bool more = true;
    while (more) {
      const int64_t own = block - 1 - before - thread;
      const bool other = own < 0 || args.expert_ids[own] != expert;
      if (thread == 0) *shared_count = Shape::kThreads;
      __syncthreads();
      if (other) atomicMin(shared_count, thread);
      __syncthreads();
      const int run = *shared_count;
      __syncthreads();
      before += run;
      more = run == Shape::kThreads;
    }
    if (before % kBlocks != 0) return -1;
  }
  if (thread == 0) *shared_count = 0;
  __syncthreads();
  if (thread < Shape::kTokens) {
    int64_t slot = -1;
    const int64_t entry = block * kAlignBlock + thread;
    bool same = entry < padded;
    for (int64_t next = block; next <= entry / kAlignBlock; ++next) {
      same = same && next < args.blocks && args.expert_ids[next] == expert;
    }
    if (same) {
      const int64_t id = args.sorted_ids[entry];
      if (id >= 0 && id < args.slots) slot = id;
    }
    slots[thread] = slot;
    vectors[thread] = slot < 0 ? 0 : slot / args.top_k;
    if (slot >= 0) atomicMax(shared_count, thread + 1);
  }
  __syncthreads();
  return expert;
}

// NVIDIA's compiler is told how many blocks are to share a multiprocessor, AMD's how many waves a SIMD.
#if defined(ROCMBUILD_PLATFORM_CUDA)
#define GGUF_MAT_MAT_BOUNDS(Shape) __launch_bounds__(Shape::kThreads, Shape::kThreads > 128 ? 2 : 4)
#else
#define GGUF_MAT_MAT_BOUNDS(Shape) __launch_bounds__(Shape::kThreads, 4)
#endif

// Blocks of Shape::kThreads with MatMatMemory::kBytes of shared memory. Grid: x over groups of kRows rows, y over groups
// of kTokens slots, or of routed products over blocks of sorted_ids.
template <typename Format, typename Shape, bool kMatrixCores>
static __global__ void GGUF_MAT_MAT_BOUNDS(Shape) mat_mat(MatMatArgs args) {
  using Memory = MatMatMemory<Format, Shape>;
  extern __shared__ __align__(16) uint8_t mat_mat_memory[];
  __shared__ int shared_count;
  int64_t* slots = reinterpret_cast<int64_t*>(mat_mat_memory + Memory::kSlots);
  int64_t* vectors = reinterpret_cast<int64_t*>(mat_mat_memory + Memory::kVectors);
  const int64_t first_row = (args.first_row_group + blockIdx.x) * Shape::kRows;
  int64_t expert = 0;
  int count;
  if (args.sorted_ids != nullptr) {
    expert = routed_slots<Shape>(args, slots, vectors, &shared_count);
    if (expert < 0) return;
    count = shared_count;
  } else {
    const int64_t first = (args.first_token_group + blockIdx.y) * Shape::kTokens;
    const int64_t left = args.slots - first;
    count = static_cast<int>(left < Shape::kTokens ? left : Shape::kTokens);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < Shape::kTokens) {
      slots[thread] = thread < count ? first + thread : -1;
      vectors[thread] = thread < count ? first + thread : 0;
    }
    __syncthreads();
  }
  const uint8_t* weight = args.weight + expert * args.expert_bytes + first_row * args.row_bytes;
  const int64_t rows_left = args.rows - first_row;
  const int rows = static_cast<int>(rows_left < Shape::kRows ? rows_left : Shape::kRows);
  const int parts = static_cast<int>(args.cols / kPartElements);
  const bool direct = reinterpret_cast<uintptr_t>(args.weight) % Memory::kRowAlignment == 0;
  const uintptr_t lowest = reinterpret_cast<uintptr_t>(weight) / 16 * 16;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(weight) + Shape::kRows * args.row_bytes + 15) / 16 * 16;
  const bool inside = lowest >= reinterpret_cast<uintptr_t>(args.weight) &&
                      end <= reinterpret_cast<uintptr_t>(args.weight) + args.weight_bytes;
  const bool regular = direct && inside && args.row_bytes % 16 == 0;
  const MatMat<Format, Shape, kMatrixCores> product{args, mat_mat_memory, weight, rows, wave_uniform(count), parts, direct,
                                                    regular};
  if constexpr (kMatrixCores) {
    product.template run<MatrixCoreTile>(first_row);
  } else {
    product.template run<DotTile>(first_row);
  }
}

}  // namespace gguf
