// Memory, events and streams of CUDA devices, shared with other processes of this host. Includes no CUDA headers.
//
// In a build without CUDA all of it throws an Error (absent.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace softs::cuda {

class Error : public std::runtime_error {
  public:
    Error(const std::string& name, const std::string& text) : std::runtime_error(name + ": " + text) {}
};

using Handle = std::array<char, 64>;
// A cudaStream_t; 0 is the default stream.
using StreamHandle = std::uint64_t;

// Number of devices; a negative number is minus a cudaError_t, such as that of a machine without a driver.
int n_devices() noexcept;
// Version of the linked CUDA runtime, 13000 for 13.0; 0 for the stand-in. Nothing in a build without CUDA.
std::optional<int> runtime_version() noexcept;
std::string device_name(int device);
// The UUID, the same in all processes.
std::string device_id(int device);
// The device of an address; nothing for memory of the host.
std::optional<int> device_of(const void* address);
// Whether `device` can access the memory of `peer`; true for its own.
bool can_access(int device, int peer);

// Loads all kernels onto a device. A kernel that is not loaded is loaded by its first launch, which may wait for all work
// of the process on that device: for ever, if that work waits for what this thread, or another process, does later.
void load_kernels(int device);

// Between any kinds of memory; in the order of the stream. The default stream is that of the current device.
void copy(void* to, const void* from, std::uint64_t bytes, StreamHandle stream);
// Registers memory of the host with CUDA, so that copies need no intermediate buffer.
void register_host(void* address, std::uint64_t bytes, int device);
void unregister_host(void* address, int device);
// Registers whole pages, so that streams and kernels of the device can use them; returns their address there.
std::uint64_t map_host(void* address, std::uint64_t bytes, int device);

// In the order of a stream of the device, at a place of `map_host`'s memory: writes a word when all earlier work of
// the stream is done and visible to every device and host; waits until a word has reached a value, by a signed
// difference of 32 bits. Not every driver has them.
void write_word(std::uint64_t at, std::uint32_t value, int device, StreamHandle stream);
void wait_for_word(std::uint64_t at, std::uint32_t value, int device, StreamHandle stream);

// A separate allocation, which other processes may open as a whole; zeroed. It occupies a multiple of 2 MiB.
class Memory {
  public:
    Memory(std::uint64_t bytes, int device);
    ~Memory() { close(); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    void* address() const noexcept { return address_; }
    std::uint64_t bytes() const noexcept { return bytes_; }
    int device() const noexcept { return device_; }
    const Handle& handle() const noexcept { return handle_; }
    // Other processes must have closed it: CUDA does not define later accesses.
    void close() noexcept;
    // Leaves it allocated until the process ends, because it may still be in use: freeing would wait for streams, or
    // unmap it in other processes.
    void abandon() noexcept { address_ = nullptr; }

  private:
    void* address_ = nullptr;
    std::uint64_t bytes_;
    int device_;
    Handle handle_{};
};

// The `Memory` of another process. A process opens one only once.
class Mapping {
  public:
    // `device` is the one that will access it; peer access is enabled where that is not the owner's device.
    Mapping(const Handle& handle, int device);
    ~Mapping() { close(); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    void* address() const noexcept { return address_; }
    void close() noexcept;
    // Leaves it mapped until the process ends, because a stream may still use it.
    void abandon() noexcept { address_ = nullptr; }

  private:
    void* address_ = nullptr;
    int device_;
};

// A mark in the order of a stream. Other processes may open it, record it and wait for it.
class Event {
  public:
    explicit Event(int device);
    // The event of another process.
    Event(const Handle& handle, int device);
    ~Event() { close(); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    const Handle& handle() const noexcept { return handle_; }
    // The stream must be one of the event's device.
    void record(StreamHandle stream);
    // The stream waits for the last record at the time of this call; not at all if there is none.
    void wait(StreamHandle stream);
    bool is_done();
    // As `wait`, for the calling thread.
    void synchronize();
    void close() noexcept;

  private:
    void check_open() const;

    void* event_ = nullptr;
    int device_;
    Handle handle_{};
};

// A stream that the default stream does not wait for.
class Stream {
  public:
    explicit Stream(int device);
    ~Stream() { close(); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    StreamHandle handle() const noexcept { return reinterpret_cast<StreamHandle>(stream_); }
    int device() const noexcept { return device_; }
    void synchronize();
    void close() noexcept;

  private:
    void* stream_ = nullptr;
    int device_;
};

}  // namespace softs::cuda
