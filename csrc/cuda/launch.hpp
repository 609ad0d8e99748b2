// Launches of kernels: by nvcc's syntax, or by the stand-in for CUDA.
//
// SOFTS_LAUNCH(kernel, grid, block, stream, arguments...): threads that need not exist at the same time.
// SOFTS_LAUNCH_TOGETHER(...): threads that wait for each other.
// A kernel that is a template with several parameters goes into parentheses. Errors are those of cudaGetLastError.
#pragma once

#include <cuda_runtime.h>

#include "check.hpp"

#if defined(__CUDACC__)
#define SOFTS_LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#define SOFTS_LAUNCH_TOGETHER SOFTS_LAUNCH
#else
#include "standin/launch.hpp"
#define SOFTS_LAUNCH(...) ::standin::launch(false, __VA_ARGS__)
#define SOFTS_LAUNCH_TOGETHER(...) ::standin::launch(true, __VA_ARGS__)
#endif

namespace softs::cuda {

// Loads a kernel onto the current device, see `load_kernels`.
template <class... Parameters>
void load(void (*kernel)(Parameters...)) {
    cudaFuncAttributes attributes{};
    SOFTS_CHECK(cudaFuncGetAttributes(&attributes, kernel));
}

}  // namespace softs::cuda
