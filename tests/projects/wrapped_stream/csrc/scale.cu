#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>
#include <torch/csrc/utils/pybind.h>

__global__ void scale_kernel(float* y, const float* x, float a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = a * x[i] + __shfl_xor_sync(0xffffffffffffffffull, x[i], 1);
    }
}

void offset_launch(float* y, int n);

static void scale(std::uintptr_t y, std::uintptr_t x, float a, int n) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    scale_kernel<<<(n + 255) / 256, 256, 0, stream>>>(
        reinterpret_cast<float*>(y), reinterpret_cast<const float*>(x), a, n);
    offset_launch(reinterpret_cast<float*>(y), n);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("scale", &scale);
}
