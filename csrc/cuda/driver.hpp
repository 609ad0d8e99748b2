// Functions of the CUDA driver, asked for by name, because the module does not link to a driver. Only for sources that
// are compiled with CUDA.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <string>

#include "check.hpp"

namespace softs::cuda {

// `since` is the driver's version, 11070 for 11.7, in which the function got the signature of `Function`.
template <class Function>
Function of_driver(const char* name, unsigned since) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult why = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const auto error = cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &why);
#else
    // That of the toolkit's version, which is 12.0 to 12.4: the same functions.
    const auto error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &why);
    (void)since;
#endif
    check(error, name);
    if (why != cudaDriverEntryPointSuccess || found == nullptr) {
        throw Error("cudaErrorNotSupported", std::string("the driver has no ") + name);
    }
    return reinterpret_cast<Function>(found);
}

// Codes of the driver and the runtime are the same; the runtime knows nothing of this one.
inline void check_driver(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) fail(static_cast<cudaError_t>(result), call);
}

}  // namespace softs::cuda
