// What llama.cpp's headers name of cuBLAS, which its decode product does not call: so the toolkit's compiler is enough.
#pragma once

typedef void* cublasHandle_t;
typedef enum {
  CUBLAS_STATUS_SUCCESS,
  CUBLAS_STATUS_NOT_INITIALIZED,
  CUBLAS_STATUS_ALLOC_FAILED,
  CUBLAS_STATUS_INVALID_VALUE,
  CUBLAS_STATUS_ARCH_MISMATCH,
  CUBLAS_STATUS_MAPPING_ERROR,
  CUBLAS_STATUS_EXECUTION_FAILED,
  CUBLAS_STATUS_INTERNAL_ERROR,
  CUBLAS_STATUS_NOT_SUPPORTED,
} cublasStatus_t;
typedef enum { CUBLAS_TENSOR_OP_MATH, CUBLAS_TF32_TENSOR_OP_MATH } cublasMath_t;

static inline const char* cublasGetStatusString(cublasStatus_t) { return ""; }
static inline cublasStatus_t cublasCreate(cublasHandle_t*) { return CUBLAS_STATUS_NOT_SUPPORTED; }
static inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_NOT_SUPPORTED; }
static inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_NOT_SUPPORTED; }
static inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_NOT_SUPPORTED; }
