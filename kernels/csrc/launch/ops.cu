// The C interface: every check of a parameter, the way from a type id to its kernels, and errors as text.
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api.h"
#include "launch/checks.h"
#include "launch/format_ops.h"
#include "launch/staged.cuh"

namespace gguf {
namespace {

constexpr const FormatOps& (*kFormats[])() = {
#define GGUF_ADDRESS(name) &name##_ops,
    GGUF_FOR_EACH_FORMAT(GGUF_ADDRESS)
#undef GGUF_ADDRESS
};

// Names of operations as users know them; by GgufOp.
constexpr const char* kOpNames[] = {"ggml_dequantize",     "ggml_mul_mat_vec_a8", "ggml_moe_a8_vec",
                                    "ggml_moe_gate_up_a8", "mxfp4_moe_gate_up",   "mxfp4_moe_down",
                                    "ggml_mul_mat_a8",     "ggml_moe_a8"};
constexpr int kOps = sizeof kOpNames / sizeof *kOpNames;

}  // namespace

const char* op_name(int op) { return kOpNames[op]; }

int fail(GgufError* error, GgufCode code, const char* format, ...) {
  if (error != nullptr) {
    va_list values;
    va_start(values, format);
    vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
  }
  return code;
}

int launched(GgufError* error, const char* op, const char* what, cudaError_t status) {
  if (status == cudaSuccess) return GGUF_OK;
  return fail(error, GGUF_LAUNCH_FAILED, "%s: launching the %s failed: %s (error %d)", op, what,
              cudaGetErrorString(status), static_cast<int>(status));
}

namespace {

bool has_op(const FormatOps& format, int op) {
  switch (op) {
    case GGUF_OP_DEQUANTIZE: return format.dequantize != nullptr;
    case GGUF_OP_MUL_MAT_VEC: return format.mul_mat_vec != nullptr;
    case GGUF_OP_MOE_VEC: return format.moe_vec != nullptr;
    case GGUF_OP_MOE_GATE_UP: return format.moe_gate_up != nullptr;
    case GGUF_OP_MXFP4_GATE_UP: return format.type == MXFP4 && format.moe_gate_up != nullptr;
    case GGUF_OP_MUL_MAT:
    case GGUF_OP_MOE: return format.mat_mat != nullptr;
    case GGUF_OP_MXFP4_DOWN: return format.type == MXFP4 && format.moe_down != nullptr;
    default: return false;
  }
}

// "Q4_0 (2), Q8_0 (8)": the formats that an operation has kernels for.
void list_formats(int op, char* text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  for (const auto format_of : kFormats) {
    const FormatOps& format = format_of();
    if (!has_op(format, op) || used >= size) continue;
    used += static_cast<size_t>(
        snprintf(text + used, size - used, "%s%s (%d)", used == 0 ? "" : ", ", format.name, format.type));
  }
}

}  // namespace

const FormatOps* find_format(int op, int type, GgufError* error, int* code) {
  *code = GGUF_OK;
  for (const auto format_of : kFormats) {
    const FormatOps& format = format_of();
    if (format.type == type && has_op(format, op)) return &format;
  }
  char formats[GGUF_ERROR_BYTES * 3 / 4];
  list_formats(op, formats, sizeof formats);
  const char* name = nullptr;
  const char* role = "";
  switch (type) {
#define GGUF_NAME(type_name, id, type_role) \
  case id: name = #type_name, role = #type_role; break;
    GGUF_FOR_EACH_TYPE(GGUF_NAME)
#undef GGUF_NAME
    default: break;
  }
  if (name == nullptr) {
    *code = fail(error, GGUF_UNSUPPORTED, "%s: type %d is no GGUF type; supported: %s", kOpNames[op], type, formats);
  } else if (strcmp(role, "activation") == 0) {
    *code =
        fail(error, GGUF_UNSUPPORTED, "%s: type %s (%d) is a format of activations, never of weights; supported: %s",
             kOpNames[op], name, type, formats);
  } else if (strcmp(role, "scalar") == 0) {
    *code = fail(error, GGUF_UNSUPPORTED, "%s: type %s (%d) is not quantised; supported: %s", kOpNames[op], name, type,
                 formats);
  } else {
    *code = fail(error, GGUF_UNSUPPORTED, "%s: type %s (%d) has no kernel; supported: %s", kOpNames[op], name, type,
                 formats);
  }
  return nullptr;
}

int remainder(const void* pointer, int bytes) { return static_cast<int>(reinterpret_cast<uintptr_t>(pointer) % bytes); }

bool is_dtype(int dtype) { return dtype == GGUF_F32 || dtype == GGUF_F16 || dtype == GGUF_BF16; }

// One line a rule.
int check_product(const Product& p, GgufError* error) {
  using Long = long long;
  const auto bad = [&](const char* name, Long found, const char* wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %lld; wanted: %s", p.op, name, found, wanted);
  };
  const int64_t scratch_bytes = gguf_activation_bytes(p.vectors, p.cols);
  if (!is_dtype(p.dtype)) return bad("dtype", p.dtype, "0 (F32), 1 (F16) or 30 (BF16)");
  if (p.vectors < 0) return bad("the number of vectors", p.vectors, "0 or more");
  if (p.rows < 0) return bad("rows", p.rows, "0 or more");
  if (p.cols < 0 || p.cols > INT_MAX) return bad("cols", p.cols, "0 to 2147483647");
  if (p.cols % p.format->block_elements != 0) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: cols is %lld; wanted: a multiple of %d, the block of %s", p.op,
                Long{p.cols}, p.format->block_elements, p.format->name);
  }
  if (p.vectors == 0 || p.rows == 0) return GGUF_OK;
  if (p.out == nullptr) return bad("out", 0, "a pointer");
  if (p.cols == 0) return GGUF_OK;
  if (p.weight == nullptr && p.weight_is_read) return bad("weight", 0, "a pointer");
  if (p.x == nullptr) return bad("x", 0, "a pointer");
  if (p.scratch == nullptr) return bad("scratch", 0, "a pointer");
  if (remainder(p.weight, 2) != 0) return bad("the address of weight modulo 2", 1, "0");
  if (remainder(p.x, p.dtype == GGUF_F32 ? 4 : 2) != 0) return bad("the address of x modulo its element", 1, "0");
  if (remainder(p.scratch, 16) != 0) return bad("the address of scratch modulo 16", remainder(p.scratch, 16), "0");
  if (p.scratch_bytes < scratch_bytes) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: scratch_bytes is %lld; wanted: %lld or more", p.op,
                Long{p.scratch_bytes}, Long{scratch_bytes});
  }
  return GGUF_OK;
}

