// The C interface of routed experts: checks, scratch, and which kernels run.
#include <limits.h>

#include <algorithm>

#include "api.h"
#include "device/align.cuh"
#include "device/routed.cuh"
#include "launch/checks.h"
#include "launch/format_ops.h"
#include "launch/grid.cuh"
#include "launch/mat_mat.h"
#include "launch/tuning.h"

namespace gguf {
namespace {

using Long = long long;

int quantize_as_q8_k(const char* op, bool direct, int dtype, const void* x, int64_t x_stride, ActivationView out,
                     int64_t vectors, int64_t cols, cudaStream_t stream, GgufError* error) {
  return launched(error, op, "activation quantiser",
                  launch_quantize_q8_k(static_cast<GgufScalar>(dtype), x, x_stride, out, vectors, cols,
                                       direct && kInterleavedMxfp4, stream));
}

// One projection's weights as the parameters give them.
struct Projection {
  const char* name;
  const void* weight;
  int64_t expert_stride;
  int64_t row_stride;
};

// What the operations of this file have in common.
struct Routed {
  const char* op;
  const FormatOps* format;
  int activations;
  int64_t experts;
  int64_t slots;
  int64_t vectors;  // of x
  int64_t rows;
  int64_t cols;
  int dtype;
  int out_dtype;
  const void* x;
  const void* ids;
  int ids_bits;
  const void* out;
  const void* scratch;
  int64_t scratch_bytes;
  int64_t scratch_wanted;
};

// Refuses what the kernels cannot take, by the names of the C interface. One line a rule.
int check_routed(const Routed& p, const Projection* projections, int count, GgufError* error) {
  const auto bad = [&](const char* name, Long found, const char* wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %lld; wanted: %s", p.op, name, found, wanted);
  };
  const int block = p.activations == GGUF_ACTIVATIONS_Q8_K ? std::max(kQ8KBlock, p.format->block_elements)
                                                           : p.format->block_elements;
  if (!is_dtype(p.dtype)) return bad("dtype", p.dtype, "0 (F32), 1 (F16) or 30 (BF16)");
  if (!is_dtype(p.out_dtype)) return bad("out_dtype", p.out_dtype, "0 (F32), 1 (F16) or 30 (BF16)");
  if (p.ids_bits != 32 && p.ids_bits != 64) return bad("ids_bits", p.ids_bits, "32 or 64");
  if (p.experts < 0) return bad("experts", p.experts, "0 or more");
  if (p.rows < 0) return bad("rows", p.rows, "0 or more");
  if (p.cols < 0 || p.cols > INT_MAX) return bad("cols", p.cols, "0 to 2147483647");
  if (p.cols % block != 0) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: cols is %lld; wanted: a multiple of %d, the block of %s", p.op,
                Long{p.cols}, block, block == p.format->block_elements ? p.format->name : "Q8_K activations");
  }
  if (p.vectors == 0 || p.rows == 0) return GGUF_OK;
  if (p.out == nullptr) return bad("out", 0, "a pointer");
  if (p.slots > 0 && p.ids == nullptr) return bad("ids", 0, "a pointer");
  if (remainder(p.ids, p.ids_bits / 8) != 0) {
    return bad("the address of ids modulo its element", remainder(p.ids, p.ids_bits / 8), "0");
  }
  if (p.cols == 0 || p.slots == 0) return GGUF_OK;  // zeros
  const int64_t row_bytes = p.cols / p.format->block_elements * p.format->block_bytes;
  const int align = row_alignment(p.format->block_bytes);
  for (int i = 0; i < count; ++i) {
    const Projection& each = projections[i];
    if (each.weight == nullptr && p.experts > 0) {
      return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is 0; wanted: a pointer", p.op, each.name);
    }
    if (each.row_stride < row_bytes || each.expert_stride < row_bytes) {
      return fail(error, GGUF_BAD_ARGUMENT,
                  "%s: %s has strides of %lld bytes an expert and %lld a row; wanted: at least a row's %lld", p.op,
                  each.name, Long{each.expert_stride}, Long{each.row_stride}, Long{row_bytes});
    }
    if (remainder(each.weight, align) != 0 || each.row_stride % align != 0 || each.expert_stride % align != 0) {
      return fail(error, GGUF_BAD_ARGUMENT, "%s: %s has rows at addresses that are no multiples of %d; wanted: multiples",
                  p.op, each.name, align);
    }
  }
  if (p.x == nullptr) return bad("x", 0, "a pointer");
  if (remainder(p.x, p.dtype == GGUF_F32 ? 4 : 2) != 0) return bad("the address of x modulo its element", 1, "0");
  if (p.scratch == nullptr) return bad("scratch", 0, "a pointer");
  if (remainder(p.scratch, 16) != 0) return bad("the address of scratch modulo 16", remainder(p.scratch, 16), "0");
  if (p.scratch_bytes < p.scratch_wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: scratch_bytes is %lld; wanted: %lld or more", p.op,
                Long{p.scratch_bytes}, Long{p.scratch_wanted});
  }
  return GGUF_OK;
}

