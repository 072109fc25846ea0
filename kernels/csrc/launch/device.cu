// Whether the current device can run what this library holds.
#include <cuda_runtime.h>
#include <stdio.h>

#include "api.h"

namespace gguf {
namespace {

// Every file is compiled for the same cards, so this kernel is there where all are.
__global__ void present() {}

}  // namespace
}  // namespace gguf

extern "C" int gguf_device_ready(GgufError* error) {
#if defined(ROCMBUILD_PLATFORM_HOST)
  (void)error;
  return GGUF_OK;
#else
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(gguf::present));
  if (status == cudaSuccess) return GGUF_OK;
  (void)cudaGetLastError();  // it is answered here, and no later launch shall find it
  if (error != nullptr) {
    snprintf(error->text, sizeof error->text, "%s (error %d)", cudaGetErrorString(status), static_cast<int>(status));
  }
  return GGUF_LAUNCH_FAILED;
#endif
}
