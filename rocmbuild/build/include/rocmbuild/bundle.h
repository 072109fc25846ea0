// Force-included where a host object takes in its device code. A compiler cache sees neither the bundle nor, where it
// looks at preprocessed text alone, a macro that nothing uses: this makes both digests part of that text.
#pragma once
#define ROCMBUILD_TEXT_OF(x) #x
#define ROCMBUILD_TEXT(x) ROCMBUILD_TEXT_OF(x)
static_assert(sizeof(ROCMBUILD_TEXT(ROCMBUILD_BUNDLE_DIGEST)) == 65, "the SHA-256 of the bundle");
static_assert(sizeof(ROCMBUILD_TEXT(ROCMBUILD_TOOLCHAIN)) > 1, "the identity of the toolchain");
