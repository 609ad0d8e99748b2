// One function per folder; each adds its functions to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace softs {

void bind_kernels(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_collective(pybind11::module_& module);
void bind_snapshots(pybind11::module_& module);
void bind_cuda_reduce(pybind11::module_& module);

}  // namespace softs