// --- tiles: slots sorted by expert, products of many vectors, and what is left to do with them ---

bool uses_tiles(int variant, int64_t tokens, int64_t top_k, int64_t experts) {
  if (variant == GGUF_ROUTED_AUTO) {
    return tokens >= kRoutedTileTokens && tokens * top_k >= kRoutedTileSlots * experts && experts <= kSortedExperts;
  }
  return variant == GGUF_ROUTED_TILES || variant == GGUF_ROUTED_DOT_TILES;
}

constexpr int64_t round_up(int64_t bytes) { return ceil_div(bytes, 256) * 256; }

// Where things lie in the scratch of a call with tiles, in bytes behind the quantised activations.
struct TileScratch {
  int64_t sorted_ids;
  int64_t expert_ids;
  int64_t padded;
  int64_t products;  // `count` times [slots, rows] floats
  int64_t end;
  int64_t sorted_count;
  int64_t expert_count;

  TileScratch(int64_t activation_bytes, int64_t slots, int64_t experts, int64_t rows, int count) {
    sorted_count = gguf_align_count(slots, kAlignBlock, experts);
    expert_count = ceil_div(sorted_count, kAlignBlock);
    sorted_ids = round_up(activation_bytes);
    expert_ids = round_up(sorted_ids + 4 * sorted_count);
    padded = round_up(expert_ids + 4 * expert_count);
    products = padded + 256;
    end = products + count * slots * rows * 4;
  }
};

// Sorts the slots, then lets `tiles` name what the products of one projection have in common.
int sort_slots(const Routed& p, const TileScratch& at, char* scratch, cudaStream_t stream, MatMatArgs* tiles,
               GgufError* error) {
  GgufMoeAlignParams align{};
  align.ids = p.ids;
  align.sorted_ids = scratch + at.sorted_ids;
  align.expert_ids = scratch + at.expert_ids;
  align.padded = scratch + at.padded;
  align.slots = p.slots;
  align.block = kAlignBlock;
  align.experts = p.experts;
  align.sorted_count = at.sorted_count;
  align.expert_count = at.expert_count;
  align.ids_bits = p.ids_bits;
  align.stream = stream;
  const int code = gguf_moe_align(&align, error);
  tiles->dtype = Dtype::f32;
  tiles->rows = p.rows;
  tiles->cols = p.cols;
  tiles->slots = p.slots;
  tiles->sorted_ids = reinterpret_cast<const int32_t*>(scratch + at.sorted_ids);
  tiles->expert_ids = reinterpret_cast<const int32_t*>(scratch + at.expert_ids);
  tiles->padded = reinterpret_cast<const int32_t*>(scratch + at.padded);
  tiles->sorted_count = at.sorted_count;
  tiles->blocks = at.expert_count;
  tiles->experts = p.experts;
  return code;
}

