// Launches of the direct kernels of routed experts, for one format.
#pragma once

#include "device/routed.cuh"
#include "launch/grid.cuh"
#include "launch/staged.cuh"
#include "launch/tuning.h"

namespace gguf {

// Whether a format's kernels take interleaved activations.
template <typename Format>
constexpr bool takes_interleaved() {
  return kInterleavedMxfp4 && Format::kType == MXFP4;
}

// On NVIDIA's GPUs a kernel may start while the one that quantises its activations still runs: it waits by itself.
template <typename Args>
void launch_routed(void (*kernel)(Args), dim3 grid, cudaStream_t stream, const Args& args) {
#if defined(ROCMBUILD_PLATFORM_CUDA)
  launch_early(kernel, grid, kMatVecThreads, 0, stream, args);
#else
  kernel<<<grid, kMatVecThreads, 0, stream>>>(args);
#endif
}

template <typename Format>
cudaError_t launch_moe_gate_up(const GateUpArgs& args, int64_t tokens, cudaStream_t stream) {
  const Extent blocks{ceil_div(args.rows, kMatVecWaves * kGateUpRows), tokens, args.routing.top_k};
  return for_each_grid(blocks, kMatVecThreads, [&](Extent origin, dim3 grid) {
    GateUpArgs part = args;
    part.first_group = origin.x;
    part.first_token = origin.y;
    part.first_slot = origin.z;
    if constexpr (takes_interleaved<Format>()) {
      if (args.interleaved) return launch_routed(moe_gate_up<Format, kGateUpRows, true>, grid, stream, part);
    }
    launch_routed(moe_gate_up<Format, kGateUpRows, false>, grid, stream, part);
  });
}

template <typename Format>
cudaError_t launch_moe_down(const DownArgs& args, int64_t tokens, cudaStream_t stream) {
  const Extent blocks{ceil_div(args.rows, kMatVecWaves * kDownRows), tokens};
  return for_each_grid(blocks, kMatVecThreads, [&](Extent origin, dim3 grid) {
    DownArgs part = args;
    part.first_group = origin.x;
    part.first_token = origin.y;
    launch_routed(moe_down<Format, kDownRows, takes_interleaved<Format>()>, grid, stream, part);
  });
}

using MoeDown = cudaError_t (*)(const DownArgs& args, int64_t tokens, cudaStream_t stream);

// The routed down projection with the routing weights has kernels for MXFP4 alone.
template <typename Format>
constexpr MoeDown moe_down_of() {
  if constexpr (Format::kType == MXFP4) {
    return launch_moe_down<Format>;
  } else {
    return nullptr;
  }
}

}  // namespace gguf
