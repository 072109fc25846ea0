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
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>

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

Tensor packed(const Tensor& any) { return any.is_contiguous() ? any : torch::stable::contiguous(any); }

int32_t ids_bits_of(const char* op, const Tensor& ids) {
  const ScalarType dtype = ids.scalar_type();
  if (dtype == ScalarType::Int) return 32;
  if (dtype == ScalarType::Long) return 64;
  refuse(op, "topk_ids has dtype ", name_of(dtype), "; wanted: Int (int32) or Long (int64)");
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

// X times the transpose of one matrix, by any kernels of the C interface.
template <typename Params>
Tensor mul_mat(const char* op, GgufOp which, int (*run)(const Params*, GgufError*), const Tensor& W, const Tensor& X,
               int64_t type, int64_t row) {
  const int32_t id = type_id(op, which, type);
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
  Params params{};
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
  check(run(&params, &error), error);
  return out;
}

Tensor ggml_mul_mat_vec_a8(const Tensor& W, const Tensor& X, int64_t type, int64_t row) {
  return mul_mat("ggml_mul_mat_vec_a8", GGUF_OP_MUL_MAT_VEC, gguf_mul_mat_vec_a8, W, X, type, row);
}

Tensor ggml_mul_mat_a8(const Tensor& W, const Tensor& X, int64_t type, int64_t row) {
  return mul_mat("ggml_mul_mat_a8", GGUF_OP_MUL_MAT, gguf_mul_mat_a8, W, X, type, row);
}

// What routed products ask of X, whose rows are x, and of the experts' weights.
void check_routed(const char* op, const Tensor& X, const Tensor& x, const Tensor& W, const Layout& layout, int64_t row,
                  int64_t tokens) {
  if (x.size(0) != tokens)
    refuse(op, "X has shape ", shape_of(X), "; wanted: [", tokens, ", col] for tokens = ", tokens);
  if (W.dim() != 3 || W.size(1) != row || W.size(2) != layout.row_bytes) {
    refuse(op, "W has shape ", shape_of(W), "; wanted: [experts, ", row, ", ", layout.row_bytes, "] for row = ", row,
           " and X of shape ", shape_of(X));
  }
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
  check_routed(op, X, x, W, layout, row, tokens);
  const int32_t ids_bits = ids_bits_of(op, topk_ids);
  int64_t slots = 0;
  if (top_k < 0 || __builtin_mul_overflow(tokens, top_k, &slots) || topk_ids.numel() != slots) {
    refuse(op, "topk_ids has shape ", shape_of(topk_ids), "; wanted: tokens * top_k elements for tokens = ", tokens,
           " and top_k = ", top_k);
  }
  const Place place(op, W);
  const Tensor ids = packed(topk_ids);
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
  params.ids_bits = ids_bits;
  params.type = id;
  params.dtype = dtype;
  params.stream = place.stream();
  GgufError error;
  check(gguf_moe_a8_vec(&params, &error), error);
  return out;
}

// Experts' weights in rows without gaps; experts and rows may lie apart, as the halves of one tensor do.
void check_experts(const char* op, const char* name, const Tensor& W, int64_t experts, int64_t rows,
                   int64_t row_bytes) {
  if (W.scalar_type() != ScalarType::Byte) {
    refuse(op, name, " has dtype ", name_of(W.scalar_type()), "; wanted: Byte (uint8)");
  }
  if (W.dim() != 3 || W.size(0) != experts || W.size(1) != rows || W.size(2) != row_bytes) {
    refuse(op, name, " has shape ", shape_of(W), "; wanted: [", experts, ", ", rows, ", ", row_bytes, "]");
  }
  if (W.size(2) > 1 && W.stride(2) != 1) {
    refuse(op, name, " has stride ", W.stride(2), " within a row; wanted: 1, rows without gaps");
  }
}

// Bytes from one expert, or row, to the next; for a single one any that the launch layer takes.
int64_t stride_of(const Tensor& W, int dim) {
  return W.size(dim) > 1 ? W.stride(dim) : W.size(2) * (dim == 0 ? W.size(1) : 1);
}

int32_t variant_of(const char* op, int64_t variant) {
  if (variant < GGUF_ROUTED_AUTO || variant > GGUF_ROUTED_DOT_TILES) {
    refuse(op, "variant is ", variant, "; wanted: 0 (chosen by the number of tokens), 1 (direct), 2 (tiles) or 3 ",
           "(tiles without matrix cores)");
  }
  return static_cast<int32_t>(variant);
}

Tensor gate_up(const char* op, GgufOp which, const Tensor& X, const Tensor& W_gate, const Tensor& W_up,
               const Tensor& topk_ids, int64_t top_k, int64_t type, double alpha, std::optional<double> limit,
               double up_offset, std::optional<ScalarType> dtype, int64_t variant) {
  const int32_t id = type_id(op, which, type);
  check_same_device(op, W_gate, "X", X);
  check_same_device(op, W_gate, "W_up", W_up);
  check_same_device(op, W_gate, "topk_ids", topk_ids);
  const int32_t x_dtype = dtype_id(op, "the dtype of X", X.scalar_type());
  const ScalarType out_type = dtype.value_or(X.scalar_type());
  const int32_t out_dtype = dtype_id(op, "dtype", out_type);
  const Tensor x = with_adjacent_elements(op, X);
  const Layout layout = layout_of(op, id, "the number of columns of X", x.size(1));
  if (W_gate.dim() != 3) refuse(op, "W_gate has shape ", shape_of(W_gate), "; wanted: [experts, row, bytes of a row]");
  check_experts(op, "W_gate", W_gate, W_gate.size(0), W_gate.size(1), layout.row_bytes);
  check_experts(op, "W_up", W_up, W_gate.size(0), W_gate.size(1), layout.row_bytes);
  const int64_t tokens = x.size(0);
  int64_t slots = 0;
  if (top_k < 0 || __builtin_mul_overflow(tokens, top_k, &slots) || topk_ids.numel() != slots) {
    refuse(op, "topk_ids has shape ", shape_of(topk_ids), "; wanted: tokens * top_k elements for X of shape ",
           shape_of(X), " and top_k = ", top_k);
  }
  const Place place(op, W_gate);
  const Tensor ids = packed(topk_ids);
  Tensor out = empty(X, {slots, W_gate.size(1)}, out_type);
  GgufMoeGateUpParams params{};
  params.gate = W_gate.const_data_ptr();
  params.up = W_up.const_data_ptr();
  params.x = x.const_data_ptr();
  params.ids = ids.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.x_stride = x.stride(0);
  params.gate_expert_stride = stride_of(W_gate, 0);
  params.gate_row_stride = stride_of(W_gate, 1);
  params.up_expert_stride = stride_of(W_up, 0);
  params.up_row_stride = stride_of(W_up, 1);
  params.experts = W_gate.size(0);
  params.tokens = tokens;
  params.top_k = top_k;
  params.rows = W_gate.size(1);
  params.cols = x.size(1);
  params.alpha = static_cast<float>(alpha);
  params.limit = limit.has_value() ? static_cast<float>(*limit) : std::numeric_limits<float>::infinity();
  params.up_offset = static_cast<float>(up_offset);
  params.ids_bits = ids_bits_of(op, ids);
  params.type = id;
  params.activations = which == GGUF_OP_MXFP4_GATE_UP ? GGUF_ACTIVATIONS_Q8_K : GGUF_ACTIVATIONS_32;
  params.dtype = x_dtype;
  params.out_dtype = out_dtype;
  params.variant = variant_of(op, variant);
  params.stream = place.stream();
  params.scratch_bytes = gguf_moe_gate_up_bytes(&params);
  const Tensor scratch = empty(X, {params.scratch_bytes}, ScalarType::Byte);
  params.scratch = scratch.mutable_data_ptr();
  GgufError error;
  check(gguf_moe_gate_up(&params, &error), error);
  return out;
}

Tensor ggml_moe_gate_up_a8(const Tensor& X, const Tensor& W_gate, const Tensor& W_up, const Tensor& topk_ids,
                           int64_t top_k, int64_t type, int64_t row, int64_t tokens, double alpha,
                           std::optional<double> limit, double up_offset) {
  const char* op = "ggml_moe_gate_up_a8";
  if (X.dim() != 2 || X.size(0) != tokens)
    refuse(op, "X has shape ", shape_of(X), "; wanted: [", tokens, ", col] for tokens = ", tokens);
  if (W_gate.dim() != 3 || W_gate.size(1) != row) {
    refuse(op, "W_gate has shape ", shape_of(W_gate), "; wanted: [experts, ", row, ", bytes of a row] for row = ", row);
  }
  return gate_up(op, GGUF_OP_MOE_GATE_UP, X, W_gate, W_up, topk_ids, top_k, type, alpha, limit, up_offset, std::nullopt,
                 GGUF_ROUTED_AUTO);
}

constexpr int64_t kMXFP4 = 39;

Tensor mxfp4_moe_gate_up(const Tensor& X, const Tensor& W_gate, const Tensor& W_up, const Tensor& topk_ids,
                         double alpha, std::optional<double> limit, double up_offset, std::optional<ScalarType> dtype,
                         int64_t variant) {
  const char* op = "mxfp4_moe_gate_up";
  if (topk_ids.dim() != 2) refuse(op, "topk_ids has shape ", shape_of(topk_ids), "; wanted: [tokens, top_k]");
  return gate_up(op, GGUF_OP_MXFP4_GATE_UP, X, W_gate, W_up, topk_ids, topk_ids.size(1), kMXFP4, alpha, limit,
                 up_offset, dtype, variant);
}

Tensor mxfp4_moe_down(const Tensor& H, const Tensor& W, const Tensor& topk_ids, const Tensor& topk_weights,
                      std::optional<ScalarType> dtype, int64_t variant) {
  const char* op = "mxfp4_moe_down";
  const int32_t id = type_id(op, GGUF_OP_MXFP4_DOWN, kMXFP4);
  check_same_device(op, W, "H", H);
  check_same_device(op, W, "topk_ids", topk_ids);
  check_same_device(op, W, "topk_weights", topk_weights);
  const int32_t h_dtype = dtype_id(op, "the dtype of H", H.scalar_type());
  const ScalarType out_type = dtype.value_or(H.scalar_type());
  const int32_t out_dtype = dtype_id(op, "dtype", out_type);
  if (H.dim() != 2) refuse(op, "H has shape ", shape_of(H), "; wanted: 2 dimensions, [tokens * top_k, col]");
  const Tensor h = with_adjacent_elements(op, H);
  const Layout layout = layout_of(op, id, "the number of columns of H", h.size(1));
  if (W.dim() != 3) refuse(op, "W has shape ", shape_of(W), "; wanted: [experts, row, bytes of a row]");
  check_experts(op, "W", W, W.size(0), W.size(1), layout.row_bytes);
  if (topk_ids.dim() != 2 || topk_ids.numel() != h.size(0)) {
    refuse(op, "topk_ids has shape ", shape_of(topk_ids), "; wanted: [tokens, top_k] for H of shape ", shape_of(H));
  }
  if (topk_weights.dim() != 2 || topk_weights.size(0) != topk_ids.size(0) ||
      topk_weights.size(1) != topk_ids.size(1)) {
    refuse(op, "topk_weights has shape ", shape_of(topk_weights), "; wanted: that of topk_ids, ", shape_of(topk_ids));
  }
  const int32_t weights_dtype = dtype_id(op, "the dtype of topk_weights", topk_weights.scalar_type());
  const Place place(op, W);
  const Tensor ids = packed(topk_ids);
  const Tensor weights = packed(topk_weights);
  Tensor out = empty(H, {ids.size(0), W.size(1)}, out_type);
  GgufMoeDownParams params{};
  params.down = W.const_data_ptr();
  params.x = h.const_data_ptr();
  params.ids = ids.const_data_ptr();
  params.weights = weights.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.x_stride = h.stride(0);
  params.down_expert_stride = stride_of(W, 0);
  params.down_row_stride = stride_of(W, 1);
  params.experts = W.size(0);
  params.tokens = ids.size(0);
  params.top_k = ids.size(1);
  params.rows = W.size(1);
  params.cols = h.size(1);
  params.ids_bits = ids_bits_of(op, ids);
  params.type = id;
  params.weights_dtype = weights_dtype;
  params.dtype = h_dtype;
  params.out_dtype = out_dtype;
  params.variant = variant_of(op, variant);
  params.stream = place.stream();
  params.scratch_bytes = gguf_moe_down_bytes(&params);
  const Tensor scratch = empty(H, {params.scratch_bytes}, ScalarType::Byte);
  params.scratch = scratch.mutable_data_ptr();
  GgufError error;
  check(gguf_moe_down(&params, &error), error);
  return out;
}

// A list of int32 that a grouped product reads, contiguous.
Tensor routing_list(const char* op, const Tensor& W, const char* name, const Tensor& list) {
  check_same_device(op, W, name, list);
  if (list.scalar_type() != ScalarType::Int) {
    refuse(op, name, " has dtype ", name_of(list.scalar_type()), "; wanted: Int (int32)");
  }
  return packed(list);
}

Tensor ggml_moe_a8(const Tensor& X, const Tensor& W, const Tensor& sorted_token_ids, const Tensor& expert_ids,
                   const Tensor& num_tokens_post_padded, int64_t type, int64_t row, int64_t top_k, int64_t tokens) {
  const char* op = "ggml_moe_a8";
  const int32_t id = type_id(op, GGUF_OP_MOE, type);
  check_weights(op, W);
  check_same_device(op, W, "X", X);
  const int32_t dtype = dtype_id(op, "the dtype of X", X.scalar_type());
  const Tensor x = with_adjacent_elements(op, X);
  const Layout layout = layout_of(op, id, "the number of columns of X", x.size(1));
  check_routed(op, X, x, W, layout, row, tokens);
  int64_t slots = 0;
  if (top_k < 0 || __builtin_mul_overflow(tokens, top_k, &slots)) {
    refuse(op, "top_k is ", top_k, " and tokens ", tokens, "; wanted: 0 or more");
  }
  const Tensor sorted = routing_list(op, W, "sorted_token_ids", sorted_token_ids);
  const Tensor experts = routing_list(op, W, "expert_ids", expert_ids);
  const Tensor padded = routing_list(op, W, "num_tokens_post_padded", num_tokens_post_padded);
  if (padded.numel() != 1) {
    refuse(op, "num_tokens_post_padded has shape ", shape_of(num_tokens_post_padded), "; wanted: one element");
  }
  const Place place(op, W);
  Tensor out = empty(X, {slots, row});
  GgufMoeParams params{};
  params.scratch_bytes = gguf_activation_bytes(tokens, x.size(1));
  const Tensor scratch = empty(X, {params.scratch_bytes}, ScalarType::Byte);
  params.weight = W.const_data_ptr();
  params.x = x.const_data_ptr();
  params.sorted_ids = sorted.const_data_ptr();
  params.expert_ids = experts.const_data_ptr();
  params.padded = padded.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.scratch = scratch.mutable_data_ptr();
  params.x_stride = x.stride(0);
  params.sorted_count = sorted.numel();
  params.expert_count = experts.numel();
  params.experts = W.size(0);
  params.tokens = tokens;
  params.top_k = top_k;
  params.rows = row;
  params.cols = x.size(1);
  params.type = id;
  params.dtype = dtype;
  params.stream = place.stream();
  GgufError error;
  check(gguf_moe_a8(&params, &error), error);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> moe_align_block_size(const Tensor& topk_ids, int64_t block_size,
                                                        int64_t num_experts) {
  const char* op = "moe_align_block_size";
  const int32_t ids_bits = ids_bits_of(op, topk_ids);
  if (block_size < 1) refuse(op, "block_size is ", block_size, "; wanted: 1 to 65536");
  if (num_experts < 0) refuse(op, "num_experts is ", num_experts, "; wanted: 0 to 8192");
  const Place place(op, topk_ids);
  const Tensor ids = packed(topk_ids);
  GgufMoeAlignParams params{};
  params.slots = ids.numel();
  params.experts = num_experts;
  params.block = block_size;
  params.sorted_count = gguf_align_count(params.slots, block_size, num_experts);
  params.expert_count = (params.sorted_count + block_size - 1) / block_size;
  Tensor sorted = empty(ids, {params.sorted_count}, ScalarType::Int);
  Tensor experts = empty(ids, {params.expert_count}, ScalarType::Int);
  Tensor padded = empty(ids, {1}, ScalarType::Int);
  params.ids = ids.const_data_ptr();
  params.sorted_ids = sorted.mutable_data_ptr();
  params.expert_ids = experts.mutable_data_ptr();
  params.padded = padded.mutable_data_ptr();
  params.ids_bits = ids_bits;
  params.stream = place.stream();
  GgufError error;
  check(gguf_moe_align(&params, &error), error);
  return {sorted, experts, padded};
}

Tensor quantize_as(const char* op, int32_t type, int64_t elements, int64_t bytes, const Tensor& X) {
  const int32_t dtype = dtype_id(op, "the dtype of X", X.scalar_type());
  const Tensor x = with_adjacent_elements(op, X);
  const int64_t col = x.size(1);
  if (col % elements != 0) refuse(op, "X has ", col, " columns; wanted: a multiple of ", elements);
  const Place place(op, X);
  Tensor out = empty(X, {x.size(0), col / elements * bytes}, ScalarType::Byte);
  GgufQuantizeParams params{};
  params.scratch_bytes = gguf_activation_bytes(x.size(0), col);
  const Tensor scratch = empty(X, {params.scratch_bytes}, ScalarType::Byte);
  params.x = x.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.scratch = scratch.mutable_data_ptr();
  params.x_stride = x.stride(0);
  params.vectors = x.size(0);
  params.cols = col;
  params.type = type;
  params.dtype = dtype;
  params.stream = place.stream();
  GgufError error;
  check(gguf_quantize(&params, &error), error);
  return out;
}

Tensor ggml_quantize_q8_0(const Tensor& X) { return quantize_as("ggml_quantize_q8_0", 8, 32, 34, X); }

Tensor ggml_quantize_q8_k(const Tensor& X) { return quantize_as("ggml_quantize_q8_k", 15, 256, 292, X); }

}  // namespace

#if defined(ROCMBUILD_DEFINE_SCHEMAS)
STABLE_TORCH_LIBRARY(gguf_kernels, m) {
  m.def("ggml_dequantize(Tensor W, int type, SymInt m, SymInt n, ScalarType? dtype=None) -> Tensor");
  m.def("ggml_mul_mat_vec_a8(Tensor W, Tensor X, int type, SymInt row) -> Tensor");
  m.def(
      "ggml_moe_a8_vec(Tensor X, Tensor W, Tensor topk_ids, int top_k, int type, SymInt row, SymInt tokens) -> Tensor");
  m.def(
      "ggml_moe_gate_up_a8(Tensor X, Tensor W_gate, Tensor W_up, Tensor topk_ids, int top_k, int type, SymInt row, "
      "SymInt tokens, float alpha=1.0, float? limit=None, float up_offset=0.0) -> Tensor");
  m.def(
      "mxfp4_moe_gate_up(Tensor X, Tensor W_gate, Tensor W_up, Tensor topk_ids, float alpha=1.0, float? limit=None, "
      "float up_offset=0.0, ScalarType? dtype=None, int variant=0) -> Tensor");
  m.def(
      "mxfp4_moe_down(Tensor H, Tensor W, Tensor topk_ids, Tensor topk_weights, ScalarType? dtype=None, int variant=0) "
      "-> Tensor");
  m.def("ggml_mul_mat_a8(Tensor W, Tensor X, int type, SymInt row) -> Tensor");
  m.def(
      "ggml_moe_a8(Tensor X, Tensor W, Tensor sorted_token_ids, Tensor expert_ids, Tensor num_tokens_post_padded, "
      "int type, SymInt row, int top_k, SymInt tokens) -> Tensor");
  m.def("moe_align_block_size(Tensor topk_ids, int block_size, int num_experts) -> (Tensor, Tensor, Tensor)");
  m.def("ggml_quantize_q8_0(Tensor X) -> Tensor");
  m.def("ggml_quantize_q8_k(Tensor X) -> Tensor");
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
  m.impl("ggml_moe_gate_up_a8", TORCH_BOX(&ggml_moe_gate_up_a8));
  m.impl("mxfp4_moe_gate_up", TORCH_BOX(&mxfp4_moe_gate_up));
  m.impl("mxfp4_moe_down", TORCH_BOX(&mxfp4_moe_down));
  m.impl("ggml_mul_mat_a8", TORCH_BOX(&ggml_mul_mat_a8));
  m.impl("ggml_moe_a8", TORCH_BOX(&ggml_moe_a8));
  m.impl("moe_align_block_size", TORCH_BOX(&moe_align_block_size));
  m.impl("ggml_quantize_q8_0", TORCH_BOX(&ggml_quantize_q8_0));
  m.impl("ggml_quantize_q8_k", TORCH_BOX(&ggml_quantize_q8_k));
}
