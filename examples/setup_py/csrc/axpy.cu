#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>
#include <torch/csrc/utils/pybind.h>

__global__ void axpy_kernel(float* y, const float* x, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}

// y += a * x for n floats at two addresses of the current card, on torch's current stream.
static void axpy(std::uintptr_t y, std::uintptr_t x, float a, int n) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  axpy_kernel<<<(n + 255) / 256, 256, 0, stream>>>(reinterpret_cast<float*>(y), reinterpret_cast<const float*>(x), a, n);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("axpy", &axpy); }