int quantize(const Product& p, ActivationView activations, cudaStream_t stream, GgufError* error) {
  const GgufScalar dtype = static_cast<GgufScalar>(p.dtype);
  return launched(error, p.op, "activation quantiser",
                  launch_quantize(dtype, p.x, p.x_stride, activations, p.vectors, p.cols, stream));
}

namespace {

// The part of the kernels' arguments that the two products have in common.
MatVecArgs product_args(const Product& p, bool quantizes, void* out, ActivationView activations) {
  MatVecArgs args{};
  args.weight = static_cast<const uint8_t*>(p.weight);
  args.x = activations;
  args.out = out;
  args.dtype = static_cast<Dtype>(p.dtype);
  args.row_bytes = p.row_bytes();
  args.rows = p.rows;
  args.cols = p.cols;
  args.vectors = p.vectors;
  args.raw = quantizes ? p.x : nullptr;
  args.raw_stride = p.x_stride;
  return args;
}

// Whether a product of few vectors does without the launch of the quantiser.
bool quantizes(int64_t vectors, int64_t rows, int64_t cols) {
#if defined(ROCMBUILD_PLATFORM_CUDA)
  return staged_quantizes(vectors, rows, cols);
#else
  (void)vectors, (void)rows, (void)cols;
  return false;
#endif
}

}  // namespace
}  // namespace gguf

using namespace gguf;

extern "C" int gguf_supports(int32_t op, int32_t type, GgufError* error) {
  if (op < 0 || op >= kOps) return fail(error, GGUF_BAD_ARGUMENT, "op is %d; wanted: 0 to %d", op, kOps - 1);
  int code;
  find_format(op, type, error, &code);
  return code;
}

extern "C" int64_t gguf_activation_bytes(int64_t vectors, int64_t cols) {
  return vectors * cols + vectors * scale_stride(cols) * static_cast<int64_t>(sizeof(ActivationScale));
}

extern "C" int gguf_block_shape(int32_t type, int32_t* elements, int32_t* bytes, GgufError* error) {
  int code;
  const FormatOps* format = find_format(GGUF_OP_DEQUANTIZE, type, error, &code);
  if (format == nullptr) return code;
  *elements = format->block_elements;
  *bytes = format->block_bytes;
  return GGUF_OK;
}

