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

// Of a rectangle: its waves, and what each computes. Early: how many steps before they are multiplied with weights are
// decoded, 0 or 1: where shared memory has room for two steps, a block's waves decode and multiply side by side.
template <int Rows, int Tokens, int RowWaves, int TokenWaves, int Ahead, int Early>
struct MatMatShape {
  static constexpr int kRows = Rows;
  static constexpr int kTokens = Tokens;
  static constexpr int kRowWaves = RowWaves;
  static constexpr int kAhead = kStagedCopies ? Ahead : 1;  // how many steps ahead of the multiplication copies begin
  static constexpr int kEarly = kStagedCopies ? Early : 0;
  static constexpr int kThreads = RowWaves * TokenWaves * kWave;
  static constexpr int kRowTiles = Rows / RowWaves / kTile;       // a wave's
  static constexpr int kTokenTiles = Tokens / TokenWaves / kTile;
  static constexpr int kWaveRows = Rows / (RowWaves * TokenWaves);  // that a wave copies and decodes
  static_assert(RowWaves * TokenWaves <= kTileWaves, "see there");
};

using SmallShape = MatMatShape<64, 16, 4, 1, 3, 0>;
using MediumShape = MatMatShape<128, 64, 4, 2, 1, 1>;
// NVIDIA's multiprocessors have registers for 64 floats of results a lane; with 32 AMD's SIMDs hold twice the waves.
using LargeShape = MatMatShape<128, 128, 4, kStagedCopies ? 2 : 4, 1, 1>;

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

  // What a step is decoded to.
  static constexpr int kCodeBytes = Shape::kRows * kCodeStride;
  static constexpr int kRowScaleBytes = kStepParts * kRowArrays * kRowFloats * 4;
  static constexpr int kTokenScaleBytes = kStepParts * kTokenArrays * kTokenFloats * 4;
  static constexpr int kDecodedBytes = kCodeBytes + kRowScaleBytes + kTokenScaleBytes;

  static constexpr int kXBytes = Shape::kTokens * kCodeStride;
  static constexpr int kTableBytes = Shape::kTokens * 8;
  static constexpr int kRawBytes = kStagedCopies ? Shape::kRows * kRawStride : 0;
  static constexpr int kOtherBytes = kXBuffers * kXBytes + 3 * kTableBytes + kRawBuffers * kRawBytes;
  static constexpr int kHalfOfShared = 113 << 10;  // of a multiprocessor of NVIDIA's, which two blocks are to share
  static constexpr int kEarly = kOtherBytes + 2 * kDecodedBytes <= kHalfOfShared ? Shape::kEarly : 0;

  static constexpr int kX = (1 + kEarly) * kDecodedBytes;
  static constexpr int kSlots = kX + kXBuffers * kXBytes;
  static constexpr int kXStarts = kSlots + kTableBytes;
  static constexpr int kScaleStarts = kXStarts + kTableBytes;
  static constexpr int kRaw = kScaleStarts + kTableBytes;
  static constexpr int kBytes = kRaw + kRawBuffers * kRawBytes;
  static_assert(kCodeBytes % 16 == 0 && kRowScaleBytes % 16 == 0 && kTokenScaleBytes % 16 == 0 && kXBytes % 16 == 0 &&
                    kTableBytes % 16 == 0,
                "16-byte accesses");
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

