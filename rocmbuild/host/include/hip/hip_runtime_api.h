// The runtime calls that a launch needs, on one device which is the processor itself: memory is the process's own,
// every stream runs its work at once and in order, so each call has ended when it returns.
#pragma once

#include <hip/hip_common.h>
#include <hip/hip_vector_types.h>

typedef enum hipError_t {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorMemoryAllocation = 2,
    hipErrorNotInitialized = 3,
    hipErrorInitializationError = 3,
    hipErrorInvalidConfiguration = 9,
    hipErrorInvalidSymbol = 13,
    hipErrorInvalidDevicePointer = 17,
    hipErrorInvalidMemcpyDirection = 21,
    hipErrorInvalidDeviceFunction = 98,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorInvalidImage = 200,
    hipErrorInvalidContext = 201,
    hipErrorNoBinaryForGpu = 209,
    hipErrorInvalidHandle = 400,
    hipErrorInvalidResourceHandle = 400,
    hipErrorIllegalState = 401,
    hipErrorNotFound = 500,
    hipErrorNotReady = 600,
    hipErrorIllegalAddress = 700,
    hipErrorLaunchOutOfResources = 701,
    hipErrorLaunchTimeOut = 702,
    hipErrorPeerAccessAlreadyEnabled = 704,
    hipErrorAssert = 710,
    hipErrorLaunchFailure = 719,
    hipErrorNotSupported = 801,
    hipErrorStreamCaptureUnsupported = 900,
    hipErrorUnknown = 999
} hipError_t;

typedef enum hipMemcpyKind {
    hipMemcpyHostToHost = 0,
    hipMemcpyHostToDevice = 1,
    hipMemcpyDeviceToHost = 2,
    hipMemcpyDeviceToDevice = 3,
    hipMemcpyDefault = 4
} hipMemcpyKind;

// The numbers are this header's own: they never leave the library that is compiled against it.
typedef enum hipDeviceAttribute_t {
    hipDeviceAttributeComputeCapabilityMajor,
    hipDeviceAttributeComputeCapabilityMinor,
    hipDeviceAttributeCooperativeLaunch,
    hipDeviceAttributeIntegrated,
    hipDeviceAttributeL2CacheSize,
    hipDeviceAttributeMaxBlockDimX,
    hipDeviceAttributeMaxBlockDimY,
    hipDeviceAttributeMaxBlockDimZ,
    hipDeviceAttributeMaxBlocksPerMultiProcessor,
    hipDeviceAttributeMaxGridDimX,
    hipDeviceAttributeMaxGridDimY,
    hipDeviceAttributeMaxGridDimZ,
    hipDeviceAttributeMaxSharedMemoryPerBlock,
    hipDeviceAttributeMaxSharedMemoryPerMultiprocessor,
    hipDeviceAttributeMaxThreadsPerBlock,
    hipDeviceAttributeMaxThreadsPerMultiProcessor,
    hipDeviceAttributeMultiprocessorCount,
    hipDeviceAttributeSharedMemPerBlockOptin,
    hipDeviceAttributeSharedMemPerMultiprocessor,
    hipDeviceAttributeWarpSize
} hipDeviceAttribute_t;

typedef enum hipFuncAttribute {
    hipFuncAttributeMaxDynamicSharedMemorySize = 8,
    hipFuncAttributePreferredSharedMemoryCarveout = 9
} hipFuncAttribute;

typedef enum hipFuncCache_t {
    hipFuncCachePreferNone,
    hipFuncCachePreferShared,
    hipFuncCachePreferL1,
    hipFuncCachePreferEqual
} hipFuncCache_t;

typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;

#define hipStreamDefault 0x00
#define hipStreamNonBlocking 0x01
#define hipStreamLegacy ((hipStream_t)1)
#define hipStreamPerThread ((hipStream_t)2)
#define hipEventDefault 0x0
#define hipEventBlockingSync 0x1
#define hipEventDisableTiming 0x2
#define hipHostMallocDefault 0x0
#define HIP_SYMBOL(symbol) symbol

ROCMBUILD_HOST_API hipError_t hipGetLastError();
ROCMBUILD_HOST_API hipError_t hipPeekAtLastError();
ROCMBUILD_HOST_API const char* hipGetErrorName(hipError_t error);
ROCMBUILD_HOST_API const char* hipGetErrorString(hipError_t error);

ROCMBUILD_HOST_API hipError_t hipInit(unsigned flags);
ROCMBUILD_HOST_API hipError_t hipRuntimeGetVersion(int* version);
ROCMBUILD_HOST_API hipError_t hipDriverGetVersion(int* version);
ROCMBUILD_HOST_API hipError_t hipGetDevice(int* device);
ROCMBUILD_HOST_API hipError_t hipSetDevice(int device);
ROCMBUILD_HOST_API hipError_t hipGetDeviceCount(int* count);
ROCMBUILD_HOST_API hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device);
ROCMBUILD_HOST_API hipError_t hipDeviceSynchronize();

