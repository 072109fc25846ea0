// The C interface of products with many vectors, of the sorting of slots by expert, and of the activation quantisers.
#include <limits.h>

#include <algorithm>

#include "api.h"
#include "device/align.cuh"
#include "launch/checks.h"
#include "launch/format_ops.h"
#include "launch/grid.cuh"
#include "launch/mat_mat.h"

namespace gguf {

// Measured on an H200: a larger rectangle decodes weights less often, but wants to be full, and there have to be enough of
// them: a multiprocessor works on two at a time.
MatMatKernel choose_mat_mat(int64_t slots, int64_t experts, int64_t rows) {
  constexpr int64_t kManyLarge = 200;
  constexpr int64_t kManyMedium = 80;
  const int64_t mean = slots / std::max<int64_t>(experts, 1);  // slots of an expert
  const auto rectangles = [&](int64_t high, int64_t wide) {
    return ceil_div(rows, high) * ceil_div(mean, wide) * std::max<int64_t>(experts, 1);
  };
  if (mean > 64 && rectangles(LargeShape::kRows, LargeShape::kTokens) >= kManyLarge) return MatMatKernel::large;
  if (mean > 24 && rectangles(MediumShape::kRows, MediumShape::kTokens) >= kManyMedium) return MatMatKernel::medium;
  return MatMatKernel::small;
}

namespace {

using Long = long long;

// check_product, and the choice of a kernel.
int check(const Product& p, int kernel, GgufError* error) {
  const int code = check_product(p, error);
  if (code != GGUF_OK || (kernel >= 0 && kernel <= GGUF_MAT_MAT_LARGE)) return code;
  return fail(error, GGUF_BAD_ARGUMENT, "%s: kernel is %d; wanted: 0 to 4", p.op, kernel);
}

MatMatArgs args_of(const Product& p, void* out, ActivationView x) {
  MatMatArgs args{};
  args.weight = static_cast<const uint8_t*>(p.weight);
  args.x = x;
  args.out = out;
  args.dtype = static_cast<Dtype>(p.dtype);
  args.row_bytes = p.row_bytes();
  args.rows = p.rows;
  args.cols = p.cols;
  args.experts = 1;
  args.expert_bytes = args.row_bytes * p.rows;
  args.top_k = 1;
  return args;
}

// The bytes of a block of quantised activations, two at a time.
struct PackArgs {
  ActivationView x;
  uint16_t* out;
  int64_t cols;
  int64_t pairs;  // of bytes, in the whole
  int64_t first;
};

constexpr int kPackThreads = 256;

static __device__ __forceinline__ uint16_t pair_of(const int8_t* q, int64_t at) {
  return static_cast<uint16_t>(static_cast<uint8_t>(q[at]) | static_cast<uint8_t>(q[at + 1]) << 8);
}

// A block of 32: half d, 32 q.
static __global__ void __launch_bounds__(kPackThreads) pack_q8_0(PackArgs args) {
  const int64_t at = (args.first + blockIdx.x) * kPackThreads + threadIdx.x;
  if (at >= args.pairs) return;
  const int64_t blocks = args.cols / 32;
  const int64_t block = at / 17;
  const int within = static_cast<int>(at % 17);
  const int64_t vector = block / blocks;
  if (within == 0) {
    const __half d = __float2half_rn(args.x.scale[vector * scale_stride(args.cols) + block % blocks].d);
    uint16_t bits;  // nvcc 13.0 stores a half that is copied to memory byte by byte, and the low one wrong
    memcpy(&bits, &d, 2);
    args.out[at] = bits;
  } else {
    args.out[at] = pair_of(args.x.q, block * 32 + 2 * (within - 1));
  }
}

// A block of 256: float d, 256 q, 16 sums of 16 q.
static __global__ void __launch_bounds__(kPackThreads) pack_q8_k(PackArgs args) {
  const int64_t at = (args.first + blockIdx.x) * kPackThreads + threadIdx.x;
  if (at >= args.pairs) return;
  const int64_t blocks = args.cols / 256;
  const int64_t block = at / 146;
  const int within = static_cast<int>(at % 146);
  const ActivationScale* scale = args.x.scale + block / blocks * scale_stride(args.cols) + block % blocks * 8;
  if (within < 2) {
    uint32_t bits;
    memcpy(&bits, &scale[0].d, 4);
    args.out[at] = static_cast<uint16_t>(bits >> (16 * within));
  } else if (within < 130) {
    args.out[at] = pair_of(args.x.q, block * 256 + 2 * (within - 2));
  } else {
    const ActivationScale& own = scale[(within - 130) / 2];
    args.out[at] = static_cast<uint16_t>(within % 2 == 0 ? own.sum - own.high : own.high);
  }
}

}  // namespace
}  // namespace gguf

