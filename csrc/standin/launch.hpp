// Kernels as functions: called for one thread of the grid after the other, or by one host thread for each thread of
// the grid.
#pragma once

#include <functional>
#include <tuple>
#include <utility>

#include "cuda_runtime.h"

namespace standin {

void run_grid(dim3 grid, dim3 block, cudaStream_t stream, bool together, std::function<void()> thread);

template <class... Parameters, class... Arguments>
void launch(bool together, void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments&&... arguments) {
    (void)cudaFuncGetAttributes(nullptr, kernel);
    run_grid(
        grid, block, stream, together,
        [kernel, kept = std::tuple<std::remove_cv_t<Parameters>...>(std::forward<Arguments>(arguments)...)] { std::apply(kernel, kept); });
}

}  // namespace standin
