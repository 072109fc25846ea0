// Every type of GGUF by name and id, and the list of the weight formats that have kernels here.
#pragma once

// X(name, id, role). Roles: weight; activation (a format for activations, never for weights); scalar (not quantised).
#define GGUF_FOR_EACH_TYPE(X) \
  X(F32, 0, scalar)           \
  X(F16, 1, scalar)           \
  X(Q4_0, 2, weight)          \
  X(Q4_1, 3, weight)          \
  X(Q5_0, 6, weight)          \
  X(Q5_1, 7, weight)          \
  X(Q8_0, 8, weight)          \
  X(Q8_1, 9, activation)      \
  X(Q2_K, 10, weight)         \
  X(Q3_K, 11, weight)         \
  X(Q4_K, 12, weight)         \
  X(Q5_K, 13, weight)         \
  X(Q6_K, 14, weight)         \
  X(Q8_K, 15, activation)     \
  X(IQ2_XXS, 16, weight)      \
  X(IQ2_XS, 17, weight)       \
  X(IQ3_XXS, 18, weight)      \
  X(IQ1_S, 19, weight)        \
  X(IQ4_NL, 20, weight)       \
  X(IQ3_S, 21, weight)        \
  X(IQ2_S, 22, weight)        \
  X(IQ4_XS, 23, weight)       \
  X(IQ1_M, 29, weight)        \
  X(BF16, 30, scalar)         \
  X(TQ1_0, 34, weight)        \
  X(TQ2_0, 35, weight)        \
  X(MXFP4, 39, weight)        \
  X(NVFP4, 40, weight)

// X(name) for each weight format that a file <name>.cu in this folder defines. To add a format: write that file (one
// traits struct and GGUF_DEFINE_FORMAT) and name it here.
#define GGUF_FOR_EACH_FORMAT(X) \
  X(Q4_0)                       \
  X(Q4_1)                       \
  X(Q5_0)                       \
  X(Q5_1)                       \
  X(Q8_0)                       \
  X(Q2_K)                       \
  X(Q3_K)                       \
  X(Q4_K)                       \
  X(Q5_K)                       \
  X(Q6_K)                       \
  X(IQ2_XXS)                    \
  X(IQ2_XS)                     \
  X(IQ3_XXS)                    \
  X(IQ1_S)                      \
  X(IQ4_NL)                     \
  X(IQ3_S)                      \
  X(IQ2_S)                      \
  X(IQ4_XS)                     \
  X(IQ1_M)                      \
  X(TQ1_0)                      \
  X(TQ2_0)                      \
  X(MXFP4)                      \
  X(NVFP4)

namespace gguf {

enum Type : int {
#define GGUF_ENUMERATOR(name, id, role) name = id,
  GGUF_FOR_EACH_TYPE(GGUF_ENUMERATOR)
#undef GGUF_ENUMERATOR
};

}  // namespace gguf
