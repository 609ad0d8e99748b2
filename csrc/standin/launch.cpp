#include "launch.hpp"

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "settings.hpp"
#include "streams.hpp"

namespace standin {
namespace {

thread_local std::barrier<>* of_block = nullptr;

void run_thread(dim3 grid, dim3 block, unsigned in_grid, unsigned in_block, const std::function<void()>& thread) {
    gridDim = grid;
    blockDim = block;
    blockIdx = dim3(in_grid % grid.x, in_grid / grid.x % grid.y, in_grid / grid.x / grid.y);
    threadIdx = dim3(in_block % block.x, in_block / block.x % block.y, in_block / block.x / block.y);
    thread();
}

void run_all(dim3 grid, dim3 block, bool together, const std::function<void()>& thread) {
    const unsigned blocks = grid.x * grid.y * grid.z, threads = block.x * block.y * block.z;
    if (!together) {
        for (unsigned b = 0; b < blocks; ++b) {
            for (unsigned t = 0; t < threads; ++t) run_thread(grid, block, b, t, thread);
        }
        return;
    }
    std::vector<std::barrier<>*> barriers;
    std::vector<std::thread> running;
    for (unsigned b = 0; b < blocks; ++b) {
        barriers.push_back(new std::barrier<>(threads));
        for (unsigned t = 0; t < threads; ++t) {
            running.emplace_back([=, &thread, barrier = barriers.back()] {
                of_block = barrier;
                run_thread(grid, block, b, t, thread);
                // Later barriers do not wait for a thread that has returned.
                barrier->arrive_and_drop();
            });
        }
    }
    for (auto& one : running) one.join();
    for (const auto* barrier : barriers) delete barrier;
}

}  // namespace

void run_grid(dim3 grid, dim3 block, cudaStream_t stream, bool together, std::function<void()> thread) {
    const unsigned threads = block.x * block.y * block.z;
    if (threads == 0 || threads > 1024 || grid.x * grid.y * grid.z == 0) {
        failed(cudaErrorInvalidValue);
        return;
    }
    if (device_of(stream) != current_device()) {
        failed(cudaErrorInvalidResourceHandle);
        return;
    }
    submit(stream, [=, thread = std::move(thread)] { run_all(grid, block, together, thread); });
}

}  // namespace standin

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
    static std::mutex mutex;
    static std::set<const void*> loaded;
    {
        const std::lock_guard guard(mutex);
        if (loaded.contains(kernel)) return cudaSuccess;
    }
    standin::synchronize_all();
    const std::lock_guard guard(mutex);
    loaded.insert(kernel);
    if (attributes != nullptr) attributes->numRegs = 1;
    return cudaSuccess;
}

void __syncthreads() {
    if (standin::of_block == nullptr) {
        std::fputs("__syncthreads() in a kernel that was not launched with SOFTS_LAUNCH_TOGETHER\n", stderr);
        std::abort();
    }
    standin::of_block->arrive_and_wait();
}
