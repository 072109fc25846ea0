// Slots sorted by expert, each expert's padded to whole blocks: what grouped products take.
#pragma once

#include "device/platform.cuh"

namespace gguf {

struct AlignArgs {
  const void* ids;  // [count] int32 or int64
  int64_t count;
  int64_t experts;
  int32_t block;
  bool wide_ids;
  int32_t* sorted_ids;  // [sorted_count], which is enough for any ids
  int64_t sorted_count;
  int32_t* expert_ids;  // [expert_count]
  int64_t expert_count;
  int32_t* padded;  // [1]
};

constexpr int64_t kSortedExperts = 8192;  // more cannot be sorted
constexpr int kAlignThreads = 512;
constexpr int kAlignPerThread = 8;

// Group g is expert g's slots, and group `experts` those whose ids name no expert. A block of threads a group: each counts
// all groups, so it knows where its own begins, and takes its own slots in their order. Needs experts + 1 ints of
// shared memory. Grid: x over groups, from first_group on.
static __global__ void __launch_bounds__(kAlignThreads) align_blocks(AlignArgs args, int64_t first_group) {
  extern __shared__ __align__(16) int align_counts[];
  __shared__ int shared_begin;
  __shared__ int wave_counts[kAlignThreads / kWave];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWave;
  const int64_t group = first_group + blockIdx.x;
  constexpr int64_t kChunk = kAlignThreads * kAlignPerThread;
  for (int64_t g = thread; g <= args.experts; g += kAlignThreads) align_counts[g] = 0;
  if (thread == 0) shared_begin = 0;
  __syncthreads();

  // The groups of a thread's slots of a chunk, -1 past the end.
  const auto load = [&](int64_t chunk, int (&groups)[kAlignPerThread]) {
#pragma unroll
    for (int i = 0; i < kAlignPerThread; ++i) {
      const int64_t slot = chunk + thread * kAlignPerThread + i;
      int64_t id = -1;
      if (slot < args.count) {
        id = args.wide_ids ? static_cast<const int64_t*>(args.ids)[slot] : static_cast<const int32_t*>(args.ids)[slot];
      }
      groups[i] = slot >= args.count                  ? -1
                  : id < 0 || id >= args.experts ? static_cast<int>(args.experts)
                                                      : static_cast<int>(id);
    }
  };
  for (int64_t chunk = 0; chunk < args.count; chunk += kChunk) {
    int groups[kAlignPerThread];
    load(chunk, groups);
#pragma unroll
    for (int i = 0; i < kAlignPerThread; ++i) {
      if (groups[i] >= 0) atomicAdd(&align_counts[groups[i]], 1);
    }
  }
  __syncthreads();
  const auto padded_count = [&](int64_t g) {
    return (align_counts[g] + args.block - 1) / args.block * args.block;
  };
  int before = 0;
  for (int64_t g = thread; g < group; g += kAlignThreads) before += padded_count(g);
  if (before != 0) atomicAdd(&shared_begin, before);
  __syncthreads();

  const int begin = shared_begin;
  const int own = align_counts[group];
  const int padded = padded_count(group);
  for (int i = thread; i < padded / args.block; i += kAlignThreads) {
    args.expert_ids[begin / args.block + i] = group < args.experts ? static_cast<int>(group) : -1;
  }
  for (int i = own + thread; i < padded; i += kAlignThreads) args.sorted_ids[begin + i] = static_cast<int>(args.count);
  if (group == args.experts) {
    const int end = begin + padded;
    if (thread == 0) *args.padded = end;
    for (int64_t i = end + thread; i < args.sorted_count; i += kAlignThreads) {
      args.sorted_ids[i] = static_cast<int>(args.count);
    }
    for (int64_t i = end / args.block + thread; i < args.expert_count; i += kAlignThreads) args.expert_ids[i] = -1;
  }

  int found = 0;  // of the group's slots, in the chunks so far
  for (int64_t chunk = 0; found < own; chunk += kChunk) {
    int groups[kAlignPerThread];
    load(chunk, groups);
    int count = 0;
#pragma unroll
    for (int i = 0; i < kAlignPerThread; ++i) count += groups[i] == group;
    // How many the lanes below have, bit by bit of the counts, which are 8 at most.
    int below = 0;
    int all = 0;
#pragma unroll
    for (int bit = 0; bit < 4; ++bit) {
      const uint32_t set = wave_ballot((count >> bit & 1) != 0);
      below += __popc(set & ((1u << lane) - 1)) << bit;
      all += __popc(set) << bit;
    }
    if (lane == 0) wave_counts[thread / kWave] = all;
    __syncthreads();
    int at = begin + found + below;
    for (int wave = 0; wave < kAlignThreads / kWave; ++wave) {
      if (wave < thread / kWave) at += wave_counts[wave];
      found += wave_counts[wave];
    }
#pragma unroll
    for (int i = 0; i < kAlignPerThread; ++i) {
      if (groups[i] == group) args.sorted_ids[at++] = static_cast<int>(chunk) + thread * kAlignPerThread + i;
    }
    __syncthreads();
  }
}

}  // namespace gguf