// out[z] = the projection of slot z's expert times its vector, for slots with an expert.
int multiply_tiles(const Routed& p, MatMatArgs tiles, const Projection& projection, int variant, float* out,
                   cudaStream_t stream, GgufError* error) {
  tiles.weight = static_cast<const uint8_t*>(projection.weight);
  tiles.row_bytes = projection.row_stride;
  tiles.expert_bytes = projection.expert_stride;
  tiles.weight_bytes = std::max<int64_t>(p.experts - 1, 0) * projection.expert_stride +
                       (p.rows - 1) * projection.row_stride + p.cols / p.format->block_elements * p.format->block_bytes;
  tiles.out = out;
  const MatMatKernel which = variant == GGUF_ROUTED_DOT_TILES ? MatMatKernel::dot
                                                              : choose_mat_mat(p.slots, p.experts, p.rows);
  return launched(error, p.op, "sorted products", p.format->mat_mat(tiles, which, stream));
}

Experts experts_of(const void* weight, int64_t expert_stride, int64_t row_stride) {
  return {static_cast<const uint8_t*>(weight), expert_stride, row_stride};
}

}  // namespace
}  // namespace gguf

using namespace gguf;

extern "C" int64_t gguf_moe_gate_up_bytes(const GgufMoeGateUpParams* params) {
  const int64_t activations = gguf_activation_bytes(params->tokens, params->cols);
  if (params->activations == GGUF_ACTIVATIONS_Q8_K &&
      uses_tiles(params->variant, params->tokens, params->top_k, params->experts)) {
    return TileScratch(activations, params->tokens * params->top_k, params->experts, params->rows, 2).end;
  }
  return activations;
}

extern "C" int64_t gguf_moe_down_bytes(const GgufMoeDownParams* params) {
  const int64_t slots = params->tokens * params->top_k;
  const int64_t activations = gguf_activation_bytes(slots, params->cols);
  if (uses_tiles(params->variant, params->tokens, params->top_k, params->experts)) {
    return TileScratch(activations, slots, params->experts, params->rows, 1).end;
  }
  return activations;
}

