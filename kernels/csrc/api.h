// The C interface of the launch layer: everything a framework's binding, or ctypes, needs.
//
// Contract of every function here
// - It runs its kernels on `stream`, in order, and returns at once: no allocation, no synchronisation, and the host
//   reads no device memory. So it may be captured in a graph.
// - It returns a GgufCode. When that is not GGUF_OK, `error` (where not null) holds one line of text that names the
//   operation, the parameter, what was found and what is wanted, and no kernel of the operation after the failing one
//   has been launched.
// - Pointers are device pointers (on the host platform, plain ones). A matrix W is `rows` rows of
//   cols / block_elements blocks, without gaps, and is never read outside of them.
// - Products quantise the activations in blocks of 32: d = max|x| / 127 in float, q = round(x / d), halves away from
//   zero, q = 0 where d = 0. A block that holds a NaN or an infinity has d = NaN or infinity and q = 0, which makes
//   every result of its own vector NaN, and touches no other.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Protected, not default: two platforms' libraries live in one process, and each must call its own functions.
#define GGUF_EXPORT __attribute__((visibility("protected")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum GgufCode {
  GGUF_OK = 0,
  GGUF_BAD_ARGUMENT = 1,
  GGUF_UNSUPPORTED = 2,  // a type that is unknown, is no weight format, or has no kernel for this operation
  GGUF_LAUNCH_FAILED = 3,
} GgufCode;

typedef enum GgufOp {
  GGUF_OP_DEQUANTIZE = 0,
  GGUF_OP_MUL_MAT_VEC = 1,
  GGUF_OP_MOE_VEC = 2,
  GGUF_OP_MOE_GATE_UP = 3,
  GGUF_OP_MXFP4_GATE_UP = 4,
  GGUF_OP_MXFP4_DOWN = 5,
  GGUF_OP_MUL_MAT = 6,
  GGUF_OP_MOE = 7,
} GgufOp;

// Element types of activations and results; the numbers are those of GGUF.
typedef enum GgufScalar {
  GGUF_F32 = 0,
  GGUF_F16 = 1,
  GGUF_BF16 = 30,
} GgufScalar;

enum { GGUF_ERROR_BYTES = 512 };

typedef struct GgufError {
  char text[GGUF_ERROR_BYTES];  // NUL-terminated
} GgufError;

// out[i] = value of element i of W, for the elements of blocks block_begin (included) to block_end (excluded), counted
// from the start of W. `out` is the place of element 0.
typedef struct GgufDequantizeParams {
  const void* weight;  // 2-byte aligned
  void* out;           // 16-byte aligned
  int64_t block_begin;
  int64_t block_end;
  int32_t type;       // GGUF type id of W
  int32_t out_dtype;  // GgufScalar
  void* stream;
} GgufDequantizeParams;

// out[v][r] = sum over k of W[r][k] * x[v][k]; out is [vectors, rows], contiguous.
typedef struct GgufMulMatVecParams {
  const void* weight;  // [rows, cols], 2-byte aligned
  const void* x;       // [vectors, cols], elements of one vector adjacent, aligned to an element
  void* out;
  void* scratch;          // gguf_activation_bytes(vectors, cols) bytes, 16-byte aligned; free again in stream order
  int64_t scratch_bytes;  // what scratch holds
  int64_t x_stride;       // elements from one vector to the next, any sign, 0 allowed
  int64_t vectors;
  int64_t rows;
  int64_t cols;   // a multiple of the format's block
  int32_t type;   // GGUF type id of W
  int32_t dtype;  // GgufScalar of x and out
  void* stream;
} GgufMulMatVecParams;

// out[z][r] = sum over k of W[ids[z]][r][k] * x[z / top_k][k], for z from 0 to tokens * top_k - 1; a row of zeros where
// ids[z] < 0 or ids[z] >= experts. out is [tokens * top_k, rows], contiguous.
typedef struct GgufMoeVecParams {
  const void* weight;  // [experts, rows, cols], 2-byte aligned
  const void* x;       // [tokens, cols], elements of one vector adjacent, aligned to an element
  const void* ids;     // [tokens * top_k] int32 or int64, contiguous
  void* out;
  void* scratch;          // gguf_activation_bytes(tokens, cols) bytes, 16-byte aligned
  int64_t scratch_bytes;  // what scratch holds
  int64_t x_stride;       // elements from one token to the next, any sign, 0 allowed
  int64_t experts;
  int64_t tokens;
  int64_t top_k;
  int64_t rows;
  int64_t cols;      // a multiple of the format's block
  int32_t ids_bits;  // 32 or 64
  int32_t type;      // GGUF type id of W
  int32_t dtype;     // GgufScalar of x and out
  void* stream;
} GgufMoeVecParams;

