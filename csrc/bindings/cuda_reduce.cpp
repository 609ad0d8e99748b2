// Bindings of the reductions on CUDA devices. In a build without CUDA every call of them throws.
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "collective/control.hpp"
#include "cuda/reduce.hpp"
#include "names.hpp"

namespace py = pybind11;

namespace softs {
namespace {

static_assert(cuda::max_device_inputs >= collective::max_ranks, "a group may be as large on devices as on the host");

cuda::DeviceReduction reduction(std::string_view in, std::string_view out, std::string_view op, double scale) {
    const cuda::DeviceReduction what{
        .in = named(dtypes, "dtype", in), .out = named(dtypes, "dtype", out), .op = named(ops, "operation", op), .scale = scale};
    if (what.op == Op::exact_mean || !reduce_supported(what.in, what.out, what.op)) {
        throw py::value_error("no " + std::string(op) + " of " + std::string(in) + " to " + std::string(out));
    }
    return what;
}

void check_number(std::size_t n) {
    if (n < 1 || n > cuda::max_device_inputs) {
        throw py::value_error(std::to_string(n) + " inputs; 1 to " + std::to_string(cuda::max_device_inputs) + " are possible");
    }
}

void reduce_inputs(const std::vector<std::uintptr_t>& inputs, std::uintptr_t output, std::uint64_t count, std::string_view in,
                   std::string_view out, std::string_view op, double scale, std::uint64_t stream) {
    const auto what = reduction(in, out, op, scale);
    check_number(inputs.size());
    std::vector<const void*> sources;
    for (const auto address : inputs) sources.push_back(reinterpret_cast<const void*>(address));
    const py::gil_scoped_release without_gil;
    cuda::reduce_on_device(what, sources, reinterpret_cast<void*>(output), count, stream);
}

// Addresses of the staged data, of the slice, and of the flags.
using Row = std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t>;

void reduce_ranks(const std::vector<Row>& ranks, int rank, std::uintptr_t output, std::uintptr_t missing, std::uint64_t count,
                  std::string_view in, std::string_view out, std::string_view op, double scale, bool one_shot, std::uint32_t epoch,
                  double deadline_s, std::uintptr_t stop, std::uint64_t stream) {
    check_number(ranks.size());
    if (rank < 0 || static_cast<std::size_t>(rank) >= ranks.size()) throw py::value_error("no such rank");
    cuda::Together together{
        .what = reduction(in, out, op, scale),
        .ranks = {},
        .rank = rank,
        .output = reinterpret_cast<void*>(output),
        .missing = reinterpret_cast<std::uint64_t*>(missing),
        .count = count,
        .one_shot = one_shot,
        .epoch = epoch,
        .deadline_ns = static_cast<std::uint64_t>(deadline_s * 1e9),
        .stop = reinterpret_cast<const std::uint32_t*>(stop),
    };
    for (const auto& [staged, reduced, flags] : ranks) {
        together.ranks.push_back({.staged = reinterpret_cast<const void*>(staged),
                                  .reduced = reinterpret_cast<void*>(reduced),
                                  .flags = reinterpret_cast<std::uint32_t*>(flags)});
    }
    const py::gil_scoped_release without_gil;
    cuda::reduce_together(together, stream);
}

}  // namespace

void bind_cuda_reduce(py::module_& module) {
    module.def("cuda_reduce", &reduce_inputs, py::arg("inputs"), py::arg("output"), py::arg("count"), py::kw_only(), py::arg("in_dtype"),
               py::arg("out_dtype"), py::arg("op"), py::arg("scale"), py::arg("stream"));
    module.def("cuda_reduce_together", &reduce_ranks, py::arg("ranks"), py::arg("rank"), py::arg("output"), py::arg("missing"),
               py::arg("count"), py::kw_only(), py::arg("in_dtype"), py::arg("out_dtype"), py::arg("op"), py::arg("scale"),
               py::arg("one_shot"), py::arg("epoch"), py::arg("deadline_s"), py::arg("stop"), py::arg("stream"));
    module.attr("CUDA_TOGETHER_FLAGS") = cuda::together_flags;
    module.attr("CUDA_TOGETHER_BLOCKS") = cuda::together_blocks;
}

}  // namespace softs
