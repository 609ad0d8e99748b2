// Contexts of devices, and the stack of them that each thread has.
//
// Each context that is made leaves a mapping of the name `standin-context-N` in the process, by which tests count them.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "driver.hpp"
#include "settings.hpp"
#include "streams.hpp"

struct StandinContext {
    int device;
    std::once_flag made;
};

namespace standin {
namespace {

constexpr std::size_t page = 4096;
std::array<StandinContext, 64> contexts;
thread_local std::vector<CUcontext> stack;

CUcontext made(int device) {
    StandinContext& context = contexts[static_cast<std::size_t>(device)];
    std::call_once(context.made, [&context, device] {
        context.device = device;
        const int fd = memfd_create(("standin-context-" + std::to_string(device)).c_str(), MFD_CLOEXEC);
        if (fd < 0) return;
        (void)mmap(nullptr, page, PROT_READ, MAP_PRIVATE, fd, 0);
        close(fd);
    });
    return &context;
}

bool is_device(int index) {
    return 0 <= index && index < settings().devices && index < static_cast<int>(contexts.size());
}

}  // namespace

int current_device() {
    return stack.empty() ? 0 : stack.back()->device;
}

void need_context() {
    if (stack.empty() && is_device(0)) stack.push_back(made(0));
}

CUresult initialize(unsigned) {
    return CUDA_SUCCESS;
}

CUresult get_device(CUdevice_v1* device, int ordinal) {
    *device = ordinal;
    return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult retain_primary(CUcontext* context, CUdevice_v1 device) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *context = made(device);
    return CUDA_SUCCESS;
}

CUresult context_of(CUstream stream, CUcontext* context) {
    return retain_primary(context, device_of(stream));
}

CUresult get_current(CUcontext* context) {
    *context = stack.empty() ? nullptr : stack.back();
    return CUDA_SUCCESS;
}

CUresult push_current(CUcontext context) {
    stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult pop_current(CUcontext* context) {
    if (stack.empty()) return CUDA_ERROR_INVALID_VALUE;
    *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}

}  // namespace standin

using namespace standin;

cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return settings().devices > 0 ? cudaSuccess : failed(cudaErrorInsufficientDriver);
}

cudaError_t cudaSetDevice(int device) {
    if (!is_device(device)) return failed(cudaErrorInvalidDevice);
    if (!stack.empty()) stack.pop_back();
    stack.push_back(made(device));
    return cudaSuccess;
}