// How the routed operations below quantise activations: in blocks of 32 as above, or as Q8_K has them (the number is
// GGUF's). Q8_K: in blocks of 256, m the first element of the largest magnitude, with its sign, s = -127 / m in float,
// q = s * x in float, rounded to the nearest whole number, halves to even, and at most 127, d = 1 / s. d and q are 0
// where m is 0, or so small that s is infinite. A NaN or an infinity makes d NaN and q 0.
typedef enum GgufActivations {
  GGUF_ACTIVATIONS_32 = 0,
  GGUF_ACTIVATIONS_Q8_K = 15,
} GgufActivations;

// Which kernels a routed MXFP4 operation runs. Tiles group the tokens of an expert; both kinds give the same bits.
typedef enum GgufRoutedVariant {
  GGUF_ROUTED_AUTO = 0,       // by the number of tokens
  GGUF_ROUTED_DIRECT = 1,     // each slot by itself
  GGUF_ROUTED_TILES = 2,      // sorted by expert, on matrix cores
  GGUF_ROUTED_DOT_TILES = 3,  // the same by dot products of four bytes
} GgufRoutedVariant;

// With g = gate[ids[z]] * x[z / top_k] and u = up[ids[z]] * x[z / top_k]:
// out[z] = silu(min(g, limit)) * (clamp(u, -limit, limit) + up_offset), silu(g) = g / (1 + exp(-alpha * g)).
// out is [tokens * top_k, rows], contiguous; a row of zeros where ids[z] < 0 or ids[z] >= experts. Rows of the weights
// lie without gaps, expert and row strides in bytes: gate and up may be halves, or even and odd rows, of one tensor.
// The addresses of all rows must be multiples of what divides both 16 and the format's block.
typedef struct GgufMoeGateUpParams {
  const void* gate;  // [experts, rows, cols]
  const void* up;    // [experts, rows, cols]
  const void* x;     // [tokens, cols], elements of one vector adjacent, aligned to an element
  const void* ids;   // [tokens * top_k] int32 or int64, contiguous
  void* out;
  void* scratch;          // gguf_moe_gate_up_bytes(params) bytes, 16-byte aligned; free again in stream order
  int64_t scratch_bytes;  // what scratch holds
  int64_t x_stride;       // elements from one token to the next, any sign, 0 allowed
  int64_t gate_expert_stride;
  int64_t gate_row_stride;
  int64_t up_expert_stride;
  int64_t up_row_stride;
  int64_t experts;
  int64_t tokens;
  int64_t top_k;
  int64_t rows;
  int64_t cols;  // a multiple of the format's block and of the activations'
  float alpha;      // 1: SiLU
  float limit;      // 0 or more; infinity: no clamp
  float up_offset;  // 0, or 1 where the model adds 1 to up
  int32_t ids_bits;     // 32 or 64
  int32_t type;         // GGUF type id of gate and up; with Q8_K activations MXFP4 alone
  int32_t activations;  // GgufActivations
  int32_t variant;      // GgufRoutedVariant; with activations in blocks of 32 GGUF_ROUTED_AUTO or _DIRECT, which are one
  int32_t dtype;        // GgufScalar of x
  int32_t out_dtype;    // GgufScalar of out
  void* stream;
} GgufMoeGateUpParams;

