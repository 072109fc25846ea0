// Force-included in every device compilation. The builtin exists only where a wave has 32 lanes, so any
// wave64 compilation (a CDNA or GCN target, -mwavefrontsize64 in any spelling) fails with
// "needs target feature wavefrontsize32". `used` emits the function although nothing calls it; internal
// linkage keeps -fgpu-rdc builds free of double definitions.
#pragma once
#if defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__
namespace {
__attribute__((device, used)) inline unsigned rocmbuild_requires_wave32() {
    return __builtin_amdgcn_ballot_w32(true);
}
}  // namespace
#endif
#ifdef ROCMBUILD_TOOLCHAIN  // becomes part of the preprocessed text: a compiler cache does not know the device libraries
#define ROCMBUILD_TEXT_OF(x) #x
#define ROCMBUILD_TEXT(x) ROCMBUILD_TEXT_OF(x)
static_assert(sizeof(ROCMBUILD_TEXT(ROCMBUILD_TOOLCHAIN)) > 1, "the identity of the toolchain");
#endif
