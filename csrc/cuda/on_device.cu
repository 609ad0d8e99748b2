#include "on_device.hpp"

#include <array>
#include <atomic>

#include "driver.hpp"

namespace softs::cuda {
namespace {

constexpr int most_devices = 64;

struct Driver {
    PFN_cuInit_v2000 initialize = of_driver<PFN_cuInit_v2000>("cuInit", 2000);
    PFN_cuDeviceGet_v2000 get_device = of_driver<PFN_cuDeviceGet_v2000>("cuDeviceGet", 2000);
    PFN_cuDevicePrimaryCtxRetain_v7000 retain = of_driver<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain", 7000);
    PFN_cuStreamGetCtx_v9020 context_of = of_driver<PFN_cuStreamGetCtx_v9020>("cuStreamGetCtx", 9020);
    PFN_cuCtxGetCurrent_v4000 current = of_driver<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent", 4000);
    PFN_cuCtxPushCurrent_v4000 push = of_driver<PFN_cuCtxPushCurrent_v4000>("cuCtxPushCurrent", 4000);
    PFN_cuCtxPopCurrent_v4000 pop = of_driver<PFN_cuCtxPopCurrent_v4000>("cuCtxPopCurrent", 4000);
};

const Driver& driver() {
    static const Driver functions;
    return functions;
}

// The context that the runtime uses for a device, made if there is none; it stays until the process ends.
CUcontext primary_context(int device) {
    static std::array<std::atomic<CUcontext>, most_devices> known{};
    if (device < 0 || device >= most_devices) fail(cudaErrorInvalidDevice, "cuDeviceGet");
    auto& of_device = known[static_cast<std::size_t>(device)];
    CUcontext context = of_device.load(std::memory_order_acquire);
    if (context != nullptr) return context;
    CUdevice_v1 found = 0;
    check_driver(driver().initialize(0), "cuInit");
    check_driver(driver().get_device(&found, device), "cuDeviceGet");
    // Two threads that come here at once retain it twice and get the same one.
    check_driver(driver().retain(&context, found), "cuDevicePrimaryCtxRetain");
    of_device.store(context, std::memory_order_release);
    return context;
}

// Whether it had to be pushed.
bool push(CUcontext context) {
    CUcontext before = nullptr;
    check_driver(driver().current(&before), "cuCtxGetCurrent");
    if (before == context) return false;
    check_driver(driver().push(context), "cuCtxPushCurrent");
    return true;
}

}  // namespace

OnDevice::OnDevice(int device) : pushed_(push(primary_context(device))) {}

OnDevice::OnDevice(cudaStream_t stream) {
    if (stream == nullptr) return;
    CUcontext context = nullptr;
    check_driver(driver().context_of(stream, &context), "cuStreamGetCtx");
    pushed_ = push(context);
}

OnDevice::~OnDevice() {
    CUcontext popped = nullptr;
    if (pushed_) (void)driver().pop(&popped);
}

}  // namespace softs::cuda
