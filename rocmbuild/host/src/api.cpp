// The runtime calls. Every call ends before it returns, so streams and events carry nothing but their times.

#include "state.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ihipStream_t {
    unsigned flags;
};

struct ihipEvent_t {
    bool recorded;
    timespec at;
};

namespace rocmbuild_host {
namespace {

// A key rather than thread_local, which is the kernels' shared memory here.
pthread_key_t error_key;
bool error_key_made;

__attribute__((constructor)) void make_key() { error_key_made = pthread_key_create(&error_key, nullptr) == 0; }
__attribute__((destructor)) void drop_key() {
    if (error_key_made) pthread_key_delete(error_key);
    error_key_made = false;
}

hipError_t last_error() {
    if (!error_key_made) return hipSuccess;
    return hipError_t(reinterpret_cast<intptr_t>(pthread_getspecific(error_key)));
}

/// An error is also the thread's last one; a success leaves that as it was, as HIP 7 does.
hipError_t answer(hipError_t error) {
    if (error != hipSuccess && error != hipErrorNotReady) set_last_error(error);
    return error;
}

hipError_t want(bool good, hipError_t otherwise = hipErrorInvalidValue) { return answer(good ? hipSuccess : otherwise); }

struct ErrorText {
    hipError_t error;
    const char* name;
    const char* text;
};

const ErrorText error_texts[] = {
    {hipSuccess, "hipSuccess", "no error"},
    {hipErrorInvalidValue, "hipErrorInvalidValue", "invalid argument"},
    {hipErrorOutOfMemory, "hipErrorOutOfMemory", "out of memory"},
    {hipErrorNotInitialized, "hipErrorNotInitialized", "initialization error"},
    {hipErrorInvalidConfiguration, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {hipErrorInvalidSymbol, "hipErrorInvalidSymbol", "invalid device symbol"},
    {hipErrorInvalidDevicePointer, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {hipErrorInvalidMemcpyDirection, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {hipErrorInvalidDeviceFunction, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {hipErrorNoDevice, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {hipErrorInvalidDevice, "hipErrorInvalidDevice", "invalid device ordinal"},
    {hipErrorInvalidImage, "hipErrorInvalidImage", "device kernel image is invalid"},
    {hipErrorInvalidContext, "hipErrorInvalidContext", "invalid device context"},
    {hipErrorNoBinaryForGpu, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {hipErrorInvalidHandle, "hipErrorInvalidHandle", "invalid resource handle"},
    {hipErrorIllegalState, "hipErrorIllegalState", "the operation cannot be performed in the present state"},
    {hipErrorNotFound, "hipErrorNotFound", "named symbol not found"},
    {hipErrorNotReady, "hipErrorNotReady", "device not ready"},
    {hipErrorIllegalAddress, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {hipErrorLaunchOutOfResources, "hipErrorLaunchOutOfResources", "too many resources requested for launch"},
    {hipErrorLaunchTimeOut, "hipErrorLaunchTimeOut", "the launch timed out and was terminated"},
    {hipErrorPeerAccessAlreadyEnabled, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {hipErrorAssert, "hipErrorAssert", "device-side assert triggered"},
    {hipErrorLaunchFailure, "hipErrorLaunchFailure", "unspecified launch failure"},
    {hipErrorNotSupported, "hipErrorNotSupported", "operation not supported"},
    {hipErrorStreamCaptureUnsupported, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {hipErrorUnknown, "hipErrorUnknown", "unknown error"},
};

const ErrorText& text_of(hipError_t error) {
    for (const ErrorText& entry : error_texts)
        if (entry.error == error) return entry;
    return error_texts[sizeof(error_texts) / sizeof(*error_texts) - 1];
}

int attribute(hipDeviceAttribute_t which) {
    switch (which) {
        case hipDeviceAttributeComputeCapabilityMajor:
        case hipDeviceAttributeComputeCapabilityMinor:
        case hipDeviceAttributeCooperativeLaunch:
            return 0;
        case hipDeviceAttributeIntegrated:
            return 1;
        case hipDeviceAttributeL2CacheSize:
            return 1 << 20;
        case hipDeviceAttributeMaxBlockDimX:
        case hipDeviceAttributeMaxBlockDimY:
        case hipDeviceAttributeMaxBlockDimZ:
        case hipDeviceAttributeMaxThreadsPerBlock:
        case hipDeviceAttributeMaxThreadsPerMultiProcessor:
            return 1024;
        case hipDeviceAttributeMaxBlocksPerMultiProcessor:
            return 1;
        case hipDeviceAttributeMaxGridDimX:
            return 0x7fffffff;
        case hipDeviceAttributeMaxGridDimY:
        case hipDeviceAttributeMaxGridDimZ:
            return 65535;
        case hipDeviceAttributeMaxSharedMemoryPerBlock:
        case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
        case hipDeviceAttributeSharedMemPerBlockOptin:
        case hipDeviceAttributeSharedMemPerMultiprocessor:
            return int(dynamic_shared_limit);
        case hipDeviceAttributeMultiprocessorCount: {
            cpu_set_t set;
            CPU_ZERO(&set);
            return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
        }
        case hipDeviceAttributeWarpSize:
            return int(wave_size);
    }
    return -1;
}

}  // namespace

void set_last_error(hipError_t error) {
    if (error_key_made) pthread_setspecific(error_key, reinterpret_cast<void*>(intptr_t(error)));
}

}  // namespace rocmbuild_host

using rocmbuild_host::answer;
using rocmbuild_host::want;

hipError_t hipGetLastError() {
    const hipError_t error = rocmbuild_host::last_error();
    rocmbuild_host::set_last_error(hipSuccess);
    return error;
}
hipError_t hipPeekAtLastError() { return rocmbuild_host::last_error(); }
const char* hipGetErrorName(hipError_t error) { return rocmbuild_host::text_of(error).name; }
const char* hipGetErrorString(hipError_t error) { return rocmbuild_host::text_of(error).text; }

hipError_t hipInit(unsigned flags) { return want(flags == 0); }
hipError_t hipRuntimeGetVersion(int* version) {
    if (version) *version = HIP_VERSION;
    return want(version != nullptr);
}
hipError_t hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }
hipError_t hipGetDevice(int* device) {
    if (device) *device = 0;
    return want(device != nullptr);
}
hipError_t hipSetDevice(int device) { return want(device == 0, hipErrorInvalidDevice); }
hipError_t hipGetDeviceCount(int* count) {
    if (count) *count = 1;
    return want(count != nullptr);
}
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
    if (!value) return answer(hipErrorInvalidValue);
    if (device != 0) return answer(hipErrorInvalidDevice);
    const int found = rocmbuild_host::attribute(attribute);
    if (found < 0) return answer(hipErrorInvalidValue);
    *value = found;
    return hipSuccess;
}
hipError_t hipDeviceSynchronize() { return hipSuccess; }

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
    if (!stream || (flags != hipStreamDefault && flags != hipStreamNonBlocking)) return answer(hipErrorInvalidValue);
    *stream = static_cast<hipStream_t>(malloc(sizeof(ihipStream_t)));
    if (*stream) (*stream)->flags = flags;
    return want(*stream != nullptr, hipErrorOutOfMemory);
}
hipError_t hipStreamCreate(hipStream_t* stream) { return hipStreamCreateWithFlags(stream, hipStreamDefault); }
hipError_t hipStreamDestroy(hipStream_t stream) {
    if (!stream || stream == hipStreamLegacy || stream == hipStreamPerThread) return answer(hipErrorInvalidHandle);
    free(stream);
    return hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
hipError_t hipStreamQuery(hipStream_t) { return hipSuccess; }
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t event, unsigned) { return want(event != nullptr, hipErrorInvalidHandle); }

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
    if (!event) return answer(hipErrorInvalidValue);
    *event = static_cast<hipEvent_t>(calloc(1, sizeof(ihipEvent_t)));
    return want(*event != nullptr, hipErrorOutOfMemory);
}
hipError_t hipEventCreate(hipEvent_t* event) { return hipEventCreateWithFlags(event, hipEventDefault); }
hipError_t hipEventDestroy(hipEvent_t event) {
    free(event);
    return want(event != nullptr, hipErrorInvalidHandle);
}
hipError_t hipEventRecord(hipEvent_t event, hipStream_t) {
    if (!event) return answer(hipErrorInvalidHandle);
    event->recorded = true;
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    return hipSuccess;
}
hipError_t hipEventSynchronize(hipEvent_t event) { return want(event != nullptr, hipErrorInvalidHandle); }
hipError_t hipEventQuery(hipEvent_t event) { return want(event != nullptr, hipErrorInvalidHandle); }
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
    if (!milliseconds) return answer(hipErrorInvalidValue);
    if (!start || !stop || !start->recorded || !stop->recorded) return answer(hipErrorInvalidHandle);
    *milliseconds = float(double(stop->at.tv_sec - start->at.tv_sec) * 1e3 + double(stop->at.tv_nsec - start->at.tv_nsec) * 1e-6);
    return hipSuccess;
}

hipError_t hipMalloc(void** pointer, size_t size) {
    if (!pointer) return answer(hipErrorInvalidValue);
    *pointer = nullptr;
    if (size == 0) return hipSuccess;
    return want(posix_memalign(pointer, 256, size) == 0, hipErrorOutOfMemory);
}
hipError_t hipFree(void* pointer) {
    free(pointer);
    return hipSuccess;
}
hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind kind) {
    if (size == 0) return hipSuccess;
    if (!to || !from) return answer(hipErrorInvalidValue);
    if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault) return answer(hipErrorInvalidMemcpyDirection);
    memmove(to, from, size);
    return hipSuccess;
}
hipError_t hipMemcpyAsync(void* to, const void* from, size_t size, hipMemcpyKind kind, hipStream_t) {
    return hipMemcpy(to, from, size, kind);
}
hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                            hipMemcpyKind kind, hipStream_t) {
    if (width > to_pitch || width > from_pitch) return answer(hipErrorInvalidValue);
    for (size_t row = 0; row < height; ++row) {
        const hipError_t error =
            hipMemcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, kind);
        if (error != hipSuccess) return error;
    }
    return hipSuccess;
}
hipError_t hipMemset(void* to, int value, size_t size) {
    if (size == 0) return hipSuccess;
    if (!to) return answer(hipErrorInvalidValue);
    memset(to, value, size);
    return hipSuccess;
}
hipError_t hipMemsetAsync(void* to, int value, size_t size, hipStream_t) { return hipMemset(to, value, size); }
hipError_t hipFuncSetAttribute(const void* kernel, hipFuncAttribute attribute, int value) {
    if (!kernel) return answer(hipErrorInvalidDeviceFunction);
    if (attribute == hipFuncAttributeMaxDynamicSharedMemorySize)
        return want(value >= 0 && size_t(value) <= rocmbuild_host::dynamic_shared_limit);
    return want(attribute == hipFuncAttributePreferredSharedMemoryCarveout);
}
hipError_t hipFuncSetCacheConfig(const void* kernel, hipFuncCache_t) { return want(kernel != nullptr, hipErrorInvalidDeviceFunction); }
