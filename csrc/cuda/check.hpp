// Error codes of CUDA as exceptions. Only for sources that are compiled with CUDA.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "device.hpp"

namespace softs::cuda {

[[noreturn]] inline void fail(cudaError_t error, const char* call) {
    throw Error(cudaGetErrorName(error), std::string(cudaGetErrorString(error)) + " (" + call + ")");
}

inline void check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    // An error that is not cleared would be reported again by a later, successful call.
    (void)cudaGetLastError();
    fail(error, call);
}

}  // namespace softs::cuda

#define SOFTS_CHECK(call) ::softs::cuda::check((call), #call)
