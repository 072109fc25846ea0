// llama.cpp's decode product, called as its backend does: the activations to q8_1, then mmvq. Built from the sources that
// the package freetoken carries, which have to be on the include path; this file holds only what they want from outside.
#include "mmvq.cu"
#include "quantize.cu"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

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

// Entry points of its own backend call these; the one below does not.
#define NOT_CALLED(signature) \
  signature { abort(); }
NOT_CALLED(void ggml_log_internal(ggml_log_level, const char*, ...))
NOT_CALLED(int64_t ggml_blck_size(ggml_type))
NOT_CALLED(size_t ggml_type_size(ggml_type))
NOT_CALLED(const char* ggml_type_name(ggml_type))
NOT_CALLED(size_t ggml_row_size(ggml_type, int64_t))
NOT_CALLED(size_t ggml_element_size(const ggml_tensor*))
NOT_CALLED(int64_t ggml_nelements(const ggml_tensor*))
NOT_CALLED(size_t ggml_nbytes(const ggml_tensor*))
NOT_CALLED(bool ggml_is_contiguous(const ggml_tensor*))
NOT_CALLED(bool ggml_is_contiguously_allocated(const ggml_tensor*))
NOT_CALLED(bool ggml_are_same_stride(const ggml_tensor*, const ggml_tensor*))
NOT_CALLED(bool ggml_are_same_shape(const ggml_tensor*, const ggml_tensor*))
NOT_CALLED(ggml_backend_buffer_usage ggml_backend_buffer_get_usage(ggml_backend_buffer_t))
NOT_CALLED(size_t ggml_backend_buffer_get_alloc_size(ggml_backend_buffer_t, const ggml_tensor*))
ggml_backend_cuda_context::~ggml_backend_cuda_context() {}
std::unique_ptr<ggml_cuda_pool> ggml_backend_cuda_context::new_pool_for_device(int, int) { abort(); }

// Bytes of the activations of one vector in q8_1, padded as mmvq wants them.
extern "C" int64_t bench_llama_scratch(int64_t vectors, int64_t cols) {
  return vectors * (GGML_PAD(cols, MATRIX_ROW_PADDING) / QK8_1) * static_cast<int64_t>(sizeof(block_q8_1));
}

// out [vectors, rows] = x [vectors, cols] times the transpose of the weights, x and out bfloat16, 1 to 8 vectors.
extern "C" int bench_llama(int type, int block, const void* weight, const void* x, void* out, void* scratch,
                           int64_t vectors, int64_t rows, int64_t cols, void* stream_of_torch) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_torch);
  const int64_t padded = GGML_PAD(cols, MATRIX_ROW_PADDING);
  const int64_t y_stride = padded / QK8_1;
  quantize_row_q8_1_cuda(static_cast<const nv_bfloat16*>(x), nullptr, scratch, static_cast<ggml_type>(type), cols, cols,
                         cols * vectors, cols * vectors, padded, vectors, 1, 1, stream);
  const int row_blocks = static_cast<int>(cols / block);
  ggml_cuda_mm_fusion_args_device fusion{};
  mul_mat_vec_q_switch_type(weight, static_cast<ggml_type>(type), scratch, nullptr, fusion,
                            static_cast<nv_bfloat16*>(out), static_cast<int>(cols), static_cast<int>(rows),
                            static_cast<int>(vectors), row_blocks, static_cast<int>(y_stride), static_cast<int>(rows), 1,
                            1, 1, static_cast<int>(row_blocks * rows), static_cast<int>(y_stride * vectors),
                            static_cast<int>(rows * vectors), 1, 1, static_cast<int>(row_blocks * rows),
                            static_cast<int>(y_stride * vectors), static_cast<int>(rows * vectors), 0, stream);
  return static_cast<int>(cudaGetLastError());
}
