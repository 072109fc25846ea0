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

}  // namespace gguf
