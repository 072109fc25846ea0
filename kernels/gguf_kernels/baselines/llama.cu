// llama.cpp's decode product of one type, called as its backend does: the activations to q8_1, then mmvq.
//
// Built from the sources that the package freetoken carries, which have to be on the include path; mmvq_kernels.cuh is
// their mmvq.cu up to its first entry point (bench.py writes it), since the entry points would triple what is compiled.
// BENCH_TYPE: the ggml_type. BENCH_BLOCK: elements of its block.
#include "mmvq_kernels.cuh"
#include "quantize.cu"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

// What those sources want from the rest of llama.cpp.

void ggml_abort(const char* file, int line, const char* format, ...) {
  fprintf(stderr, "%s:%d: ", file, line);
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  va_end(values);
  abort();
}

void ggml_cuda_error(const char* statement, const char*, const char* file, int line, const char* text) {
  ggml_abort(file, line, "%s: %s\n", statement, text);
  abort();
}

int64_t ggml_blck_size(ggml_type) { return BENCH_BLOCK; }

bool ggml_is_quantized(ggml_type) { return true; }

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

// Bytes of the activations of some vectors in q8_1, padded as mmvq wants them.
extern "C" int64_t bench_llama_scratch(int64_t vectors, int64_t cols) {
  return vectors * (GGML_PAD(cols, MATRIX_ROW_PADDING) / QK8_1) * static_cast<int64_t>(sizeof(block_q8_1));
}

// out [vectors, rows] = x [vectors, cols] times the transpose of the weights, x and out bfloat16, 1 to 8 vectors.
extern "C" int bench_llama(const void* weight, const void* x, void* out, void* scratch, int64_t vectors, int64_t rows,
                           int64_t cols, void* stream_of_torch) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_torch);
  const int64_t padded = GGML_PAD(cols, MATRIX_ROW_PADDING);
  const int y_stride = static_cast<int>(padded / QK8_1);
  const int n = static_cast<int>(vectors);
  const int w_stride = static_cast<int>(cols / BENCH_BLOCK);
  quantize_row_q8_1_cuda(static_cast<const nv_bfloat16*>(x), nullptr, scratch, BENCH_TYPE, cols, cols, cols * vectors,
                         cols * vectors, padded, vectors, 1, 1, stream);
  const ggml_cuda_mm_fusion_args_device fusion{};
  mul_mat_vec_q_switch_ncols_dst<BENCH_TYPE>(
      weight, scratch, nullptr, fusion, static_cast<nv_bfloat16*>(out), static_cast<int>(cols), static_cast<int>(rows),
      n, w_stride, y_stride, static_cast<int>(rows), 1, 1, 1, static_cast<int>(w_stride * rows), y_stride * n,
      static_cast<int>(rows) * n, 1, 1, static_cast<int>(w_stride * rows), y_stride * n, static_cast<int>(rows) * n, 0,
      stream);
  return static_cast<int>(cudaGetLastError());
}