extern "C" int gguf_dequantize(const GgufDequantizeParams* params, GgufError* error) {
  const char* op = kOpNames[GGUF_OP_DEQUANTIZE];
  int code;
  const FormatOps* format = find_format(GGUF_OP_DEQUANTIZE, params->type, error, &code);
  if (format == nullptr) return code;
  if (!is_dtype(params->out_dtype)) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: out_dtype is %d; wanted: 0 (F32), 1 (F16) or 30 (BF16)", op,
                params->out_dtype);
  }
  if (params->block_begin < 0 || params->block_end < params->block_begin ||
      params->block_end > INT64_MAX / format->block_elements) {
    return fail(error, GGUF_BAD_ARGUMENT,
                "%s: block_begin is %lld and block_end %lld; wanted: 0 <= block_begin <= block_end", op,
                static_cast<long long>(params->block_begin), static_cast<long long>(params->block_end));
  }
  if (params->block_begin == params->block_end) return GGUF_OK;
  if (params->weight == nullptr || remainder(params->weight, 2) != 0) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: weight is %p; wanted: a pointer aligned to 2 bytes", op, params->weight);
  }
  if (params->out == nullptr || remainder(params->out, 16) != 0) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: out is %p; wanted: a pointer aligned to 16 bytes", op, params->out);
  }
  return launched(error, op, "dequantiser", format->dequantize(*params));
}

extern "C" int gguf_mul_mat_vec_a8(const GgufMulMatVecParams* params, GgufError* error) {
  const char* op = kOpNames[GGUF_OP_MUL_MAT_VEC];
  int code;
  const FormatOps* format = find_format(GGUF_OP_MUL_MAT_VEC, params->type, error, &code);
  if (format == nullptr) return code;
  const Product product = product_of(op, format, *params, true, params->vectors);
  code = check_product(product, error);
  if (code != GGUF_OK || params->vectors == 0 || params->rows == 0) return code;

  const cudaStream_t stream = static_cast<cudaStream_t>(params->stream);
  const ActivationView activations = activation_view(params->scratch, params->vectors, params->cols);
  const bool inside = quantizes(params->vectors, params->rows, params->cols);
  if (!inside) code = quantize(product, activations, stream, error);
  if (code != GGUF_OK) return code;
  const MatVecArgs args = product_args(product, inside, params->out, activations);
  return launched(error, op, "product", format->mul_mat_vec(args, params->vectors, stream));
}

extern "C" int gguf_moe_a8_vec(const GgufMoeVecParams* params, GgufError* error) {
  const char* op = kOpNames[GGUF_OP_MOE_VEC];
  int code;
  const FormatOps* format = find_format(GGUF_OP_MOE_VEC, params->type, error, &code);
  if (format == nullptr) return code;
  const auto bad = [&](const char* name, long long found, const char* wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %lld; wanted: %s", op, name, found, wanted);
  };
  if (params->experts < 0) return bad("experts", params->experts, "0 or more");
  if (params->top_k < 0) return bad("top_k", params->top_k, "0 or more");
  if (params->ids_bits != 32 && params->ids_bits != 64) return bad("ids_bits", params->ids_bits, "32 or 64");
  // Without a slot there is nothing to compute, whatever the number of tokens.
  const int64_t tokens = params->top_k == 0 ? 0 : params->tokens;
  const Product product = product_of(op, format, *params, params->experts > 0, tokens);
  code = check_product(product, error);
  if (code != GGUF_OK || tokens == 0 || params->rows == 0) return code;
  if (params->ids == nullptr) return bad("ids", 0, "a pointer");
  if (remainder(params->ids, params->ids_bits / 8) != 0) {
    return bad("the address of ids modulo its element", remainder(params->ids, params->ids_bits / 8), "0");
  }

  const cudaStream_t stream = static_cast<cudaStream_t>(params->stream);
  const ActivationView activations = activation_view(params->scratch, tokens, params->cols);
  code = quantize(product, activations, stream, error);
  if (code != GGUF_OK) return code;
  MoeVecArgs args{};
  args.product = product_args(product, false, params->out, activations);
  args.ids = params->ids;
  args.experts = params->experts;
  args.expert_bytes = args.product.row_bytes * params->rows;
  args.top_k = params->top_k;
  args.wide_ids = params->ids_bits == 64;
  return launched(error, op, "routed product", format->moe_vec(args, tokens, stream));
}
