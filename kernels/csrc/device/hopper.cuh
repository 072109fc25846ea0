// NVIDIA's asynchronous copies, barriers in shared memory, integer matrix instruction and dependent launches (sm_90).
//
// Every function here is empty elsewhere: the kernels that call them are launched on such GPUs only.
#pragma once

#include "device/platform.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GGUF_HOPPER_DEVICE 1
#endif

namespace gguf {

// A barrier that counts arrivals of threads and bytes of copies.
struct Barrier {
  uint64_t state;

#if defined(GGUF_HOPPER_DEVICE)
  __device__ __forceinline__ uint32_t address() { return static_cast<uint32_t>(__cvta_generic_to_shared(&state)); }
  __device__ __forceinline__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  // And the copies on which it waits from now on have so many bytes.
  __device__ __forceinline__ void arrive(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  // Returns once the phase of this parity (0, 1, 0, ...) is complete.
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  // Starts a copy of `bytes`, all three multiples of 16, which counts here when it is complete.
  __device__ __forceinline__ void copy(void* shared, const void* global, uint32_t bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(global), "r"(bytes), "r"(address())
                 : "memory");
  }
#else
  __device__ __forceinline__ void init(uint32_t) {}
  __device__ __forceinline__ void arrive(uint32_t) {}
  __device__ __forceinline__ void arrive() {}
  __device__ __forceinline__ void wait(uint32_t) {}
  __device__ __forceinline__ void copy(void*, const void*, uint32_t) {}
#endif
};

// After the barriers have been initialised, before the other threads and copies use them.
static __device__ __forceinline__ void publish_barriers() {
#if defined(GGUF_HOPPER_DEVICE)
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Until the kernels before this one in the stream are complete, where it was launched to start before that.
static __device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(GGUF_HOPPER_DEVICE)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// From here on the next kernel may start, if it was launched to.
static __device__ __forceinline__ void let_next_kernel_start() {
#if defined(GGUF_HOPPER_DEVICE)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// d += A B for A of 16 x 32 and B of 32 x 8 signed bytes. Lane 4 g + t holds of A bytes 4 t .. 4 t + 3 of both halves
// of k (a[0], a[2]) of row g, and (a[1], a[3]) of row g + 8; of B the same bytes of column g; of d columns 2 t and 2 t
// + 1 of row g, then of row g + 8.
static __device__ __forceinline__ void multiply_tile(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                     uint32_t b0, uint32_t b1) {
#if defined(GGUF_HOPPER_DEVICE)
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  (void)d, (void)a0, (void)a1, (void)a2, (void)a3, (void)b0, (void)b1;
#endif
}

// Until kThreads threads of the block, whole warps, are here. There are barriers 1 to 15 beside that of all threads.
template <int kNumber, int kThreads>
static __device__ __forceinline__ void meet() {
#if defined(GGUF_HOPPER_DEVICE)
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
#endif
}

}  // namespace gguf
