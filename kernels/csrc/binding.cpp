// The operators of torch.ops.gguf_kernels, through torch's stable C ABI alone.
//
// One library a platform: the host library serves the CPU key, a device library the CUDA key (which is also torch's
// name for ROCm). Every check that needs a tensor is here; what the launch layer checks once more is there for its
// other callers.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "api.h"

#if defined(ROCMBUILD_PLATFORM_ROCM) || defined(ROCMBUILD_PLATFORM_CUDA)
#define GGUF_ON_DEVICE 1
// Weak, since a CPU build of torch has no such function and must still be able to load this library, and declared here,
// since torch's header shows it only to code that is built with CUDA's headers.
extern "C" __attribute__((weak, visibility("default"))) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
#elif !defined(ROCMBUILD_PLATFORM_HOST)
#error "one of ROCMBUILD_PLATFORM_HOST, ROCMBUILD_PLATFORM_ROCM and ROCMBUILD_PLATFORM_CUDA must be defined"
#endif

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename... Parts>
[[noreturn]] void refuse(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << op << ": ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

std::string shape_of(const Tensor& tensor) {
  std::ostringstream text;
  text << "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text << (i == 0 ? "" : ", ") << tensor.size(i);
  text << "]";
  return text.str();
}

const char* name_of(ScalarType dtype) { return torch::headeronly::toString(dtype); }

void check(int code, const GgufError& error) {
  if (code != GGUF_OK) throw std::runtime_error(error.text);
}

// Of a matrix of weights of one type.
struct Layout {
  int64_t block_elements;
  int64_t block_bytes;
  int64_t row_bytes;
};

int32_t type_id(const char* op, GgufOp which, int64_t type) {
  const int32_t id = type < INT32_MIN || type > INT32_MAX ? -1 : static_cast<int32_t>(type);
  GgufError error;
  check(gguf_supports(which, id, &error), error);
  return id;
}

Layout layout_of(const char* op, int32_t type, const char* what, int64_t cols) {
  int32_t elements = 0;
  int32_t bytes = 0;
  GgufError error;
  check(gguf_block_shape(type, &elements, &bytes, &error), error);
  if (cols < 0 || cols % elements != 0)
    refuse(op, what, " is ", cols, "; wanted: a multiple of ", elements, ", the block of this type");
  return {elements, bytes, cols / elements * bytes};
}

int32_t dtype_id(const char* op, const char* name, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float: return GGUF_F32;
    case ScalarType::Half: return GGUF_F16;
    case ScalarType::BFloat16: return GGUF_BF16;
    default: refuse(op, name, " is ", name_of(dtype), "; wanted: Float, Half or BFloat16");
  }
}

void check_weights(const char* op, const Tensor& W) {
  if (W.scalar_type() != ScalarType::Byte)
    refuse(op, "W has dtype ", name_of(W.scalar_type()), "; wanted: Byte (uint8)");
  if (!W.is_contiguous()) refuse(op, "W of shape ", shape_of(W), " is not contiguous; wanted: whole rows without gaps");
  if (W.numel() > 0 && reinterpret_cast<uintptr_t>(W.const_data_ptr()) % 2 != 0) {
    refuse(op, "W starts at an odd address; wanted: a multiple of 2 bytes (clone it)");
  }
}

void check_same_device(const char* op, const Tensor& W, const char* name, const Tensor& other) {
  if (W.is_cpu() != other.is_cpu() || W.get_device_index() != other.get_device_index()) {
    refuse(op, name, " is on ", other.is_cpu() ? "the CPU" : "GPU ",
           other.is_cpu() ? "" : std::to_string(other.get_device_index()), " and W on ",
           W.is_cpu() ? "the CPU" : "GPU ", W.is_cpu() ? "" : std::to_string(W.get_device_index()),
           "; wanted: one device");
  }
}

// X with adjacent elements in a row; rows may lie anywhere.
Tensor with_adjacent_elements(const char* op, const Tensor& X) {
  if (X.dim() != 2) refuse(op, "X has shape ", shape_of(X), "; wanted: 2 dimensions, [n, col]");
  return X.size(1) <= 1 || X.stride(1) == 1 ? X : torch::stable::contiguous(X);
}

