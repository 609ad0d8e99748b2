// Words of registered host memory that streams write and wait for.
#include <chrono>
#include <thread>

#include "driver.hpp"
#include "memory.hpp"
#include "settings.hpp"
#include "streams.hpp"

namespace standin {
namespace {

std::uint32_t* word_at(CUdeviceptr_v2 address) {
    auto* word = reinterpret_cast<std::uint32_t*>(address);
    return address % sizeof *word == 0 && is_mapped(word, sizeof *word) ? word : nullptr;
}

CUresult result_of(cudaError_t error) {
    return static_cast<CUresult>(error);
}

}  // namespace

CUresult write_word(CUstream stream, CUdeviceptr_v2 address, std::uint32_t value, unsigned flags) {
    if (!settings().words) return CUDA_ERROR_NOT_SUPPORTED;
    auto* word = word_at(address);
    if (word == nullptr || flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
    // SYNC(standin-word): pairs with wait_for_word.
    return result_of(submit(stream, [=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); }));
}

CUresult wait_for_word(CUstream stream, CUdeviceptr_v2 address, std::uint32_t value, unsigned flags) {
    if (!settings().words) return CUDA_ERROR_NOT_SUPPORTED;
    auto* word = word_at(address);
    if (word == nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
    return result_of(submit(stream, [=] {
        // SYNC(standin-word): pairs with write_word.
        while (static_cast<std::int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }));
}

}  // namespace standin
