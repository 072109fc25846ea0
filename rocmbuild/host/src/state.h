// What the two halves of the runtime share.
#pragma once

#include <hip/hip_runtime_api.h>

namespace rocmbuild_host {
/// The calling thread's last error; hipSuccess clears it.
ROCMBUILD_HOST_API void set_last_error(hipError_t error);
}  // namespace rocmbuild_host