// out[t][r] = sum over the slots of t, in order, of weights[z] * (down[ids[z]][r] * x[z]) with z = t * top_k + slot, in
// float. out is [tokens, rows], contiguous. A slot whose id names no expert adds nothing, whatever its weight. The
// activations are quantised as Q8_K has them.
typedef struct GgufMoeDownParams {
  const void* down;     // [experts, rows, cols], as gate above
  const void* x;        // [tokens * top_k, cols], elements of one vector adjacent, aligned to an element
  const void* ids;      // [tokens * top_k] int32 or int64, contiguous
  const void* weights;  // [tokens * top_k], contiguous
  void* out;
  void* scratch;          // gguf_moe_down_bytes(params) bytes, 16-byte aligned; free again in stream order
  int64_t scratch_bytes;  // what scratch holds
  int64_t x_stride;       // elements from one slot to the next, any sign, 0 allowed
  int64_t down_expert_stride;
  int64_t down_row_stride;
  int64_t experts;
  int64_t tokens;
  int64_t top_k;
  int64_t rows;
  int64_t cols;           // a multiple of 256
  int32_t ids_bits;       // 32 or 64
  int32_t type;           // GGUF type id of down: MXFP4
  int32_t weights_dtype;  // GgufScalar of weights
  int32_t variant;        // GgufRoutedVariant
  int32_t dtype;          // GgufScalar of x
  int32_t out_dtype;      // GgufScalar of out
  void* stream;
} GgufMoeDownParams;

GGUF_EXPORT int gguf_moe_gate_up(const GgufMoeGateUpParams* params, GgufError* error);
GGUF_EXPORT int gguf_moe_down(const GgufMoeDownParams* params, GgufError* error);

// Bytes of scratch for such a call, by its shape; pointers are not read.
GGUF_EXPORT int64_t gguf_moe_gate_up_bytes(const GgufMoeGateUpParams* params);
GGUF_EXPORT int64_t gguf_moe_down_bytes(const GgufMoeDownParams* params);

// Which kernel computes a product with many vectors. All give the same bits.
typedef enum GgufMatMat {
  GGUF_MAT_MAT_AUTO = 0,
  GGUF_MAT_MAT_DOT = 1,     // 64 rows x 16 vectors, without matrix cores
  GGUF_MAT_MAT_SMALL = 2,   // 64 x 16, with them, as the rest
  GGUF_MAT_MAT_MEDIUM = 3,  // 128 x 64
  GGUF_MAT_MAT_LARGE = 4,   // 128 x 128
} GgufMatMat;

// As GgufMulMatVecParams, for many vectors.
typedef struct GgufMulMatParams {
  const void* weight;  // [rows, cols], 2-byte aligned
  const void* x;       // [vectors, cols], elements of one vector adjacent, aligned to an element
  void* out;           // [vectors, rows], contiguous
  void* scratch;          // gguf_activation_bytes(vectors, cols) bytes, 16-byte aligned; free again in stream order
  int64_t scratch_bytes;  // what scratch holds
  int64_t x_stride;       // elements from one vector to the next, any sign, 0 allowed
  int64_t vectors;
  int64_t rows;
  int64_t cols;    // a multiple of the format's block
  int32_t type;    // GGUF type id of W
  int32_t dtype;   // GgufScalar of x and out
  int32_t kernel;  // GgufMatMat
  void* stream;
} GgufMulMatParams;

// out[z][r] = sum over k of W[e][r][k] * x[z / top_k][k] for each slot z, 0 to tokens * top_k - 1, that is among the first
// *padded of sorted_ids, where e is the entry of expert_ids for its block of gguf_moe_block_size entries. A row of zeros
// for every other slot, and where e < 0 or e >= experts. Entries of sorted_ids that are no slot are padding. A slot that
// occurs twice has one of the two results.
typedef struct GgufMoeParams {
  const void* weight;      // [experts, rows, cols], 2-byte aligned
  const void* x;           // [tokens, cols], elements of one vector adjacent, aligned to an element
  const void* sorted_ids;  // [sorted_count] int32
  const void* expert_ids;  // [expert_count] int32
  const void* padded;      // [1] int32
  void* out;               // [tokens * top_k, rows], contiguous
  void* scratch;           // gguf_activation_bytes(tokens, cols) bytes, 16-byte aligned
  int64_t scratch_bytes;   // what scratch holds
  int64_t x_stride;        // elements from one token to the next, any sign, 0 allowed
  int64_t sorted_count;
  int64_t expert_count;
  int64_t experts;
  int64_t tokens;
  int64_t top_k;
  int64_t rows;
  int64_t cols;    // a multiple of the format's block
  int32_t type;    // GGUF type id of W
  int32_t dtype;   // GgufScalar of x and out
  int32_t kernel;  // GgufMatMat
  void* stream;
} GgufMoeParams;

