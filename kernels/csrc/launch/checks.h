// What the functions of the C interface share: errors as text, and the way from a type id to its kernels.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "api.h"
#include "launch/format_ops.h"

namespace gguf {

// Writes the text and returns the code.
__attribute__((format(printf, 3, 4))) int fail(GgufError* error, GgufCode code, const char* format, ...);

// GGUF_OK, or what the runtime says about a launch.
int launched(GgufError* error, const char* op, const char* what, cudaError_t status);

// An operation's name as users know it; by GgufOp.
const char* op_name(int op);

// The kernels of a type, or null with code and text in error.
const FormatOps* find_format(int op, int type, GgufError* error, int* code);

// Of an address modulo a number of bytes.
int remainder(const void* pointer, int bytes);

bool is_dtype(int dtype);

// What the products of one matrix, or of one an expert, have in common.
struct Product {
  const char* op;
  const FormatOps* format;
  const void* weight;
  bool weight_is_read;
  const void* x;
  const void* out;
  const void* scratch;
  int64_t scratch_bytes;
  int64_t vectors;
  int64_t rows;
  int64_t cols;
  int64_t x_stride;
  int dtype;

  int64_t row_bytes() const { return cols / format->block_elements * format->block_bytes; }
};

// Of the parameters of any of them. vectors: how many there are to multiply.
template <typename Params>
Product product_of(const char* op, const FormatOps* format, const Params& params, bool weight_is_read,
                   int64_t vectors) {
  Product product{};
  product.op = op;
  product.format = format;
  product.weight = params.weight;
  product.weight_is_read = weight_is_read;
  product.x = params.x;
  product.out = params.out;
  product.scratch = params.scratch;
  product.scratch_bytes = params.scratch_bytes;
  product.vectors = vectors;
  product.rows = params.rows;
  product.cols = params.cols;
  product.x_stride = params.x_stride;
  product.dtype = params.dtype;
  return product;
}

// Refuses what the kernels cannot take, by the names of the C interface.
int check_product(const Product& p, GgufError* error);

// Launches the quantiser of a checked product's activations.
int quantize(const Product& p, ActivationView activations, cudaStream_t stream, GgufError* error);

}  // namespace gguf
