// Stands in for HIP's header where kernels are compiled for the processor: qualifiers, the built-in variables, launches.
#pragma once

#include <assert.h>
#include <math.h>
#include <memory>  // before __noinline__ becomes a macro: the library writes that word inside its own attributes
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hip/hip_runtime_api.h>
#include <rocmbuild/host/intrinsics.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#if !defined(__noinline__)
#define __noinline__ __attribute__((noinline))
#endif
#define __align__(n) __attribute__((aligned(n)))

// Static shared memory: one copy a worker thread, shared by the lanes of the block that it runs.
#define __shared__ thread_local
// Dynamic shared memory. `type` may begin with an alignment, which a member may carry and a type's name may not.
#define HIP_DYNAMIC_SHARED(type, name)                                                     \
    struct rocmbuild_host_shared_##name {                                                  \
        type element;                                                                      \
    };                                                                                     \
    auto* const name = static_cast<decltype(rocmbuild_host_shared_##name::element)*>(      \
        ::rocmbuild_host::dynamic_shared());
#define HIP_DYNAMIC_SHARED_ATTRIBUTE

#define threadIdx (::rocmbuild_host::here().thread)
#define blockIdx (::rocmbuild_host::here().block->index)
#define blockDim (::rocmbuild_host::here().block->block_dim)
#define gridDim (::rocmbuild_host::here().block->grid_dim)
#define hipThreadIdx_x (threadIdx.x)
#define hipThreadIdx_y (threadIdx.y)
#define hipThreadIdx_z (threadIdx.z)
#define hipBlockIdx_x (blockIdx.x)
#define hipBlockIdx_y (blockIdx.y)
#define hipBlockIdx_z (blockIdx.z)
#define hipBlockDim_x (blockDim.x)
#define hipBlockDim_y (blockDim.y)
#define hipBlockDim_z (blockDim.z)
#define hipGridDim_x (gridDim.x)
#define hipGridDim_y (gridDim.y)
#define hipGridDim_z (gridDim.z)

#define HIP_KERNEL_NAME(...) __VA_ARGS__

// The lambda makes `kernel(arguments)` an ordinary call: a template may leave its parameters to be deduced.
#define hipLaunchKernelGGL(kernel, ...)                                                                             \
    ::rocmbuild_host::launch(                                                                                       \
        #kernel, [&](auto&... rocmbuild_host_arguments) { (kernel)(rocmbuild_host_arguments...); }, __VA_ARGS__)

namespace rocmbuild_host {
template <class... P, size_t... I>
void launch_pointer(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments, size_t shared, hipStream_t stream,
                    std::index_sequence<I...>) {
    auto lane = [&]() { kernel(*static_cast<typename std::remove_reference<P>::type*>(arguments[I])...); };
    launch_lanes(
        "a kernel given by its address", [](void* closure) { (*static_cast<decltype(lane)*>(closure))(); }, &lane, grid,
        block, shared, stream);
}
}  // namespace rocmbuild_host

/// The typed form alone: from an untyped address the arguments cannot be told.
template <class... P>
inline hipError_t hipLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments, size_t shared,
                                  hipStream_t stream) {
    rocmbuild_host::launch_pointer(kernel, grid, block, arguments, shared, stream, std::index_sequence_for<P...>{});
    return hipPeekAtLastError();
}