// An address in shared memory that NVIDIA's compiler keeps in a register, not the many values that it was computed from.
template <typename T>
static __device__ __forceinline__ const T* kept_address(const T* shared) {
#if defined(GGUF_NVIDIA_DEVICE)
  return reinterpret_cast<const T*>(shared_pointer(shared_address(shared)));
#else
  return shared;
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
  static constexpr int kTiles = Shape::kWaveRows * kRowTilesOfStep;  // of weights in a step of a wave's rows
  static constexpr int kUnits = (kTiles + kWave - 1) / kWave;  // of them that a lane decodes
  // Parts of a step whose operands lie at fixed distances, and whether the next tokens arrive while sums are added up:
  // where there are registers for that. AMD's SIMDs have more waves in place of it.
  static constexpr int kUnrolledParts = kStagedCopies && Decoded::kScales == 1 ? kStepParts : 1;
  static constexpr bool kOperandsAhead = kUnrolledParts > 1 && Decoded::kMinima == 0;
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
  int wave;      // of the block
  int rows;      // that the rectangle has
  int count;     // slots that it has
  int parts;     // of a row
  bool direct;   // rows lie where asynchronous copies keep their alignment
  bool regular;  // all rows are there, at the same place modulo 16, and no piece of 16 bytes reaches out of the weights

  __device__ __forceinline__ int64_t* slots() const { return reinterpret_cast<int64_t*>(memory + Memory::kSlots); }
  // Of each token, what of args.x belongs to it.
  __device__ __forceinline__ const int8_t** x_of() const {
    return reinterpret_cast<const int8_t**>(memory + Memory::kXStarts);
  }
  __device__ __forceinline__ const ActivationScale** scales_of() const {
    return reinterpret_cast<const ActivationScale**>(memory + Memory::kScaleStarts);
  }
  // What a step is decoded to.
  __device__ __forceinline__ uint8_t* decoded(int step) const {
    return memory + (Memory::kEarly == 1 ? step % 2 * Memory::kDecodedBytes : 0);
  }
  __device__ __forceinline__ int8_t* codes(int step) const { return reinterpret_cast<int8_t*>(decoded(step)); }
  __device__ __forceinline__ float* row_scales(int step, int part) const {
    return reinterpret_cast<float*>(decoded(step) + Memory::kCodeBytes) + part * (Memory::kRowArrays * Memory::kRowFloats);
  }
  __device__ __forceinline__ float* token_scales(int step, int part) const {
    return reinterpret_cast<float*>(decoded(step) + Memory::kCodeBytes + Memory::kRowScaleBytes) +
           part * (Memory::kTokenArrays * Memory::kTokenFloats);
  }
  __device__ __forceinline__ int8_t* x(int step) const {
    return reinterpret_cast<int8_t*>(memory + Memory::kX + step % Memory::kXBuffers * Memory::kXBytes);
  }
  __device__ __forceinline__ uint8_t* raw(int chunk) const {
    return memory + Memory::kRaw + chunk % Memory::kRawBuffers * Memory::kRawBytes;
  }

  // Past the end the last row again, whose results are not stored.
  __device__ __forceinline__ const uint8_t* row_at(int row) const {
    return weight + (row < rows ? row : rows - 1) * args.row_bytes;
  }

  // The first of the rows that this wave copies and decodes, and nobody else.
  __device__ __forceinline__ int own_row() const { return wave * Shape::kWaveRows; }

  // Copies a chunk of the wave's rows to shared memory, in pieces of 16 bytes on which both sides are aligned. A piece
  // that would reach out of the weights goes byte by byte, and so do rows that lie across their alignment.
  __device__ __forceinline__ void copy_chunk(int chunk) const {
    constexpr int kLanes = 16;  // a piece each
    constexpr int kPass = kWave / kLanes;
    const int64_t begin = static_cast<int64_t>(chunk) * Memory::kChunkBytes;
    const int64_t left = args.row_bytes - begin;
    const int bytes = static_cast<int>(left < Memory::kChunkBytes ? left : Memory::kChunkBytes);
    const int row = own_row() + static_cast<int>(threadIdx.x % kWave / kLanes);
    const int piece = static_cast<int>(threadIdx.x % kLanes * 16);
    uint8_t* to = raw(chunk) + row * Memory::kRawStride + piece;
    if (regular) {
      const uint8_t* from = weight + row * args.row_bytes + begin;
      const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
      if (piece >= shift + bytes) return;
      from += piece - shift;
      const int64_t stride = kPass * args.row_bytes;
#pragma unroll
      for (int i = 0; i < Shape::kWaveRows / kPass; ++i) {
        start_copy(to + i * kPass * Memory::kRawStride, from, 16);
        from += stride;
      }
      return;
    }
    for (int i = 0; i < Shape::kWaveRows / kPass; ++i, to += kPass * Memory::kRawStride) {
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

  // Starts what the codes of weights of step `step` come from.
  __device__ __forceinline__ void fetch_weights(int step, Fetched& fetched) const {
    if constexpr (kStagedCopies) {
      if (step % Memory::kChunkSteps == 0) copy_chunk(step / Memory::kChunkSteps);
    } else {
      const int left = parts - step * kStepParts;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const uint32_t unit = u * kWave + threadIdx.x % kWave;
        const uint32_t tile = unit % kRowTilesOfStep;
        if (unit < kTiles && static_cast<int>(tile) * kTileParts < left) {
          fetched.weights[u] = Format::load(row_at(own_row() + static_cast<int>(unit / kRowTilesOfStep)),
                                            static_cast<uint32_t>(step * kRowTilesOfStep) + tile);
        }
      }
    }
  }

  // And those of activations.
  __device__ __forceinline__ void fetch_x(int step, Fetched& fetched) const {
    const int left = parts - step * kStepParts;
    const int piece = static_cast<int>(threadIdx.x % kXLanes);
    const int64_t at = step * int64_t{kStepK} + piece * 16;
    const bool all = count == Shape::kTokens && left >= kStepParts;  // then copies need no length
#pragma unroll
    for (int u = 0; u < kXUnits; ++u) {
      const int token = static_cast<int>((u * kThreads + threadIdx.x) / kXLanes);
      if (Shape::kTokens * kXLanes % kThreads != 0 && token >= Shape::kTokens) break;
      const int8_t* from = x_of()[token] + at;
      const bool valid = token < count && piece / 2 < left;
      if constexpr (kStagedCopies) {
        int8_t* to = x(step) + token * kCodeStride + piece * 16;
        if (all) {
          start_copy(to, from, 16);
        } else {
          start_copy(to, from, valid ? 16 : 0);
        }
      } else {
        fetched.x[u] = valid ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
      }
    }
  }

  // And what its scales of activations come from, which arrive in registers.
  __device__ __forceinline__ void fetch_scales(int step, Fetched& fetched) const {
    const int left = parts - step * kStepParts;
    const int part = static_cast<int>(threadIdx.x % kStepParts);
#pragma unroll
    for (int u = 0; u < kXScaleUnits; ++u) {
      const int token = static_cast<int>((u * kThreads + threadIdx.x) / kStepParts);
      fetched.scales[u] = {0.0f, 0, 0};
      if (token < count && part < left) fetched.scales[u] = scales_of()[token][step * kStepParts + part];
    }
  }

  __device__ __forceinline__ void unpack(int step, const Fetched& fetched) const {
    const int left = parts - step * kStepParts;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const uint32_t unit = u * kWave + threadIdx.x % kWave;
      if (kTiles % kWave != 0 && unit >= kTiles) break;
      const int row = own_row() + static_cast<int>(unit / kRowTilesOfStep);
      const int own = static_cast<int>(unit % kRowTilesOfStep);  // of the row's tiles in this step
      if (own * kTileParts < left) {
        typename Format::Tile tile;
        if constexpr (kStagedCopies) {
          // A row past the end is decoded from anything: its results are not stored.
          const int chunk = step / Memory::kChunkSteps;
          const uint32_t from = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(weight)) +
                                static_cast<uint32_t>(row) * static_cast<uint32_t>(args.row_bytes) +
                                static_cast<uint32_t>(chunk) * Memory::kChunkBytes;
          const uint8_t* at = raw(chunk) + row * Memory::kRawStride + (from & (direct ? 15u : 0u));
          tile = Format::load(at, static_cast<uint32_t>(step % Memory::kChunkSteps * kRowTilesOfStep + own));
        } else {
          tile = fetched.weights[u];
        }
        const uint32_t* table = table_of<Format>();
#pragma unroll
        for (int p = 0; p < kTileParts; ++p) put_part(step, row, own * kTileParts + p, Format::decode(tile, p, table));
      }
    }
    if constexpr (!kStagedCopies) {
#pragma unroll
      for (int u = 0; u < kXUnits; ++u) {
        const uint32_t unit = u * kThreads + threadIdx.x;
        if (Shape::kTokens * kXLanes % kThreads != 0 && unit >= Shape::kTokens * kXLanes) break;
        *reinterpret_cast<uint4*>(x(step) + unit / kXLanes * kCodeStride + unit % kXLanes * 16) = fetched.x[u];
      }
    }
#pragma unroll
    for (int u = 0; u < kXScaleUnits; ++u) {
      const uint32_t unit = u * kThreads + threadIdx.x;
      if (Shape::kTokens * kStepParts % kThreads != 0 && unit >= Shape::kTokens * kStepParts) break;
      float* to = token_scales(step, static_cast<int>(unit % kStepParts)) + unit / kStepParts;
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
  __device__ __forceinline__ void put_part(int step, int row, int part, const Decoded& w) const {
    uint4* to = reinterpret_cast<uint4*>(codes(step) + row * kCodeStride + part * kPartElements);
    uint32_t q[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = with_offset<Format::kOffset>(w.q[i]);
    to[0] = make_uint4(q[0], q[1], q[2], q[3]);
    to[1] = make_uint4(q[4], q[5], q[6], q[7]);
    float* scales = row_scales(step, part);
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

  // The first row and token that this wave multiplies.
  __device__ __forceinline__ int wave_row() const { return wave % Shape::kRowWaves * Shape::kRowTiles * kTile; }
  __device__ __forceinline__ int wave_token() const { return wave / Shape::kRowWaves * Shape::kTokenTiles * kTile; }

  // Where a lane finds what it multiplies with in a step: what belongs to the first row and token of its wave.
  struct Operands {
    const int8_t* row_codes;
    const float2* row_pairs;
    const float* row_others;
    const int8_t* token_codes;
    const float* token_scales;
    bool there[Shape::kTokenTiles];  // of the wave's tiles of tokens
  };

  template <typename Tile>
  __device__ __forceinline__ Operands operands_of(int step) const {
    const int lane = static_cast<int>(threadIdx.x % kWave);
    Operands at;
    at.row_codes = kept_address(codes(step) + wave_row() * kCodeStride + Tile::row_place(lane, kCodeStride));
    const int row = wave_row() + Tile::row_of_lane(lane, 0);
    at.row_pairs = kept_address(reinterpret_cast<const float2*>(row_scales(step, 0)) + row);
    at.row_others = Memory::kRowArrays == 2 ? nullptr : kept_address(row_scales(step, 0) + 2 * Memory::kRowFloats + row);
    at.token_codes = kept_address(x(step) + wave_token() * kCodeStride + Tile::token_place(lane, kCodeStride));
    at.token_scales = kept_address(token_scales(step, 0) + wave_token() + Tile::token_of_lane(lane, 0));
#pragma unroll
    for (int t = 0; t < Shape::kTokenTiles; ++t) at.there[t] = wave_token() + t * kTile < count;
    return at;
  }

  // 16 tokens and 32 of k.
  template <typename Tile>
  struct TokenTile {
    typename Tile::Tokens codes;
    float scales[Tile::kTokens][Memory::kTokenArrays];
  };

  template <typename Tile>
  __device__ __forceinline__ TokenTile<Tile> load_tokens(const Operands& at, int part, int tile) const {
    TokenTile<Tile> got;
    got.codes = Tile::load_tokens(at.token_codes + tile * kTile * kCodeStride + part * kPartElements, kCodeStride);
#pragma unroll
    for (int n = 0; n < Tile::kTokens; ++n) {
#pragma unroll
      for (int i = 0; i < Memory::kTokenArrays; ++i) {
        got.scales[n][i] = at.token_scales[(part * Memory::kTokenArrays + i) * Memory::kTokenFloats + tile * kTile +
                                           (Tile::token_of_lane(0, n) - Tile::token_of_lane(0, 0))];
      }
    }
    return got;
  }

  template <typename Tile>
  __device__ __forceinline__ void multiply_part(const Operands& at, int part, Sums& sums) const {
    typename Tile::Rows fragments[Shape::kRowTiles];
    float per_row[Shape::kRowTiles][Tile::kRows][Memory::kRowArrays];
    constexpr int kPartFloats = Memory::kRowArrays * Memory::kRowFloats;
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      fragments[r] = Tile::load_rows(at.row_codes + r * kTile * kCodeStride + part * kPartElements);
#pragma unroll
      for (int n = 0; n < Tile::kRows; ++n) {
        const int row = r * kTile + Tile::row_of_lane(0, n) - Tile::row_of_lane(0, 0);
        const float2 pair = at.row_pairs[part * (kPartFloats / 2) + row];
        per_row[r][n][0] = pair.x;
        per_row[r][n][1] = pair.y;
#pragma unroll
        for (int i = 2; i < Memory::kRowArrays; ++i) {
          per_row[r][n][i] = at.row_others[part * kPartFloats + (i - 2) * Memory::kRowFloats + row];
        }
      }
    }
    TokenTile<Tile> own = load_tokens<Tile>(at, part, 0);
#pragma unroll
    for (int t = 0; t < Shape::kTokenTiles; ++t) {
      if (t > 0 && !at.there[t]) break;  // for the whole wave
      const bool all = Shape::kTokens > kTile || wave_token() + t * kTile + 8 < count;
      keep_order();  // or the operands of all tiles would be in registers at once
      TokenTile<Tile> next{};
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        int total[Decoded::kScales][8];
        Tile::template multiply<Decoded::kScales>(own.codes, fragments[r], all, total);
        if (kOperandsAhead && r == 0 && t + 1 < Shape::kTokenTiles) next = load_tokens<Tile>(at, part, t + 1);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i >= Tile::kResultsOf8Tokens && !all) break;
          int each[Decoded::kScales];
#pragma unroll
          for (int h = 0; h < Decoded::kScales; ++h) each[h] = total[h][i];
          sums.value[t][r][i] = add_part<Format>(sums.value[t][r][i], each, per_row[r][Tile::row_of_result(i)],
                                                 own.scales[Tile::token_of_result(i)]);
        }
      }
      if (!kOperandsAhead && t + 1 < Shape::kTokenTiles && at.there[t + 1]) {
        keep_order();
        next = load_tokens<Tile>(at, part, t + 1);
      }
      own = next;
    }
  }

  template <typename Tile>
  __device__ __forceinline__ void multiply(int step, Sums& sums) const {
    if (wave_token() >= count) return;
    const int left = parts - step * kStepParts;
    const Operands at = operands_of<Tile>(step);
#pragma unroll kUnrolledParts
    for (int part = 0; part < kStepParts; ++part) {
      if (part < left) multiply_part<Tile>(at, part, sums);
    }
  }

  template <typename Tile>
  __device__ __forceinline__ void store(int64_t first_row, const Sums& sums) const {
    const int lane = static_cast<int>(threadIdx.x % kWave);
    const int row0 = wave_row();
    const int token0 = wave_token();
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
    if (steps > 0) fetch_scales(0, fetched);
    if constexpr (Memory::kEarly == 1) {
      if (steps > 0) fetch_weights(0, fetched);
      end_copies();
      copies_done<0>();
      __syncwarp();
      if (steps > 0) unpack(0, fetched);
      if (steps > 1) fetch_scales(1, fetched);
    }
#pragma unroll
    for (int step = 0; step < Shape::kAhead; ++step) {
      if (step + Memory::kEarly < steps) fetch_weights(step + Memory::kEarly, fetched);
      if (step < steps) fetch_x(step, fetched);
      end_copies();
    }
    for (int step = 0; step < steps; ++step) {
      copies_done<Shape::kAhead - 1>();
      __syncthreads();  // what all threads have copied and decoded is there, and nobody reads the last step's operands
      const int next = step + Memory::kEarly;  // to decode
      if (next < steps) unpack(next, fetched);
      if constexpr (Memory::kEarly == 1) {
        __syncwarp();
      } else {
        __syncthreads();
      }
      if (next + Shape::kAhead < steps) fetch_weights(next + Shape::kAhead, fetched);
      if (step + Shape::kAhead < steps) fetch_x(step + Shape::kAhead, fetched);
      end_copies();
      if (next + 1 < steps) fetch_scales(next + 1, fetched);
      multiply<Tile>(step, sums);
    }
    store<Tile>(first_row, sums);
  }
};