Tensor empty(const Tensor& like, std::initializer_list<int64_t> size, std::optional<ScalarType> dtype = std::nullopt) {
  return torch::stable::new_empty(like, torch::headeronly::IntHeaderOnlyArrayRef(size.begin(), size.size()), dtype);
}

// Makes the device of a tensor the current one for its lifetime, and knows torch's current stream there.
class Place {
 public:
#if defined(GGUF_ON_DEVICE)
  Place(const char* op, const Tensor& tensor) : guard_(tensor.get_device_index()) {
    if (aoti_torch_get_current_cuda_stream == nullptr) {
      refuse(op, "this build of torch has no GPU streams (aoti_torch_get_current_cuda_stream is missing); ",
             "install a ROCm build of torch");
    }
    if (aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream_) != AOTI_TORCH_SUCCESS) {
      refuse(op, "torch gave no current stream for GPU ", tensor.get_device_index());
    }
  }
#else
  Place(const char*, const Tensor&) {}
#endif
  void* stream() const { return stream_; }

 private:
#if defined(GGUF_ON_DEVICE)
  torch::stable::accelerator::DeviceGuard guard_;
#endif
  void* stream_ = nullptr;
};

Tensor ggml_dequantize(const Tensor& W, int64_t type, int64_t m, int64_t n, std::optional<ScalarType> dtype) {
  const char* op = "ggml_dequantize";
  const int32_t id = type_id(op, GGUF_OP_DEQUANTIZE, type);
  check_weights(op, W);
  if (m < 0) refuse(op, "m is ", m, "; wanted: 0 or more");
  const Layout layout = layout_of(op, id, "n", n);
  const ScalarType result = dtype.value_or(ScalarType::Half);
  const int32_t out_dtype = dtype_id(op, "dtype", result);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(m, layout.row_bytes, &bytes) || W.numel() != bytes) {
    refuse(op, "W of shape ", shape_of(W), " holds ", W.numel(), " bytes; wanted: ", m, " rows of ", layout.row_bytes,
           " bytes for m = ", m, " and n = ", n);
  }
  const Place place(op, W);
  Tensor out = empty(W, {m, n}, result);
  GgufDequantizeParams params{};
  params.weight = W.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.block_end = bytes / layout.block_bytes;
  params.type = id;
  params.out_dtype = out_dtype;
  params.stream = place.stream();
  GgufError error;
  check(gguf_dequantize(&params, &error), error);
  return out;
}

Tensor ggml_mul_mat_vec_a8(const Tensor& W, const Tensor& X, int64_t type, int64_t row) {
  const char* op = "ggml_mul_mat_vec_a8";
  const int32_t id = type_id(op, GGUF_OP_MUL_MAT_VEC, type);
  check_weights(op, W);
  check_same_device(op, W, "X", X);
  const int32_t dtype = dtype_id(op, "the dtype of X", X.scalar_type());
  const Tensor x = with_adjacent_elements(op, X);
  const Layout layout = layout_of(op, id, "the number of columns of X", x.size(1));
  if (W.dim() != 2 || W.size(0) != row || W.size(1) != layout.row_bytes) {
    refuse(op, "W has shape ", shape_of(W), "; wanted: [", row, ", ", layout.row_bytes, "] for row = ", row,
           " and X of shape ", shape_of(X));
  }
  const Place place(op, W);
  const int64_t n = x.size(0);
  const int64_t col = x.size(1);
  Tensor out = empty(X, {n, row});
  const int64_t scratch_bytes = gguf_activation_bytes(n, col);
  const Tensor scratch = empty(X, {scratch_bytes}, ScalarType::Byte);
  GgufMulMatVecParams params{};
  params.weight = W.const_data_ptr();
  params.x = x.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.scratch = scratch.mutable_data_ptr();
  params.scratch_bytes = scratch_bytes;
  params.x_stride = x.stride(0);
  params.vectors = n;
  params.rows = row;
  params.cols = col;
  params.type = id;
  params.dtype = dtype;
  params.stream = place.stream();
  GgufError error;
  check(gguf_mul_mat_vec_a8(&params, &error), error);
  return out;
}

