#include "device.hpp"

#include <cuda_runtime.h>

#include <cstring>

#include "check.hpp"
#include "on_device.hpp"

namespace softs::cuda {
namespace {

cudaStream_t stream_of(StreamHandle handle) {
    return reinterpret_cast<cudaStream_t>(handle);
}

cudaDeviceProp properties_of(int device) {
    cudaDeviceProp properties{};
    SOFTS_CHECK(cudaGetDeviceProperties(&properties, device));
    return properties;
}

// cudaMalloc makes smaller allocations as parts of a block of this size, and a handle opens the whole block: with it
// memory of other owners in this process.
constexpr std::uint64_t shared_granularity = 2ull << 20;

template <class T>
T as_cuda(const Handle& handle) {
    static_assert(sizeof(T) == sizeof(Handle));
    T result;
    std::memcpy(&result, handle.data(), sizeof result);
    return result;
}

// Calls what releases something of a device, whatever state the device is in.
template <class Release>
void release_on(int device, Release release) noexcept {
    try {
        const OnDevice here(device);
        (void)release();
    } catch (const Error&) {
        // Without its context there is nothing to release.
    }
}

}  // namespace

int n_devices() noexcept {
    int count = 0;
    const auto error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    return error == cudaSuccess ? count : -static_cast<int>(error);
}

std::optional<int> runtime_version() noexcept {
    int version = 0;
    (void)cudaRuntimeGetVersion(&version);
    return version;
}

std::string device_name(int device) {
    return properties_of(device).name;
}

std::string device_id(int device) {
    const auto uuid = properties_of(device).uuid;
    std::string text;
    for (const char byte : uuid.bytes) {
        constexpr char digits[] = "0123456789abcdef";
        text += digits[static_cast<unsigned char>(byte) >> 4];
        text += digits[static_cast<unsigned char>(byte) & 15];
    }
    return text;
}

std::optional<int> device_of(const void* address) {
    cudaPointerAttributes attributes{};
    SOFTS_CHECK(cudaPointerGetAttributes(&attributes, address));
    if (attributes.type != cudaMemoryTypeDevice) return std::nullopt;
    return attributes.device;
}

bool can_access(int device, int peer) {
    int can = 1;
    if (device != peer) SOFTS_CHECK(cudaDeviceCanAccessPeer(&can, device, peer));
    return can != 0;
}

void copy(void* to, const void* from, std::uint64_t bytes, StreamHandle stream) {
    const OnDevice here(stream_of(stream));
    SOFTS_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
}

void register_host(void* address, std::uint64_t bytes, int device) {
    const OnDevice here(device);
    SOFTS_CHECK(cudaHostRegister(address, bytes, cudaHostRegisterDefault));
}

void unregister_host(void* address, int device) {
    const OnDevice here(device);
    SOFTS_CHECK(cudaHostUnregister(address));
}

Memory::Memory(std::uint64_t bytes, int device) : bytes_(bytes), device_(device) {
    const OnDevice here(device);
    SOFTS_CHECK(cudaMalloc(&address_, (bytes + shared_granularity - 1) / shared_granularity * shared_granularity));
    try {
        cudaIpcMemHandle_t handle;
        SOFTS_CHECK(cudaIpcGetMemHandle(&handle, address_));
        std::memcpy(handle_.data(), &handle, sizeof handle);
        SOFTS_CHECK(cudaMemsetAsync(address_, 0, bytes));
        SOFTS_CHECK(cudaStreamSynchronize(nullptr));
    } catch (...) {
        close();
        throw;
    }
}

void Memory::close() noexcept {
    if (address_ != nullptr) release_on(device_, [this] { return cudaFree(address_); });
    address_ = nullptr;
}

Mapping::Mapping(const Handle& handle, int device) : device_(device) {
    const OnDevice here(device);
    SOFTS_CHECK(cudaIpcOpenMemHandle(&address_, as_cuda<cudaIpcMemHandle_t>(handle), cudaIpcMemLazyEnablePeerAccess));
}

void Mapping::close() noexcept {
    if (address_ != nullptr) release_on(device_, [this] { return cudaIpcCloseMemHandle(address_); });
    address_ = nullptr;
}

Event::Event(int device) : device_(device) {
    const OnDevice here(device);
    cudaEvent_t event;
    SOFTS_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    event_ = event;
    try {
        cudaIpcEventHandle_t handle;
        SOFTS_CHECK(cudaIpcGetEventHandle(&handle, event));
        std::memcpy(handle_.data(), &handle, sizeof handle);
    } catch (...) {
        close();
        throw;
    }
}

Event::Event(const Handle& handle, int device) : device_(device), handle_(handle) {
    const OnDevice here(device);
    cudaEvent_t event;
    SOFTS_CHECK(cudaIpcOpenEventHandle(&event, as_cuda<cudaIpcEventHandle_t>(handle)));
    event_ = event;
}

void Event::check_open() const {
    if (event_ == nullptr) throw Error("cudaErrorInvalidResourceHandle", "the event is closed");
}

void Event::record(StreamHandle stream) {
    check_open();
    const OnDevice here(device_);
    SOFTS_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream_of(stream)));
}

void Event::wait(StreamHandle stream) {
    check_open();
    // The default stream is that of the current device.
    const OnDevice here(device_);
    SOFTS_CHECK(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event_), 0));
}

bool Event::is_done() {
    check_open();
    const OnDevice here(device_);
    const auto error = cudaEventQuery(static_cast<cudaEvent_t>(event_));
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
    }
    check(error, "cudaEventQuery");
    return true;
}

void Event::synchronize() {
    check_open();
    const OnDevice here(device_);
    SOFTS_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(event_)));
}

void Event::close() noexcept {
    if (event_ != nullptr) release_on(device_, [this] { return cudaEventDestroy(static_cast<cudaEvent_t>(event_)); });
    event_ = nullptr;
}

Stream::Stream(int device) : device_(device) {
    const OnDevice here(device);
    cudaStream_t stream;
    SOFTS_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_ = stream;
}

void Stream::synchronize() {
    const OnDevice here(device_);
    SOFTS_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)));
}

void Stream::close() noexcept {
    if (stream_ != nullptr) release_on(device_, [this] { return cudaStreamDestroy(static_cast<cudaStream_t>(stream_)); });
    stream_ = nullptr;
}

}  // namespace softs::cuda