using namespace gguf;

extern "C" int gguf_mul_mat_a8(const GgufMulMatParams* params, GgufError* error) {
  const char* op = op_name(GGUF_OP_MUL_MAT);
  int code;
  const FormatOps* format = find_format(GGUF_OP_MUL_MAT, params->type, error, &code);
  if (format == nullptr) return code;
  const Product product = product_of(op, format, *params, true, params->vectors);
  code = check(product, params->kernel, error);
  if (code != GGUF_OK || params->vectors == 0 || params->rows == 0) return code;
  const cudaStream_t stream = static_cast<cudaStream_t>(params->stream);
  const ActivationView x = activation_view(params->scratch, params->vectors, params->cols);
  code = quantize(product, x, stream, error);
  if (code != GGUF_OK) return code;
  MatMatArgs args = args_of(product, params->out, x);
  args.weight_bytes = args.expert_bytes;
  args.slots = params->vectors;
  MatMatKernel which = static_cast<MatMatKernel>(params->kernel);
  if (which == MatMatKernel::automatic) which = choose_mat_mat(args.slots, 1, args.rows);
  return launched(error, op, "product", format->mat_mat(args, which, stream));
}

extern "C" int gguf_moe_a8(const GgufMoeParams* params, GgufError* error) {
  const char* op = op_name(GGUF_OP_MOE);
  int code;
  const FormatOps* format = find_format(GGUF_OP_MOE, params->type, error, &code);
  if (format == nullptr) return code;
  const auto bad = [&](const char* name, Long found, const char* wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %lld; wanted: %s", op, name, found, wanted);
  };
  if (params->experts < 0) return bad("experts", params->experts, "0 or more");
  if (params->top_k < 0) return bad("top_k", params->top_k, "0 or more");
  if (params->sorted_count < 0) return bad("sorted_count", params->sorted_count, "0 or more");
  if (params->expert_count < 0) return bad("expert_count", params->expert_count, "0 or more");
  // Without a slot there is nothing to compute, whatever the number of tokens.
  const int64_t tokens = params->top_k == 0 ? 0 : params->tokens;
  const Product product = product_of(op, format, *params, params->experts > 0, tokens);
  code = check(product, params->kernel, error);
  if (code != GGUF_OK || tokens == 0 || params->rows == 0) return code;
  const int64_t slots = tokens * params->top_k;
  if (slots > INT_MAX) return bad("tokens * top_k", slots, "0 to 2147483647, since sorted_ids are int32");
  const struct {
    const char* name;
    const void* pointer;
    int64_t count;
  } routing[] = {{"sorted_ids", params->sorted_ids, params->sorted_count},
                 {"expert_ids", params->expert_ids, params->expert_count},
                 {"padded", params->padded, 1}};
  for (const auto& each : routing) {
    if (each.pointer == nullptr && each.count > 0) return bad(each.name, 0, "a pointer");
    if (remainder(each.pointer, 4) != 0) {
      return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %p; wanted: a pointer aligned to 4 bytes", op, each.name,
                  each.pointer);
    }
  }

  const cudaStream_t stream = static_cast<cudaStream_t>(params->stream);
  // Rows of slots that no block has, or one without an expert, are zeros.
  const int64_t out_bytes = slots * params->rows * (params->dtype == GGUF_F32 ? 4 : 2);
  code = launched(error, op, "fill with zeros",
                  cudaMemsetAsync(params->out, 0, static_cast<size_t>(out_bytes), stream));
  if (code != GGUF_OK || params->experts == 0) return code;
  const ActivationView x = activation_view(params->scratch, tokens, params->cols);
  code = quantize(product, x, stream, error);
  if (code != GGUF_OK) return code;
  MatMatArgs args = args_of(product, params->out, x);
  args.weight_bytes = args.expert_bytes * params->experts;
  args.slots = slots;
  args.top_k = params->top_k;
  args.sorted_ids = static_cast<const int32_t*>(params->sorted_ids);
  args.expert_ids = static_cast<const int32_t*>(params->expert_ids);
  args.padded = static_cast<const int32_t*>(params->padded);
  args.sorted_count = params->sorted_count;
  args.blocks = std::min(params->expert_count, ceil_div(params->sorted_count, kAlignBlock));
  args.experts = params->experts;
  MatMatKernel which = static_cast<MatMatKernel>(params->kernel);
  if (which == MatMatKernel::automatic) which = choose_mat_mat(slots, params->experts, args.rows);
  return launched(error, op, "routed product", format->mat_mat(args, which, stream));
}

