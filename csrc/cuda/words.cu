// Words in memory of the host that streams write and wait for.
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "device.hpp"
#include "driver.hpp"
#include "on_device.hpp"

namespace softs::cuda {
namespace {

// The second version of these functions; the first one, of the same names, has to be enabled in the kernel's module.
constexpr unsigned since = 11070;

}  // namespace

std::uint64_t map_host(void* address, std::uint64_t bytes, int device) {
    const OnDevice here(device);
    SOFTS_CHECK(cudaHostRegister(address, bytes, cudaHostRegisterMapped));
    void* there = nullptr;
    const auto error = cudaHostGetDevicePointer(&there, address, 0);
    if (error != cudaSuccess) {
        (void)cudaHostUnregister(address);
        check(error, "cudaHostGetDevicePointer");
    }
    return reinterpret_cast<std::uint64_t>(there);
}

void write_word(std::uint64_t at, std::uint32_t value, int device, StreamHandle stream) {
    static const auto write = of_driver<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", since);
    // The default stream is that of the current device.
    const OnDevice here(device);
    // SYNC(stream-word): pairs with wait_for_word. By default a fence of the whole system comes before the write.
    check_driver(write(reinterpret_cast<cudaStream_t>(stream), at, value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}

void wait_for_word(std::uint64_t at, std::uint32_t value, int device, StreamHandle stream) {
    static const auto wait = of_driver<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", since);
    const OnDevice here(device);
    // SYNC(stream-word): pairs with write_word. No flush of remote writes: what the wait permits is read where its
    // writer has it, and never written into memory of the device that waits.
    check_driver(wait(reinterpret_cast<cudaStream_t>(stream), at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

}  // namespace softs::cuda
