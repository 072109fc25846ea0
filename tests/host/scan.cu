// A small CUDA source as people write them; it is HIPified, then compiled for the host.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define FULL_MASK 0xffffffff

namespace {

template <typename scalar_t>
__device__ __forceinline__ float to_float(scalar_t value);
template <>
__device__ __forceinline__ float to_float(float value) { return value; }
template <>
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
template <>
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename scalar_t, int kThreads>
__global__ void __launch_bounds__(kThreads) row_norms(const scalar_t* __restrict__ x, float* __restrict__ out, int columns) {
  __shared__ float parts[kThreads / 32];
  float sum = 0.f;
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    const float v = to_float(x[static_cast<int64_t>(blockIdx.x) * columns + c]);
    sum = fmaf(v, v, sum);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(FULL_MASK, sum, offset);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / 32; ++i) sum += parts[i];
    out[blockIdx.x] = sqrtf(sum);
  }
}

__global__ void prefix_sums(const int* in, int* out) {
  const int lane = threadIdx.x & 31;
  int v = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int other = __shfl_up_sync(FULL_MASK, v, offset);
    if (lane >= offset) v += other;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

template <typename scalar_t>
int launch_norms(const void* x, float* out, int rows, int columns, cudaStream_t stream) {
  row_norms<scalar_t, 128><<<rows, 128, 0, stream>>>(static_cast<const scalar_t*>(x), out, columns);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int norms(const void* x, float* out, int rows, int columns, int type) {
  if (type == 0) return launch_norms<float>(x, out, rows, columns, nullptr);
  if (type == 1) return launch_norms<__half>(x, out, rows, columns, nullptr);
  return launch_norms<__nv_bfloat16>(x, out, rows, columns, nullptr);
}

extern "C" __attribute__((visibility("default"))) int prefixes(const int* in, int* out, int n) {
  int* device_in = nullptr;
  int* device_out = nullptr;
  cudaStream_t stream;
  if (cudaStreamCreate(&stream) != cudaSuccess) return 1;
  if (cudaMalloc(&device_in, n * sizeof(int)) != cudaSuccess || cudaMalloc(&device_out, n * sizeof(int)) != cudaSuccess) return 2;
  cudaMemcpyAsync(device_in, in, n * sizeof(int), cudaMemcpyHostToDevice, stream);
  prefix_sums<<<dim3(n / 64), dim3(64), 0, stream>>>(device_in, device_out);
  const cudaError_t error = cudaGetLastError();
  cudaMemcpyAsync(out, device_out, n * sizeof(int), cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  cudaFree(device_in);
  cudaFree(device_out);
  cudaStreamDestroy(stream);
  return static_cast<int>(error);
}