extern "C" int gguf_moe_gate_up(const GgufMoeGateUpParams* params, GgufError* error) {
  const bool q8_k = params->activations == GGUF_ACTIVATIONS_Q8_K;
  const int which = q8_k ? GGUF_OP_MXFP4_GATE_UP : GGUF_OP_MOE_GATE_UP;
  const char* op = op_name(which);
  int code;
  const FormatOps* format = find_format(which, params->type, error, &code);
  if (format == nullptr) return code;
  const auto bad = [&](const char* name, Long found, const char* wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %lld; wanted: %s", op, name, found, wanted);
  };
  if (!q8_k && params->activations != GGUF_ACTIVATIONS_32) return bad("activations", params->activations, "0 or 15");
  if (params->tokens < 0) return bad("tokens", params->tokens, "0 or more");
  if (params->top_k < 0) return bad("top_k", params->top_k, "0 or more");
  if (params->variant < GGUF_ROUTED_AUTO || params->variant > (q8_k ? GGUF_ROUTED_DOT_TILES : GGUF_ROUTED_DIRECT)) {
    return bad("variant", params->variant, q8_k ? "0 to 3" : "0 or 1");
  }
  if (!(params->limit >= 0)) return fail(error, GGUF_BAD_ARGUMENT, "%s: limit is %g; wanted: 0 or more", op, params->limit);
  const int64_t tokens = params->top_k == 0 ? 0 : params->tokens;
  Routed routed{};
  routed.op = op;
  routed.format = format;
  routed.activations = params->activations;
  routed.experts = params->experts;
  routed.slots = tokens * params->top_k;
  routed.vectors = tokens;
  routed.rows = params->rows;
  routed.cols = params->cols;
  routed.dtype = params->dtype;
  routed.out_dtype = params->out_dtype;
  routed.x = params->x;
  routed.ids = params->ids;
  routed.ids_bits = params->ids_bits;
  routed.out = params->out;
  routed.scratch = params->scratch;
  routed.scratch_bytes = params->scratch_bytes;
  routed.scratch_wanted = gguf_moe_gate_up_bytes(params);
  const Projection projections[] = {{"gate", params->gate, params->gate_expert_stride, params->gate_row_stride},
                                    {"up", params->up, params->up_expert_stride, params->up_row_stride}};
  code = check_routed(routed, projections, 2, error);
  if (code != GGUF_OK || tokens == 0 || params->rows == 0) return code;

  const cudaStream_t stream = static_cast<cudaStream_t>(params->stream);
  const ActivationView x = activation_view(params->scratch, tokens, params->cols);
  const bool use_tiles = q8_k && uses_tiles(params->variant, tokens, params->top_k, params->experts);
  if (q8_k) {
    code = quantize_as_q8_k(op, !use_tiles, params->dtype, params->x, params->x_stride, x, tokens, params->cols, stream,
                            error);
  } else {
    code = launched(error, op, "activation quantiser",
                    launch_quantize(static_cast<GgufScalar>(params->dtype), params->x, params->x_stride, x, tokens,
                                    params->cols, stream));
  }
  if (code != GGUF_OK) return code;
  const Routing routing{params->ids, params->experts, params->top_k, params->ids_bits == 64};
  const SwiGlu activation{params->alpha, params->limit, params->up_offset};
  if (use_tiles) {
    char* scratch = static_cast<char*>(params->scratch);
    const TileScratch at(gguf_activation_bytes(tokens, params->cols), routed.slots, params->experts, params->rows, 2);
    MatMatArgs tiles{};
    tiles.x = x;
    tiles.top_k = params->top_k;
    code = sort_slots(routed, at, scratch, stream, &tiles, error);
    float* products[2];
    for (int i = 0; i < 2 && code == GGUF_OK; ++i) {
      products[i] = reinterpret_cast<float*>(scratch + at.products) + i * routed.slots * params->rows;
      code = multiply_tiles(routed, tiles, projections[i], params->variant, products[i], stream, error);
    }
    if (code != GGUF_OK) return code;
    SwiGluArgs args{products[0], products[1], routing, activation, params->out, static_cast<Dtype>(params->out_dtype),
                    params->rows, 0, 0};
    const Extent blocks{ceil_div(params->rows, kMatVecThreads), routed.slots};
    return launched(error, op, "activation function", for_each_grid(blocks, kMatVecThreads, [&](Extent origin, dim3 grid) {
                      args.first_group = origin.x;
                      args.first_slot = origin.y;
                      swiglu_rows<<<grid, kMatVecThreads, 0, stream>>>(args);
                    }));
  }
  GateUpArgs args{};
  args.gate = experts_of(params->gate, params->gate_expert_stride, params->gate_row_stride);
  args.up = experts_of(params->up, params->up_expert_stride, params->up_row_stride);
  args.routing = routing;
  args.x = x;
  args.activation = activation;
  args.interleaved = q8_k && kInterleavedMxfp4;
  args.out = params->out;
  args.dtype = static_cast<Dtype>(params->out_dtype);
  args.rows = params->rows;
  args.cols = params->cols;
  return launched(error, op, "gate and up projections", format->moe_gate_up(args, tokens, stream));
}

