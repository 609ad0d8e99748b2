// Bindings of csrc/cpu: the reduce kernels, and the contents of this build.
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.hpp"
#include "cpu/reduce.hpp"
#include "names.hpp"

namespace py = pybind11;

namespace softs {
namespace {

InstructionSet available(std::string_view wanted) {
    for (const auto set : available_instruction_sets()) {
        if (name(set) == wanted) return set;
    }
    throw py::value_error("instruction set \"" + std::string(wanted) + "\" is not available here");
}

std::vector<std::string> names(const std::vector<InstructionSet>& sets) {
    std::vector<std::string> found;
    for (const auto set : sets) found.emplace_back(name(set));
    return found;
}

void reduce_addresses(const std::vector<std::uintptr_t>& inputs, const std::vector<std::uintptr_t>& outputs, std::size_t count,
                      std::string_view in, std::string_view out, std::string_view op, double scale, bool stream_stores,
                      std::optional<std::string_view> instruction_set) {
    std::vector<const void*> sources;
    for (const auto address : inputs) sources.push_back(reinterpret_cast<const void*>(address));
    std::vector<void*> targets;
    for (const auto address : outputs) targets.push_back(reinterpret_cast<void*>(address));
    if (sources.empty() || targets.empty()) throw py::value_error("need at least one input and one output");
    const ReduceArgs args{
        .in = named(dtypes, "dtype", in),
        .out = named(dtypes, "dtype", out),
        .op = named(ops, "operation", op),
        .scale = scale,
        .inputs = sources.data(),
        .n_inputs = static_cast<int>(sources.size()),
        .outputs = targets.data(),
        .n_outputs = static_cast<int>(targets.size()),
        .count = count,
        .stream_stores = stream_stores,
    };
    if (!reduce_supported(args.in, args.out, args.op)) {
        throw py::value_error("no " + std::string(op) + " of " + std::string(in) + " to " + std::string(out));
    }
    const auto set = instruction_set ? available(*instruction_set) : available_instruction_sets().front();
    const py::gil_scoped_release without_gil;
    reduce(args, set);
}

std::string compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

py::dict build_info() {
    const auto available = names(available_instruction_sets());
    py::dict info;
    info["compiler"] = compiler();
    info["compiled"] = names(compiled_instruction_sets());
    info["available"] = available;
    info["chosen"] = available.front();
    return info;
}

}  // namespace

void bind_kernels(py::module_& module) {
    module.def("reduce", &reduce_addresses, py::arg("inputs"), py::arg("outputs"), py::arg("count"), py::kw_only(), py::arg("in_dtype"),
               py::arg("out_dtype"), py::arg("op"), py::arg("scale"), py::arg("stream_stores"), py::arg("instruction_set"));
    module.def("build_info", &build_info);
}

}  // namespace softs