extern "C" int gguf_moe_block_size(int32_t type, int32_t* entries, GgufError* error) {
  int code;
  if (find_format(GGUF_OP_MOE, type, error, &code) == nullptr) return code;
  *entries = kAlignBlock;
  return GGUF_OK;
}

extern "C" int64_t gguf_align_count(int64_t slots, int64_t block, int64_t experts) {
  return slots + std::min(slots, experts + 1) * (block - 1);
}

extern "C" int gguf_moe_align(const GgufMoeAlignParams* params, GgufError* error) {
  const char* op = "moe_align_block_size";
  const auto bad = [&](const char* name, Long found, const char* wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %lld; wanted: %s", op, name, found, wanted);
  };
  if (params->ids_bits != 32 && params->ids_bits != 64) return bad("ids_bits", params->ids_bits, "32 or 64");
  if (params->block < 1 || params->block > 65536) return bad("block_size", params->block, "1 to 65536");
  if (params->experts < 0 || params->experts > kSortedExperts) return bad("num_experts", params->experts, "0 to 8192");
  if (params->slots < 0) return bad("the number of ids", params->slots, "0 or more");
  const int64_t count = gguf_align_count(params->slots, params->block, params->experts);
  if (count > INT_MAX) return bad("the number of entries", count, "0 to 2147483647, since they are int32");
  if (params->sorted_count < count) return bad("sorted_count", params->sorted_count, "what gguf_align_count says");
  if (params->expert_count < ceil_div(params->sorted_count, params->block)) {
    return bad("expert_count", params->expert_count, "one for each block of sorted_ids");
  }
  if (params->ids == nullptr && params->slots > 0) return bad("ids", 0, "a pointer");
  if (remainder(params->ids, params->ids_bits / 8) != 0) {
    return bad("the address of ids modulo its element", remainder(params->ids, params->ids_bits / 8), "0");
  }
  if (params->padded == nullptr) return bad("padded", 0, "a pointer");
  if (count > 0 && (params->sorted_ids == nullptr || params->expert_ids == nullptr)) {
    return bad("sorted_ids or expert_ids", 0, "a pointer");
  }
  const AlignArgs args{params->ids,
                       params->slots,
                       params->experts,
                       static_cast<int32_t>(params->block),
                       params->ids_bits == 64,
                       static_cast<int32_t*>(params->sorted_ids),
                       params->sorted_count,
                       static_cast<int32_t*>(params->expert_ids),
                       params->expert_count,
                       static_cast<int32_t*>(params->padded)};
  const size_t shared = static_cast<size_t>(params->experts + 1) * sizeof(int);
  const cudaStream_t stream = static_cast<cudaStream_t>(params->stream);
  return launched(error, op, "sorting of slots by expert",
                  for_each_grid(Extent{params->experts + 1}, kAlignThreads, [&](Extent origin, dim3 grid) {
                    align_blocks<<<grid, kAlignThreads, shared, stream>>>(args, origin.x);
                  }));
}

