// The CUDA side. In a build without one every call of it says so.
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "cuda/pack.hpp"
#include "names.hpp"

namespace py = pybind11;

namespace softs {
namespace {

// Address, items, dtype there; offset in the slot, dtype there.
using Row = std::tuple<std::uintptr_t, std::uint64_t, std::string_view, std::uint64_t, std::string_view>;

std::vector<PackItem> checked_table(const std::vector<Row>& rows, std::uint64_t slot_bytes) {
    std::vector<PackItem> items;
    for (const auto& [address, count, in, offset, out] : rows) {
        items.push_back({reinterpret_cast<const void*>(address), count, offset, named(dtypes, "dtype", in), named(dtypes, "dtype", out)});
    }
    if (const auto problem = pack_problem(items, slot_bytes); !problem.empty()) throw py::value_error(problem);
    return items;
}

#if !defined(SOFTS_CUDA)
[[noreturn]] void refuse() {
    throw std::runtime_error("this build of softs_fast has no CUDA side; build it with nvcc on PATH, or with SOFTS_CUDA=pip");
}
#endif

void pack_rows(const std::vector<Row>& rows, std::uintptr_t slot, std::uint64_t slot_bytes, std::uint64_t stream) {
    const auto items = checked_table(rows, slot_bytes);
#if defined(SOFTS_CUDA)
    const py::gil_scoped_release without_gil;
    if (const auto error = pack(items, reinterpret_cast<void*>(slot), stream); !error.empty()) throw std::runtime_error(error);
#else
    (void)slot, (void)stream;
    refuse();
#endif
}

int devices() {
#if defined(SOFTS_CUDA)
    return cuda_devices();
#else
    refuse();
#endif
}

// Runtime version and architectures; none in a build without CUDA.
std::optional<std::pair<int, std::string>> build() {
#if defined(SOFTS_CUDA)
    return std::pair{cuda_runtime_version(), std::string(SOFTS_CUDA)};
#else
    return std::nullopt;
#endif
}

}  // namespace

void bind_cuda(py::module_& module) {
    module.def("cuda_build", &build);
    module.def("cuda_devices", &devices);
    module.def("cuda_pack", &pack_rows, py::arg("rows"), py::kw_only(), py::arg("slot"), py::arg("slot_bytes"), py::arg("stream"));
}

}  // namespace softs
