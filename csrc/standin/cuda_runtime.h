// A stand-in for the part of the CUDA runtime that csrc/cuda uses, for tests on machines without a GPU.
//
// Device memory is shared memory of the host, a stream is a thread, and a kernel is a function that is called for
// each of its threads. It keeps the semantics that its users depend on: what is asynchronous and in which order, what
// other processes may open, what events mean, and which mistakes are errors. Its speed means nothing.
//
// Environment variables:
//   SOFTS_STANDIN_DEVICES: number of devices, 1 by default; 0 is a machine without a driver.
//   SOFTS_STANDIN_DELAY_US: everything in a stream waits for a random time up to this.
//   SOFTS_STANDIN_NO_IPC=1: memory and events of other processes cannot be opened.
//   SOFTS_STANDIN_NO_PEERS=1: no device can access the memory of another.
//   SOFTS_STANDIN_FALSE_PEERS=1: a device reports access to the memory of another process's device, and reads zeros.
//   SOFTS_STANDIN_NO_WORDS=1: streams cannot write words of the host's memory, or wait for them.
//   SOFTS_STANDIN_LATE_DEFAULT=1: the default stream is asynchronous, as it is in CUDA. Without it, it executes
//     everything at once, in the thread of the caller, as torch's operations on the stand-in's memory do.
//
// A stream takes 1024 pieces of work; then the next one blocks its caller until one is done. At the end of a process
// `exit` waits for all streams; `_exit` does not.
//
// Source of the semantics: CUDA Runtime API, sections "Device Management", "Stream Management", "Event Management",
// "Memory Management" and "Unified Addressing"; CUDA Driver API, section "Stream Memory Operations".
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

// --- The language of kernels ---

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 {
    std::uint32_t x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

template <class T>
T __ldcs(const T* address) {
    return *address;
}
inline float __uint_as_float(std::uint32_t bits) {
    return std::bit_cast<float>(bits);
}
inline std::uint32_t __float_as_uint(float value) {
    return std::bit_cast<std::uint32_t>(value);
}
inline float __double2float_rn(double value) {
    return static_cast<float>(value);
}

// Barrier of the threads of a block. Only for kernels that were launched with SOFTS_LAUNCH_TOGETHER.
void __syncthreads();

// --- The runtime ---

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidDevicePointer = 17,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorMapBufferObjectFailed = 205,
    cudaErrorPeerAccessUnsupported = 217,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorNotSupported = 801,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

using cudaStream_t = struct StandinStream*;
using cudaEvent_t = struct StandinEvent*;

struct cudaIpcMemHandle_t {
    char reserved[64];
};
struct cudaIpcEventHandle_t {
    char reserved[64];
};
struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    int multiProcessorCount;
};
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void* devicePointer;
    void* hostPointer;
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };

constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDisableTiming = 2;
constexpr unsigned cudaEventInterprocess = 4;
constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1;
constexpr unsigned cudaHostRegisterDefault = 0;
constexpr unsigned cudaHostRegisterMapped = 2;

#define CUDART_VERSION 13000
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
constexpr unsigned long long cudaEnableDefault = 0;
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status);

cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceSynchronize();

// Filled with 0xA5; CUDA leaves it undefined.
cudaError_t cudaMalloc(void** address, std::size_t bytes);
cudaError_t cudaFree(void* address);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address);
// Refuses allocations that CUDA would make as parts of a block of 2 MiB.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address);
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* address);
cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* address);
cudaError_t cudaHostGetDevicePointer(void** there, void* address, unsigned flags);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = nullptr);
// The first launch of a kernel that was not loaded before waits for all streams of the process, as CUDA's may.
struct cudaFuncAttributes {
    int numRegs;
};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t stream = nullptr);

// Only streams that the default stream does not wait for: so that one is like any other of its device.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event);
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle);
