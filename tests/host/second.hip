// A second library of the same names, with default visibility: what each calls must still be its own.
#include <hip/hip_runtime.h>

#include "check.h"

static int counter;
__global__ void nothing() { atomicAdd(&counter, 1000); }

TEST(second_library) {
    int failures = 0;
    hipLaunchKernelGGL(nothing, dim3(0), dim3(1), 0, 0);
    CHECK(hipPeekAtLastError() == hipErrorInvalidConfiguration);
    return failures;
}
TEST(second_library_again) {
    int failures = 0;
    CHECK(hipGetLastError() == hipErrorInvalidConfiguration);
    hipLaunchKernelGGL(nothing, dim3(5), dim3(7), 0, 0);
    CHECK_AT(0, counter, 35000);
    return failures;
}
