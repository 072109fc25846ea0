// llama.cpp's decode products of one type, called as its backend does: the activations to q8_1, then mmvq.
//
// Built from the sources that the package freetoken carries, which have to be on the include path; mmvq_kernels.cuh is
// their mmvq.cu up to its first entry point (bench writes it), since the entry points would triple what is compiled.
#include "llama_host.cuh"
#include "mmvq_kernels.cuh"
#include "quantize.cu"

namespace {

int64_t padded_blocks(int64_t cols) { return GGML_PAD(cols, MATRIX_ROW_PADDING) / QK8_1; }

void quantise(const void* x, void* scratch, int64_t cols, int64_t vectors, int64_t slots, cudaStream_t stream) {
  quantize_row_q8_1_cuda(static_cast<const nv_bfloat16*>(x), nullptr, scratch, BENCH_TYPE, cols, cols, cols * slots,
                         cols * slots * vectors, padded_blocks(cols) * QK8_1, slots, vectors, 1, stream);
}

}  // namespace

// Bytes of the activations of some vectors in q8_1, padded as mmvq wants them.
extern "C" int64_t bench_llama_scratch(int64_t vectors, int64_t cols) {
  return vectors * padded_blocks(cols) * static_cast<int64_t>(sizeof(block_q8_1));
}

// out [vectors, rows] = x [vectors, cols] times the transpose of the weights, x and out bfloat16, 1 to 8 vectors.
extern "C" int bench_llama(const void* weight, const void* x, void* out, void* scratch, int64_t vectors, int64_t rows,
                           int64_t cols, void* stream_of_torch) {
  return guarded([&] {
    const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_torch);
    const int y_stride = static_cast<int>(padded_blocks(cols));
    const int n = static_cast<int>(vectors);
    const int m = static_cast<int>(rows);
    const int w_stride = static_cast<int>(cols / BENCH_BLOCK);
    quantise(x, scratch, cols, 1, vectors, stream);
    mul_mat_vec_q_switch_ncols_dst<BENCH_TYPE>(
        weight, scratch, nullptr, ggml_cuda_mm_fusion_args_device{}, static_cast<nv_bfloat16*>(out),
        static_cast<int>(cols), m, n, w_stride, y_stride, m, 1, 1, 1, w_stride * m, y_stride * n, m * n, 1, 1,
        w_stride * m, y_stride * n, m * n, 0, stream);
  });
}

// The most tokens for which llama.cpp takes mmvq to multiply by expert.
extern "C" int bench_llama_most_tokens() {
  const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
  return std::min(MMVQ_MAX_BATCH_SIZE, get_mmvq_mmid_max_batch(BENCH_TYPE, cc));
}

// out [tokens, top_k, rows]: row (t, j) is x [tokens, slots, cols] at (t, j modulo slots) times the transpose of expert
// ids [t, j] of weight [experts, ...]; slots is 1 or top_k. expert_blocks: from an expert to the next. gate: null, or
// weights laid out alike whose products go through SiLU and are multiplied in.
extern "C" int bench_llama_id(const void* weight, const void* gate, const void* x, const int32_t* ids, void* out,
                              void* scratch, int64_t tokens, int64_t top_k, int64_t slots, int64_t experts,
                              int64_t expert_blocks, int64_t rows, int64_t cols, void* stream_of_torch) {
  return guarded([&] {
    const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_torch);
    const int y_stride = static_cast<int>(padded_blocks(cols));
    const int y_token = static_cast<int>(slots) * y_stride;
    const int m = static_cast<int>(rows);
    const int k = static_cast<int>(top_k);
    const int e_stride = static_cast<int>(expert_blocks);
    ggml_cuda_mm_fusion_args_device fusion{};
    fusion.gate = gate;
    fusion.glu_op = GGML_GLU_OP_SWIGLU;
    quantise(x, scratch, cols, tokens, slots, stream);
    mul_mat_vec_q_switch_ncols_dst<BENCH_TYPE>(
        weight, scratch, ids, fusion, static_cast<nv_bfloat16*>(out), static_cast<int>(cols), m,
        static_cast<int>(tokens), static_cast<int>(cols / BENCH_BLOCK), y_token, m * k, static_cast<int>(experts),
        static_cast<int>(slots), k, e_stride, y_stride, m, 1, 1, static_cast<int>(expert_blocks * experts),
        y_token * static_cast<int>(tokens), m * k * static_cast<int>(tokens), k, stream);
  });
}