// Sorts slots by expert, those of an expert in their order, and pads each expert's to a multiple of `block`: sorted_ids
// gets the slots, and `slots` for padding; expert_ids the expert of each block; padded how many entries of sorted_ids
// count. Ids that name no expert come last, in blocks of expert -1, as is everything after.
typedef struct GgufMoeAlignParams {
  const void* ids;   // [slots] int32 or int64
  void* sorted_ids;  // [sorted_count] int32
  void* expert_ids;  // [expert_count] int32
  void* padded;      // [1] int32
  int64_t slots;
  int64_t sorted_count;  // gguf_align_count(slots, block, experts) or more
  int64_t expert_count;  // sorted_count / block, rounded up, or more
  int64_t experts;       // 0 to 8192
  int64_t block;
  int32_t ids_bits;  // 32 or 64
  void* stream;
} GgufMoeAlignParams;

// x as blocks of Q8_0 or Q8_K. Q8_0: d and q as products have them, but d rounded to half, as its blocks hold it. Q8_K: as
// gguf_moe_gate_up has them with GGUF_ACTIVATIONS_Q8_K.
typedef struct GgufQuantizeParams {
  const void* x;  // [vectors, cols], elements of one vector adjacent, aligned to an element
  void* out;      // [vectors, cols] in blocks, 2-byte aligned
  void* scratch;          // gguf_activation_bytes(vectors, cols) bytes, 16-byte aligned
  int64_t scratch_bytes;  // what scratch holds
  int64_t x_stride;       // elements from one vector to the next, any sign, 0 allowed
  int64_t vectors;
  int64_t cols;   // a multiple of 32, or of 256
  int32_t type;   // 8 or 15
  int32_t dtype;  // GgufScalar of x
  void* stream;
} GgufQuantizeParams;

GGUF_EXPORT int gguf_mul_mat_a8(const GgufMulMatParams* params, GgufError* error);
GGUF_EXPORT int gguf_moe_a8(const GgufMoeParams* params, GgufError* error);
GGUF_EXPORT int gguf_moe_align(const GgufMoeAlignParams* params, GgufError* error);
GGUF_EXPORT int gguf_quantize(const GgufQuantizeParams* params, GgufError* error);

// Entries of sorted_ids that share an expert in gguf_moe_a8; GGUF_UNSUPPORTED for types that it has no kernel for.
GGUF_EXPORT int gguf_moe_block_size(int32_t type, int32_t* entries, GgufError* error);

// Entries of sorted_ids that `slots` slots need at most.
GGUF_EXPORT int64_t gguf_align_count(int64_t slots, int64_t block, int64_t experts);

GGUF_EXPORT int gguf_dequantize(const GgufDequantizeParams* params, GgufError* error);
GGUF_EXPORT int gguf_mul_mat_vec_a8(const GgufMulMatVecParams* params, GgufError* error);
GGUF_EXPORT int gguf_moe_a8_vec(const GgufMoeVecParams* params, GgufError* error);

// GGUF_OK when there is a kernel for this operation and type, else GGUF_UNSUPPORTED and a text that says what there is.
GGUF_EXPORT int gguf_supports(int32_t op, int32_t type, GgufError* error);

// GGUF_OK when the current device can run the kernels of this library, else GGUF_LAUNCH_FAILED and the runtime's reason,
// such as that there is no code for this card. Takes the device into use; for a loader, not for each call.
GGUF_EXPORT int gguf_device_ready(GgufError* error);

// Bytes of scratch for the quantised activations of `vectors` vectors of `cols` elements.
GGUF_EXPORT int64_t gguf_activation_bytes(int64_t vectors, int64_t cols);

// Shape of a weight format's block: GGUF_OK, or GGUF_UNSUPPORTED for a type without kernels.
GGUF_EXPORT int gguf_block_shape(int32_t type, int32_t* elements, int32_t* bytes, GgufError* error);

#ifdef __cplusplus
}  // extern "C"
#endif
