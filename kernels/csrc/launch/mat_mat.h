// Products with many vectors: which kernel computes them, chosen on the host from what the host knows.
#pragma once

#include <cuda_runtime.h>

#include "device/mat_mat.cuh"
#include "formats/types.h"

namespace gguf {

// By GgufMatMat.
enum class MatMatKernel : int { automatic = 0, dot = 1, small = 2, medium = 3, large = 4 };

using MatMatLaunch = cudaError_t(const MatMatArgs& args, MatMatKernel which, cudaStream_t stream);

// The kernel for `slots` slots that go to `experts` experts, evenly as far as the host knows, and `rows` rows.
MatMatKernel choose_mat_mat(int64_t slots, int64_t experts, int64_t rows);

}  // namespace gguf
