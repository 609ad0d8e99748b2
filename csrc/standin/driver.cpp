#include "driver.hpp"

#include <string_view>

#include "settings.hpp"

namespace standin {
namespace {

struct Entry {
    std::string_view name;
    unsigned since;
    void* function;
};

const Entry entries[] = {
    {"cuStreamWriteValue32", 11070, reinterpret_cast<void*>(&write_word)},
    {"cuStreamWaitValue32", 11070, reinterpret_cast<void*>(&wait_for_word)},
    {"cuInit", 2000, reinterpret_cast<void*>(&initialize)},
    {"cuDeviceGet", 2000, reinterpret_cast<void*>(&get_device)},
    {"cuDevicePrimaryCtxRetain", 7000, reinterpret_cast<void*>(&retain_primary)},
    {"cuStreamGetCtx", 9020, reinterpret_cast<void*>(&context_of)},
    {"cuCtxGetCurrent", 4000, reinterpret_cast<void*>(&get_current)},
    {"cuCtxPushCurrent", 4000, reinterpret_cast<void*>(&push_current)},
    {"cuCtxPopCurrent", 4000, reinterpret_cast<void*>(&pop_current)},
};

}  // namespace
}  // namespace standin

using namespace standin;

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    *function = nullptr;
    for (const Entry& entry : entries) {
        if (entry.name == symbol && version >= entry.since) *function = entry.function;
    }
    *status = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
