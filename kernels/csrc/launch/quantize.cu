// Launches of the activation quantiser.
#include <algorithm>

#include "launch/format_ops.h"
#include "launch/grid.cuh"
#include "launch/staged.cuh"

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

}  // namespace gguf
