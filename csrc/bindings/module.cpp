#include "bindings.hpp"

PYBIND11_MODULE(_kernels, module) {
    module.doc() = "C++ side of softs_fast. Private: addresses and counts that come in here are believed.";
    softs::bind_kernels(module);
    softs::bind_cuda(module);
    softs::bind_collective(module);
    softs::bind_snapshots(module);
    softs::bind_cuda_reduce(module);
}
