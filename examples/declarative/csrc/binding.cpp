// The operator, through torch's stable C ABI alone: one wheel for every Python and every torch since 2.10.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>

#include "scale.h"

#ifndef ROCMBUILD_PLATFORM_HOST
// Weak: a CPU build of torch, which lacks it, must be able to load this library too.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace {

using torch::stable::Tensor;

Tensor scale(const Tensor& x, double a) {
  if (x.scalar_type() != torch::headeronly::ScalarType::Float) throw std::runtime_error("scale: x must be float32");
  void* stream = nullptr;
#ifndef ROCMBUILD_PLATFORM_HOST
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  if (!aoti_torch_get_current_cuda_stream ||
      aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream) != AOTI_TORCH_SUCCESS)
    throw std::runtime_error("scale: torch has no GPU stream");
#endif
  const Tensor from = torch::stable::contiguous(x);
  Tensor y = torch::stable::empty_like(from);
  const int code = launch_scale(static_cast<float*>(y.mutable_data_ptr()), static_cast<const float*>(from.const_data_ptr()),
                                static_cast<float>(a), from.numel(), stream);
  if (code != 0) throw std::runtime_error("scale: the launch failed with code " + std::to_string(code));
  return y;
}

}  // namespace

// The library that is always there defines the operators, the others add what they can do.
#ifdef ROCMBUILD_DEFINE_SCHEMAS
STABLE_TORCH_LIBRARY(my_kernels, m) { m.def("scale(Tensor x, float a) -> Tensor"); }
#endif

#ifdef ROCMBUILD_PLATFORM_HOST
STABLE_TORCH_LIBRARY_IMPL(my_kernels, CPU, m) { m.impl("scale", TORCH_BOX(&scale)); }
#else
STABLE_TORCH_LIBRARY_IMPL(my_kernels, CUDA, m) { m.impl("scale", TORCH_BOX(&scale)); }
#endif
