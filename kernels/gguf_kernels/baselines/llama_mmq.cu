// llama.cpp's products with many vectors of one type, plain and by expert, called as its backend does.
//
// Built from the sources that the package freetoken carries, which have to be on the include path; mmq_entry.cuh is
// their mmq.cu without the switch over all types (bench writes it), which has the one case here.
#include "llama_host.cuh"

#include "mmid.cu"
#include "mmq.cuh"
#include "quantize.cu"

template void mul_mat_q_case<BENCH_TYPE, GGML_PREC_Q8>(ggml_backend_cuda_context&, const mmq_args&, cudaStream_t);

static void ggml_cuda_mul_mat_q_switch_type(ggml_backend_cuda_context& context, const mmq_args& args,
                                            cudaStream_t stream, ggml_prec) {
  mul_mat_q_case<BENCH_TYPE, GGML_PREC_Q8>(context, args, stream);
}

#include "mmq_entry.cuh"

ggml_backend_buffer_usage ggml_backend_buffer_get_usage(ggml_backend_buffer_t) {
  return GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

// What is asked only of buffers of another usage.
size_t ggml_nbytes(const ggml_tensor*) { return 0; }
size_t ggml_backend_buffer_get_alloc_size(ggml_backend_buffer_t, const ggml_tensor*) { return 0; }
bool ggml_is_contiguously_allocated(const ggml_tensor*) { return true; }

namespace {

// Scratch of one call, from the front of what the caller gave.
struct Arena : ggml_cuda_pool {
  char* at = nullptr;
  char* end = nullptr;

  void* alloc(size_t size, size_t* actual) override {
    *actual = GGML_PAD(size, size_t{256});
    if (*actual > static_cast<size_t>(end - at)) throw std::runtime_error("the scratch is too small");
    void* got = at;
    at += *actual;
    return got;
  }

  void free(void*, size_t) override {}
};

Arena* arena = nullptr;

ggml_backend_cuda_context& context_of(void* stream, void* scratch, int64_t bytes) {
  const int device = ggml_cuda_get_device();
  static ggml_backend_cuda_context context(device);
  // A null stream would make it one of its own.
  context.streams[device][0] = stream == nullptr ? cudaStreamLegacy : static_cast<cudaStream_t>(stream);
  context.pool(device);
  arena->at = static_cast<char*>(scratch);
  arena->end = arena->at + bytes;
  return context;
}

ggml_tensor described(ggml_type type, const void* data, int64_t row_bytes, int64_t n0, int64_t n1, int64_t n2,
                      int64_t plane_bytes) {
  ggml_tensor tensor{};
  tensor.type = type;
  tensor.data = const_cast<void*>(data);
  const int64_t ne[] = {n0, n1, n2, 1};
  const int64_t nb[] = {static_cast<int64_t>(ggml_type_size(type)), row_bytes, plane_bytes, plane_bytes * n2};
  for (int i = 0; i < 4; ++i) {
    tensor.ne[i] = ne[i];
    tensor.nb[i] = static_cast<size_t>(nb[i]);
  }
  return tensor;
}

}  // namespace

ggml_backend_cuda_context::~ggml_backend_cuda_context() {}

std::unique_ptr<ggml_cuda_pool> ggml_backend_cuda_context::new_pool_for_device(int, int) {
  auto made = std::make_unique<Arena>();
  arena = made.get();
  return made;
}

// What follows gate and up where llama.cpp does not fuse them: the gate's SiLU times up, of rows that hold both.
__global__ void swiglu(const nv_bfloat16* both, nv_bfloat16* out, int rows) {
  const int64_t at = blockIdx.x;
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < rows; i += gridDim.y * blockDim.x) {
    const float gate = __bfloat162float(both[at * 2 * rows + i]);
    const float up = __bfloat162float(both[at * 2 * rows + rows + i]);
    out[at * rows + i] = __float2bfloat16(gate / (1.0f + __expf(-gate)) * up);
  }
}

// Enough for a call with that many results of that many rows: activations, results in float, partial sums, routing.
extern "C" int64_t bench_llama_mmq_scratch(int64_t results, int64_t rows, int64_t cols, int64_t experts) {
  const int64_t blocks = (results + 128) * (GGML_PAD(cols, MATRIX_ROW_PADDING) / QK8_1);
  const int64_t partial = 4 * 128 * 128 * static_cast<int64_t>(ggml_cuda_info().devices[ggml_cuda_get_device()].nsm);
  return blocks * static_cast<int64_t>(sizeof(block_q8_1)) + 4 * results * rows + partial + 32 * (results + experts) +
         (1 << 20);
}

// As bench_llama.
extern "C" int bench_llama_mmq(const void* weight, const void* x, void* out, void* scratch, int64_t bytes,
                               int64_t vectors, int64_t rows, int64_t cols, void* stream) {
  return guarded([&] {
    const int64_t row_bytes = cols / BENCH_BLOCK * BENCH_BYTES;
    const ggml_tensor src0 = described(BENCH_TYPE, weight, row_bytes, cols, rows, 1, row_bytes * rows);
    const ggml_tensor src1 = described(GGML_TYPE_BF16, x, 2 * cols, cols, vectors, 1, 2 * cols * vectors);
    ggml_tensor dst = described(GGML_TYPE_BF16, out, 2 * rows, rows, vectors, 1, 2 * rows * vectors);
    ggml_cuda_mul_mat_q(context_of(stream, scratch, bytes), &src0, &src1, nullptr, &dst);
  });
}

// As bench_llama_id without gate, for any number of tokens.
extern "C" int bench_llama_mmq_id(const void* weight, const void* x, const int32_t* ids, void* out, void* scratch,
                                  int64_t bytes, int64_t tokens, int64_t top_k, int64_t slots, int64_t experts,
                                  int64_t expert_blocks, int64_t rows, int64_t cols, void* stream) {
  return guarded([&] {
    const int64_t row_bytes = cols / BENCH_BLOCK * BENCH_BYTES;
    const ggml_tensor src0 =
        described(BENCH_TYPE, weight, row_bytes, cols, rows, experts, expert_blocks * int64_t{BENCH_BYTES});
    const ggml_tensor src1 = described(GGML_TYPE_BF16, x, 2 * cols, cols, slots, tokens, 2 * cols * slots);
    const ggml_tensor routing = described(GGML_TYPE_I32, ids, 4 * top_k, top_k, tokens, 1, 4 * top_k * tokens);
    ggml_tensor dst = described(GGML_TYPE_BF16, out, 2 * rows, rows, top_k, tokens, 2 * rows * top_k);
    ggml_cuda_mul_mat_q(context_of(stream, scratch, bytes), &src0, &src1, &routing, &dst, 0);
  });
}

// out [results, rows] from both [results, 2 * rows], gate and up.
extern "C" int bench_llama_swiglu(const void* both, void* out, int64_t results, int64_t rows, void* stream) {
  const dim3 blocks(static_cast<unsigned>(results), static_cast<unsigned>((rows + 255) / 256));
  swiglu<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const nv_bfloat16*>(both), static_cast<nv_bfloat16*>(out), static_cast<int>(rows));
  return static_cast<int>(cudaGetLastError());
}
