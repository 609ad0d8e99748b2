#include <cstdio>
#include <cstdlib>
#include <string>

#include "settings.hpp"

namespace standin {
namespace {

thread_local cudaError_t last = cudaSuccess;

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

bool is_device(int index) {
    return 0 <= index && index < settings().devices;
}

}  // namespace

const Settings& settings() {
    static const Settings found{number("SOFTS_STANDIN_DEVICES", 1),          number("SOFTS_STANDIN_DELAY_US", 0),
                                number("SOFTS_STANDIN_NO_IPC", 0) == 0,      number("SOFTS_STANDIN_NO_PEERS", 0) == 0,
                                number("SOFTS_STANDIN_FALSE_PEERS", 0) != 0, number("SOFTS_STANDIN_NO_WORDS", 0) == 0,
                                number("SOFTS_STANDIN_LATE_DEFAULT", 0) != 0};
    return found;
}

cudaError_t failed(cudaError_t error) {
    return last = error;
}

}  // namespace standin

using standin::failed;
using standin::settings;

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "cudaSuccess";
        case cudaErrorInvalidValue:
            return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation:
            return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidDevicePointer:
            return "cudaErrorInvalidDevicePointer";
        case cudaErrorInsufficientDriver:
            return "cudaErrorInsufficientDriver";
        case cudaErrorNoDevice:
            return "cudaErrorNoDevice";
        case cudaErrorInvalidDevice:
            return "cudaErrorInvalidDevice";
        case cudaErrorDeviceUninitialized:
            return "cudaErrorDeviceUninitialized";
        case cudaErrorMapBufferObjectFailed:
            return "cudaErrorMapBufferObjectFailed";
        case cudaErrorPeerAccessUnsupported:
            return "cudaErrorPeerAccessUnsupported";
        case cudaErrorInvalidResourceHandle:
            return "cudaErrorInvalidResourceHandle";
        case cudaErrorNotReady:
            return "cudaErrorNotReady";
        case cudaErrorHostMemoryAlreadyRegistered:
            return "cudaErrorHostMemoryAlreadyRegistered";
        case cudaErrorHostMemoryNotRegistered:
            return "cudaErrorHostMemoryNotRegistered";
        case cudaErrorNotSupported:
            return "cudaErrorNotSupported";
    }
    return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t) {
    return "said by the stand-in for CUDA";
}

cudaError_t cudaGetLastError() {
    const auto error = standin::last;
    standin::last = cudaSuccess;
    return error;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = settings().devices;
    return *count > 0 ? cudaSuccess : failed(cudaErrorInsufficientDriver);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (!standin::is_device(device)) return failed(cudaErrorInvalidDevice);
    std::snprintf(properties->name, sizeof properties->name, "stand-in %d", device);
    properties->uuid = {"stand-in"};
    properties->uuid.bytes[15] = static_cast<char>(device);
    properties->multiProcessorCount = 2;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    if (!standin::is_device(device) || !standin::is_device(peer)) return failed(cudaErrorInvalidDevice);
    *can = device != peer && settings().peers;
    return cudaSuccess;
}
