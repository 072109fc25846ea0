// What a weight format offers the launch layer: its shape, and one function an operation.
#pragma once

#include <cuda_runtime.h>

#include "api.h"
#include "device/dequantize.cuh"
#include "device/mat_vec.cuh"
#include "device/routed.cuh"
#include "formats/types.h"
#include "launch/mat_mat.h"

namespace gguf {

// Parameters have been checked; a null function is an operation that the format does not have.
struct FormatOps {
  const char* name;
  int type;
  int block_elements;
  int block_bytes;
  cudaError_t (*dequantize)(const GgufDequantizeParams& params);
  cudaError_t (*mul_mat_vec)(const MatVecArgs& args, int64_t vectors, cudaStream_t stream);
  cudaError_t (*moe_vec)(const MoeVecArgs& args, int64_t tokens, cudaStream_t stream);
  cudaError_t (*moe_gate_up)(const GateUpArgs& args, int64_t tokens, cudaStream_t stream);
  cudaError_t (*moe_down)(const DownArgs& args, int64_t tokens, cudaStream_t stream);
  MatMatLaunch* mat_mat;
};

#define GGUF_DECLARE_FORMAT(name) const FormatOps& name##_ops();
GGUF_FOR_EACH_FORMAT(GGUF_DECLARE_FORMAT)
#undef GGUF_DECLARE_FORMAT

// Runs the activation quantiser; x has elements of `dtype`.
cudaError_t launch_quantize(GgufScalar dtype, const void* x, int64_t x_stride, ActivationView out, int64_t vectors,
                            int64_t cols, cudaStream_t stream);

// The same as Q8_K has activations, in blocks of 256. interleaved: where kInterleavedMxfp4 alone.
cudaError_t launch_quantize_q8_k(GgufScalar dtype, const void* x, int64_t x_stride, ActivationView out, int64_t vectors,
                                 int64_t cols, bool interleaved, cudaStream_t stream);

}  // namespace gguf
