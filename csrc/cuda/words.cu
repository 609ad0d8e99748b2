// Words in memory of the host that streams write and wait for: functions of the driver, asked for by name, because the
// module does not link to a driver.
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "check.hpp"
#include "device.hpp"
#include "on_device.hpp"

namespace softs::cuda {
namespace {

// The second version of these functions; the first one, of the same names, has to be enabled in the kernel's module.
constexpr unsigned since = 11070;

template <class Function>
Function of_driver(const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult why = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const auto error = cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &why);
#else
    // Those of the toolkit's version, which is 12.0 at least.
    const auto error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &why);
#endif
    if (error != cudaSuccess || why != cudaDriverEntryPointSuccess || found == nullptr) {
        (void)cudaGetLastError();
        throw Error("cudaErrorNotSupported", std::string("the driver has no ") + name);
    }
    return reinterpret_cast<Function>(found);
}

void check_driver(CUresult result, const char* call) {
    // Codes of the driver and the runtime are the same; the runtime knows nothing of this one.
    if (result != CUDA_SUCCESS) fail(static_cast<cudaError_t>(result), call);
}

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
    static const auto write = of_driver<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32");
    // The default stream is that of the current device.
    const OnDevice here(device);
    // SYNC(stream-word): pairs with wait_for_word. By default a fence of the whole system comes before the write.
    check_driver(write(reinterpret_cast<cudaStream_t>(stream), at, value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}

void wait_for_word(std::uint64_t at, std::uint32_t value, int device, StreamHandle stream) {
    static const auto wait = of_driver<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32");
    const OnDevice here(device);
    // SYNC(stream-word): pairs with write_word. No flush of remote writes: what the wait permits is read where its
    // writer has it, and never written into memory of the device that waits.
    check_driver(wait(reinterpret_cast<cudaStream_t>(stream), at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

}  // namespace softs::cuda