Tensor ggml_moe_a8_vec(const Tensor& X, const Tensor& W, const Tensor& topk_ids, int64_t top_k, int64_t type,
                       int64_t row, int64_t tokens) {
  const char* op = "ggml_moe_a8_vec";
  const int32_t id = type_id(op, GGUF_OP_MOE_VEC, type);
  check_weights(op, W);
  check_same_device(op, W, "X", X);
  check_same_device(op, W, "topk_ids", topk_ids);
  const int32_t dtype = dtype_id(op, "the dtype of X", X.scalar_type());
  const Tensor x = with_adjacent_elements(op, X);
  const Layout layout = layout_of(op, id, "the number of columns of X", x.size(1));
  if (x.size(0) != tokens)
    refuse(op, "X has shape ", shape_of(X), "; wanted: [", tokens, ", col] for tokens = ", tokens);
  if (W.dim() != 3 || W.size(1) != row || W.size(2) != layout.row_bytes) {
    refuse(op, "W has shape ", shape_of(W), "; wanted: [experts, ", row, ", ", layout.row_bytes, "] for row = ", row,
           " and X of shape ", shape_of(X));
  }
  const ScalarType ids_dtype = topk_ids.scalar_type();
  if (ids_dtype != ScalarType::Int && ids_dtype != ScalarType::Long) {
    refuse(op, "topk_ids has dtype ", name_of(ids_dtype), "; wanted: Int (int32) or Long (int64)");
  }
  int64_t slots = 0;
  if (top_k < 0 || __builtin_mul_overflow(tokens, top_k, &slots) || topk_ids.numel() != slots) {
    refuse(op, "topk_ids has shape ", shape_of(topk_ids), "; wanted: tokens * top_k elements for tokens = ", tokens,
           " and top_k = ", top_k);
  }
  const Place place(op, W);
  const Tensor ids = topk_ids.is_contiguous() ? topk_ids : torch::stable::contiguous(topk_ids);
  const int64_t col = x.size(1);
  Tensor out = empty(X, {slots, row});
  const int64_t scratch_bytes = gguf_activation_bytes(tokens, col);
  const Tensor scratch = empty(X, {scratch_bytes}, ScalarType::Byte);
  GgufMoeVecParams params{};
  params.weight = W.const_data_ptr();
  params.x = x.const_data_ptr();
  params.ids = ids.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.scratch = scratch.mutable_data_ptr();
  params.scratch_bytes = scratch_bytes;
  params.x_stride = x.stride(0);
  params.experts = W.size(0);
  params.tokens = tokens;
  params.top_k = top_k;
  params.rows = row;
  params.cols = col;
  params.ids_bits = ids_dtype == ScalarType::Long ? 64 : 32;
  params.type = id;
  params.dtype = dtype;
  params.stream = place.stream();
  GgufError error;
  check(gguf_moe_a8_vec(&params, &error), error);
  return out;
}

}  // namespace

#if defined(ROCMBUILD_DEFINE_SCHEMAS)
STABLE_TORCH_LIBRARY(gguf_kernels, m) {
  m.def("ggml_dequantize(Tensor W, int type, SymInt m, SymInt n, ScalarType? dtype=None) -> Tensor");
  m.def("ggml_mul_mat_vec_a8(Tensor W, Tensor X, int type, SymInt row) -> Tensor");
  m.def(
      "ggml_moe_a8_vec(Tensor X, Tensor W, Tensor topk_ids, int top_k, int type, SymInt row, SymInt tokens) -> Tensor");
}
#endif

#if defined(GGUF_ON_DEVICE)
STABLE_TORCH_LIBRARY_IMPL(gguf_kernels, CUDA, m) {
#else
STABLE_TORCH_LIBRARY_IMPL(gguf_kernels, CPU, m) {
#endif
  m.impl("ggml_dequantize", TORCH_BOX(&ggml_dequantize));
  m.impl("ggml_mul_mat_vec_a8", TORCH_BOX(&ggml_mul_mat_vec_a8));
  m.impl("ggml_moe_a8_vec", TORCH_BOX(&ggml_moe_a8_vec));
}