extern "C" int gguf_moe_down(const GgufMoeDownParams* params, GgufError* error) {
  const char* op = op_name(GGUF_OP_MXFP4_DOWN);
  int code;
  const FormatOps* format = find_format(GGUF_OP_MXFP4_DOWN, params->type, error, &code);
  if (format == nullptr) return code;
  const auto bad = [&](const char* name, Long found, const char* wanted) {
    return fail(error, GGUF_BAD_ARGUMENT, "%s: %s is %lld; wanted: %s", op, name, found, wanted);
  };
  if (params->tokens < 0) return bad("tokens", params->tokens, "0 or more");
  if (params->top_k < 0) return bad("top_k", params->top_k, "0 or more");
  if (params->variant < GGUF_ROUTED_AUTO || params->variant > GGUF_ROUTED_DOT_TILES) {
    return bad("variant", params->variant, "0 to 3");
  }
  if (!is_dtype(params->weights_dtype)) return bad("weights_dtype", params->weights_dtype, "0 (F32), 1 (F16) or 30 (BF16)");
  Routed routed{};
  routed.op = op;
  routed.format = format;
  routed.activations = GGUF_ACTIVATIONS_Q8_K;
  routed.experts = params->experts;
  routed.slots = params->tokens * params->top_k;
  routed.vectors = params->tokens;
  routed.rows = params->rows;
  routed.cols = params->cols;
  routed.dtype = params->dtype;
  routed.out_dtype = params->out_dtype;
  routed.x = params->x;
  routed.ids = params->ids;
  routed.ids_bits = params->ids_bits;
  routed.out = params->out;
  routed.scratch = params->scratch;
  routed.scratch_bytes = params->scratch_bytes;
  routed.scratch_wanted = gguf_moe_down_bytes(params);
  const Projection down{"down", params->down, params->down_expert_stride, params->down_row_stride};
  code = check_routed(routed, &down, 1, error);
  if (code != GGUF_OK || params->tokens == 0 || params->rows == 0) return code;
  if (routed.slots > 0 && params->weights == nullptr) return bad("weights", 0, "a pointer");
  if (remainder(params->weights, params->weights_dtype == GGUF_F32 ? 4 : 2) != 0) {
    return bad("the address of weights modulo its element", 1, "0");
  }

  const cudaStream_t stream = static_cast<cudaStream_t>(params->stream);
  const ActivationView x = activation_view(params->scratch, routed.slots, params->cols);
  const bool use_tiles = uses_tiles(params->variant, params->tokens, params->top_k, params->experts);
  code = quantize_as_q8_k(op, !use_tiles, params->dtype, params->x, params->x_stride, x, routed.slots, params->cols,
                          stream, error);
  if (code != GGUF_OK) return code;
  const Routing routing{params->ids, params->experts, params->top_k, params->ids_bits == 64};
  if (use_tiles) {
    char* scratch = static_cast<char*>(params->scratch);
    const TileScratch at(gguf_activation_bytes(routed.slots, params->cols), routed.slots, params->experts, params->rows, 1);
    MatMatArgs tiles{};
    tiles.x = x;
    tiles.top_k = 1;
    float* products = reinterpret_cast<float*>(scratch + at.products);
    if (routed.slots > 0) {
      code = sort_slots(routed, at, scratch, stream, &tiles, error);
      if (code == GGUF_OK) code = multiply_tiles(routed, tiles, down, params->variant, products, stream, error);
      if (code != GGUF_OK) return code;
    }
    CombineArgs args{products, routing, params->weights, static_cast<Dtype>(params->weights_dtype), params->out,
                     static_cast<Dtype>(params->out_dtype), params->rows, 0, 0};
    const Extent blocks{ceil_div(params->rows, kMatVecThreads), params->tokens};
    return launched(error, op, "sum over slots", for_each_grid(blocks, kMatVecThreads, [&](Extent origin, dim3 grid) {
                      args.first_group = origin.x;
                      args.first_token = origin.y;
                      combine_slots<<<grid, kMatVecThreads, 0, stream>>>(args);
                    }));
  }
  DownArgs args{};
  args.down = experts_of(params->down, params->down_expert_stride, params->down_row_stride);
  args.routing = routing;
  args.weights = params->weights;
  args.weights_dtype = static_cast<Dtype>(params->weights_dtype);
  args.x = x;
  args.out = params->out;
  args.dtype = static_cast<Dtype>(params->out_dtype);
  args.rows = params->rows;
  args.cols = params->cols;
  return launched(error, op, "down projection", format->moe_down(args, params->tokens, stream));
}