extern "C" int gguf_quantize(const GgufQuantizeParams* params, GgufError* error) {
  const bool q8_k = params->type == Q8_K;
  const char* op = q8_k ? "ggml_quantize_q8_k" : "ggml_quantize_q8_0";
  const auto bad = [&](const char* name, Long found, const char* wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %lld; wanted: %s", op, name, found, wanted);
  };
  if (!q8_k && params->type != Q8_0) return bad("type", params->type, "8 (Q8_0) or 15 (Q8_K)");
  if (!is_dtype(params->dtype)) return bad("dtype", params->dtype, "0 (F32), 1 (F16) or 30 (BF16)");
  if (params->vectors < 0) return bad("the number of vectors", params->vectors, "0 or more");
  const int elements = q8_k ? 256 : 32;
  if (params->cols < 0 || params->cols > INT_MAX || params->cols % elements != 0) {
    return bad("cols", params->cols, q8_k ? "a multiple of 256 below 2^31" : "a multiple of 32 below 2^31");
  }
  if (params->vectors == 0 || params->cols == 0) return GGUF_OK;
  if (params->x == nullptr) return bad("x", 0, "a pointer");
  if (params->out == nullptr) return bad("out", 0, "a pointer");
  if (params->scratch == nullptr) return bad("scratch", 0, "a pointer");
  if (remainder(params->out, 2) != 0) return bad("the address of out modulo 2", 1, "0");
  if (remainder(params->x, params->dtype == GGUF_F32 ? 4 : 2) != 0) return bad("the address of x modulo its element", 1, "0");
  if (remainder(params->scratch, 16) != 0) {
    return bad("the address of scratch modulo 16", remainder(params->scratch, 16), "0");
  }
  const int64_t scratch_bytes = gguf_activation_bytes(params->vectors, params->cols);
  if (params->scratch_bytes < scratch_bytes) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: scratch_bytes is %lld; wanted: %lld or more", op,
                Long{params->scratch_bytes}, Long{scratch_bytes});
  }
  const cudaStream_t stream = static_cast<cudaStream_t>(params->stream);
  const ActivationView x = activation_view(params->scratch, params->vectors, params->cols);
  const GgufScalar dtype = static_cast<GgufScalar>(params->dtype);
  const cudaError_t status =
      q8_k ? launch_quantize_q8_k(dtype, params->x, params->x_stride, x, params->vectors, params->cols, false, stream)
           : launch_quantize(dtype, params->x, params->x_stride, x, params->vectors, params->cols, stream);
  const int code = launched(error, op, "activation quantiser", status);
  if (code != GGUF_OK) return code;
  const int64_t pairs = params->vectors * (params->cols / elements) * (q8_k ? 146 : 17);
  PackArgs pack{x, static_cast<uint16_t*>(params->out), params->cols, pairs, 0};
  return launched(error, op, "packing of blocks",
                  for_each_grid(Extent{ceil_div(pairs, kPackThreads)}, kPackThreads, [&](Extent origin, dim3 grid) {
                    pack.first = origin.x;
                    if (q8_k) {
                      pack_q8_k<<<grid, kPackThreads, 0, stream>>>(pack);
                    } else {
                      pack_q8_0<<<grid, kPackThreads, 0, stream>>>(pack);
                    }
                  }));
}