// Which slots a rectangle of routed products has. Blocks of sorted_ids that follow each other with the same expert form a
// run; every kTokens / kAlignBlock of them, from the run's start, share a rectangle, and the others have nothing to do.
// Returns the expert, or -1; all threads of the block call it.
template <typename Shape>
static __device__ __forceinline__ int64_t routed_slots(const MatMatArgs& args, int64_t* slots, int* shared_count) {
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
  const int64_t first_row = (args.first_row_group + blockIdx.x) * Shape::kRows;
  const int thread = static_cast<int>(threadIdx.x);
  int64_t expert = 0;
  int count;
  if (args.sorted_ids != nullptr) {
    expert = routed_slots<Shape>(args, slots, &shared_count);
    if (expert < 0) return;
    count = shared_count;
  } else {
    const int64_t first = (args.first_token_group + blockIdx.y) * Shape::kTokens;
    const int64_t left = args.slots - first;
    count = static_cast<int>(left < Shape::kTokens ? left : Shape::kTokens);
    if (thread < Shape::kTokens) slots[thread] = thread < count ? first + thread : -1;
  }
  const uint8_t* weight = args.weight + expert * args.expert_bytes + first_row * args.row_bytes;
  const int64_t rows_left = args.rows - first_row;
  const int rows = static_cast<int>(rows_left < Shape::kRows ? rows_left : Shape::kRows);
  const int parts = static_cast<int>(args.cols / kPartElements);
  const bool direct = reinterpret_cast<uintptr_t>(args.weight) % kRowAlignment<Format> == 0;
  const uintptr_t lowest = reinterpret_cast<uintptr_t>(weight) / 16 * 16;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(weight) + Shape::kRows * args.row_bytes + 15) / 16 * 16;
  const bool inside = lowest >= reinterpret_cast<uintptr_t>(args.weight) &&
                      end <= reinterpret_cast<uintptr_t>(args.weight) + args.weight_bytes;
  const bool regular = direct && inside && args.row_bytes % 16 == 0;
  const MatMat<Format, Shape, kMatrixCores> product{args, mat_mat_memory,      weight, wave_number(),
                                                    rows, wave_uniform(count), parts,  direct,
                                                    regular};
  if (thread < Shape::kTokens) {
    const int64_t vector = slots[thread] < 0 ? 0 : slots[thread] / args.top_k;
    product.x_of()[thread] = args.x.q + vector * args.cols;
    product.scales_of()[thread] = args.x.scale + vector * scale_stride(args.cols);
  }
  __syncthreads();
  if constexpr (kMatrixCores) {
    product.template run<MatrixCoreTile>(first_row);
  } else {
    product.template run<DotTile>(first_row);
  }
}

}  // namespace gguf