ROCMBUILD_HOST_API hipError_t hipStreamCreate(hipStream_t* stream);
ROCMBUILD_HOST_API hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags);
ROCMBUILD_HOST_API hipError_t hipStreamDestroy(hipStream_t stream);
ROCMBUILD_HOST_API hipError_t hipStreamSynchronize(hipStream_t stream);
ROCMBUILD_HOST_API hipError_t hipStreamQuery(hipStream_t stream);
ROCMBUILD_HOST_API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags = 0);
ROCMBUILD_HOST_API hipError_t hipEventCreate(hipEvent_t* event);
ROCMBUILD_HOST_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags);
ROCMBUILD_HOST_API hipError_t hipEventDestroy(hipEvent_t event);
ROCMBUILD_HOST_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream = nullptr);
ROCMBUILD_HOST_API hipError_t hipEventSynchronize(hipEvent_t event);
ROCMBUILD_HOST_API hipError_t hipEventQuery(hipEvent_t event);
ROCMBUILD_HOST_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop);

ROCMBUILD_HOST_API hipError_t hipMalloc(void** pointer, size_t size);
ROCMBUILD_HOST_API hipError_t hipFree(void* pointer);
ROCMBUILD_HOST_API hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind kind);
ROCMBUILD_HOST_API hipError_t hipMemcpyAsync(void* to, const void* from, size_t size, hipMemcpyKind kind,
                                             hipStream_t stream = nullptr);
ROCMBUILD_HOST_API hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                               size_t width, size_t height, hipMemcpyKind kind,
                                               hipStream_t stream = nullptr);
ROCMBUILD_HOST_API hipError_t hipMemset(void* to, int value, size_t size);
ROCMBUILD_HOST_API hipError_t hipMemsetAsync(void* to, int value, size_t size, hipStream_t stream = nullptr);
ROCMBUILD_HOST_API hipError_t hipFuncSetAttribute(const void* kernel, hipFuncAttribute attribute, int value);
ROCMBUILD_HOST_API hipError_t hipFuncSetCacheConfig(const void* kernel, hipFuncCache_t config);

template <class T>
inline hipError_t hipMalloc(T** pointer, size_t size) {
    return hipMalloc(reinterpret_cast<void**>(pointer), size);
}
inline hipError_t hipMallocAsync(void** pointer, size_t size, hipStream_t) { return hipMalloc(pointer, size); }
template <class T>
inline hipError_t hipMallocAsync(T** pointer, size_t size, hipStream_t) {
    return hipMalloc(reinterpret_cast<void**>(pointer), size);
}
template <class T>
inline hipError_t hipMallocManaged(T** pointer, size_t size, unsigned = 1) {
    return hipMalloc(reinterpret_cast<void**>(pointer), size);
}
template <class T>
inline hipError_t hipHostMalloc(T** pointer, size_t size, unsigned = hipHostMallocDefault) {
    return hipMalloc(reinterpret_cast<void**>(pointer), size);
}
inline hipError_t hipFreeAsync(void* pointer, hipStream_t) { return hipFree(pointer); }
inline hipError_t hipHostFree(void* pointer) { return hipFree(pointer); }
inline hipError_t hipMemcpyWithStream(void* to, const void* from, size_t size, hipMemcpyKind kind, hipStream_t stream) {
    return hipMemcpyAsync(to, from, size, kind, stream);
}
template <class T>
inline hipError_t hipMemcpyToSymbol(T& symbol, const void* from, size_t size, size_t offset = 0,
                                    hipMemcpyKind kind = hipMemcpyHostToDevice) {
    return hipMemcpy(const_cast<char*>(reinterpret_cast<const volatile char*>(&symbol)) + offset, from, size, kind);
}
template <class T>
inline hipError_t hipMemcpyFromSymbol(void* to, const T& symbol, size_t size, size_t offset = 0,
                                      hipMemcpyKind kind = hipMemcpyDeviceToHost) {
    return hipMemcpy(to, reinterpret_cast<const char*>(&symbol) + offset, size, kind);
}
template <class R, class... P>
inline hipError_t hipFuncSetAttribute(R (*kernel)(P...), hipFuncAttribute attribute, int value) {
    return hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class Kernel>
inline hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int block_size, size_t) {
    if (blocks == nullptr || block_size <= 0) return hipErrorInvalidValue;
    *blocks = block_size > 1024 ? 0 : 1;
    return hipSuccess;
}
