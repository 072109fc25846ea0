// Launches of the activation quantiser.
#include <algorithm>

#include "device/routed.cuh"
#include "launch/format_ops.h"
#include "launch/grid.cuh"
#include "launch/staged.cuh"
#include "launch/tuning.h"

namespace gguf {
namespace {

template <typename T>
cudaError_t launch_as(QuantizeArgs args, int64_t vectors, cudaStream_t stream) {
  const int64_t waves = ceil_div(args.cols, kWave * kQuantizePerThread);
  const int threads = static_cast<int>(std::min<int64_t>(waves * kWave, kQuantizeThreads));
  const Extent blocks{ceil_div(args.cols, std::max(threads, 1) * kQuantizePerThread), vectors};
  return for_each_grid(blocks, threads, [&](Extent origin, dim3 grid) {
    args.first_chunk = origin.x;
    args.first_vector = origin.y;
#if defined(ROCMBUILD_PLATFORM_CUDA)
    launch_early(quantize_activations<T>, grid, threads, 0, stream, args);
#else
    quantize_activations<T><<<grid, threads, 0, stream>>>(args);
#endif
  });
}

template <typename T, bool kInterleaved>
cudaError_t launch_q8_k_as(QuantizeArgs args, int64_t vectors, cudaStream_t stream) {
  const Extent blocks{ceil_div(args.cols, kQ8KBlock * (kQuantizeThreads / kWave)), vectors};
  return for_each_grid(blocks, kQuantizeThreads, [&](Extent origin, dim3 grid) {
    args.first_chunk = origin.x;
    args.first_vector = origin.y;
#if defined(ROCMBUILD_PLATFORM_CUDA)
    launch_early(quantize_activations_q8_k<T, kInterleaved>, grid, kQuantizeThreads, 0, stream, args);
#else
    quantize_activations_q8_k<T, kInterleaved><<<grid, kQuantizeThreads, 0, stream>>>(args);
#endif
  });
}

template <bool kInterleaved>
cudaError_t launch_q8_k(GgufScalar dtype, const QuantizeArgs& args, int64_t vectors, cudaStream_t stream) {
  switch (dtype) {
    case GGUF_F16: return launch_q8_k_as<__half, kInterleaved>(args, vectors, stream);
    case GGUF_BF16: return launch_q8_k_as<__nv_bfloat16, kInterleaved>(args, vectors, stream);
    default: return launch_q8_k_as<float, kInterleaved>(args, vectors, stream);
  }
}

}  // namespace

cudaError_t launch_quantize(GgufScalar dtype, const void* x, int64_t x_stride, ActivationView out, int64_t vectors,
                            int64_t cols, cudaStream_t stream) {
  const QuantizeArgs args{x, x_stride, out, cols, 0, 0};
  switch (dtype) {
    case GGUF_F16: return launch_as<__half>(args, vectors, stream);
    case GGUF_BF16: return launch_as<__nv_bfloat16>(args, vectors, stream);
    default: return launch_as<float>(args, vectors, stream);
  }
}

cudaError_t launch_quantize_q8_k(GgufScalar dtype, const void* x, int64_t x_stride, ActivationView out, int64_t vectors,
                                 int64_t cols, bool interleaved, cudaStream_t stream) {
  const QuantizeArgs args{x, x_stride, out, cols, 0, 0};
  if constexpr (kInterleavedMxfp4) {
    if (interleaved) return launch_q8_k<true>(dtype, args, vectors, stream);
  }
  return launch_q8_k<false>(dtype, args, vectors, stream);
}

}  // namespace gguf
