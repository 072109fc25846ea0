// What llama.cpp's sources want from the rest of llama.cpp, for one type. Errors are thrown, and end in guarded().
//
// BENCH_TYPE: the ggml_type. BENCH_BLOCK: elements of its block. BENCH_BYTES: bytes of its block.
#pragma once

#include "common.cuh"

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

void ggml_abort(const char* file, int line, const char* format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

void ggml_cuda_error(const char* statement, const char*, const char* file, int line, const char* text) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + statement + ": " + text);
}

void ggml_log_internal(ggml_log_level, const char*, ...) {}

int64_t ggml_blck_size(ggml_type type) { return type == BENCH_TYPE ? BENCH_BLOCK : 1; }

size_t ggml_type_size(ggml_type type) {
  if (type == BENCH_TYPE) return BENCH_BYTES;
  return type == GGML_TYPE_BF16 || type == GGML_TYPE_F16 ? 2 : 4;
}

size_t ggml_element_size(const ggml_tensor* tensor) { return ggml_type_size(tensor->type); }

bool ggml_is_quantized(ggml_type type) { return type == BENCH_TYPE; }

int ggml_cuda_get_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

void ggml_cuda_set_device(int device) { cudaSetDevice(device); }

const ggml_cuda_device_info& ggml_cuda_info() {
  static const ggml_cuda_device_info info = [] {
    ggml_cuda_device_info found = {};
    cudaGetDeviceCount(&found.device_count);
    for (int id = 0; id < found.device_count; ++id) {
      cudaDeviceProp properties;
      cudaGetDeviceProperties(&properties, id);
      found.devices[id].cc = 100 * properties.major + 10 * properties.minor;
      found.devices[id].nsm = properties.multiProcessorCount;
      found.devices[id].smpb = properties.sharedMemPerBlock;
      found.devices[id].smpbo = properties.sharedMemPerBlockOptin;
      found.devices[id].warp_size = properties.warpSize;
    }
    return found;
  }();
  return info;
}

namespace {

std::string failure;

// A cudaError_t, or -1 where the sources refused: bench_llama_error() says why.
template <typename Call>
int guarded(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    failure = error.what();
    return -1;
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

extern "C" const char* bench_llama_error() { return failure.c_str(); }
