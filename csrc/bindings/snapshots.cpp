// Bindings of csrc/snapshots: windows on the tensors of a process, and sums over those of several.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "collective/error.hpp"
#include "cpu/copy.hpp"
#include "names.hpp"
#include "snapshots/average.hpp"
#include "snapshots/window.hpp"

namespace py = pybind11;

namespace softs {
namespace {

using namespace snapshots;
using collective::Error;
using collective::Failure;
using Release = py::call_guard<py::gil_scoped_release>;

// Address, offset in a half, bytes.
using PyRow = std::tuple<std::uintptr_t, std::size_t, std::size_t>;
// Offset, items, dtype.
using PyRun = std::tuple<std::size_t, std::size_t, std::string_view>;
// Process, its start, descriptor, random id, bytes.
using PyAddress = std::tuple<int, std::uint64_t, int, py::bytes, std::uint64_t>;

std::vector<Row> rows_of(const std::vector<PyRow>& given) {
    std::vector<Row> rows;
    rows.reserve(given.size());
    for (const auto& [address, at, bytes] : given) rows.push_back({reinterpret_cast<const std::byte*>(address), at, bytes});
    return rows;
}

std::unique_ptr<Window> make(std::size_t n_bytes, const py::bytes& manifest, const py::bytes& digest) {
    const std::string_view given = digest;
    Digest copied{};
    if (given.size() != copied.size()) throw py::value_error("a digest has 32 bytes, have " + std::to_string(given.size()));
    std::memcpy(copied.data(), given.data(), copied.size());
    return std::make_unique<Window>(n_bytes, std::string_view(manifest), copied);
}

Label label_of(std::int64_t step, std::optional<double> metric, std::uint64_t trained) {
    return {.step = step, .trained = trained, .metric = metric.value_or(0), .has_metric = metric ? 1U : 0U};
}

void write(Window& window, const std::vector<PyRow>& given) {
    const auto rows = rows_of(given);
    const py::gil_scoped_release released;
    window.write(rows);
}

std::uint64_t publish(Window& window, const std::vector<PyRow>& given, std::int64_t step, std::optional<double> metric,
                      std::uint64_t trained, const py::bytes& config) {
    const auto rows = rows_of(given);
    const std::string_view text = config;
    const py::gil_scoped_release released;
    window.begin();
    window.write(rows);
    return window.commit(label_of(step, metric, trained), text);
}

std::vector<std::shared_ptr<const View>> views(const std::vector<const Remote*>& remotes) {
    std::vector<std::shared_ptr<const View>> found;
    for (const Remote* const remote : remotes) found.push_back(remote->view());
    return found;
}

py::tuple in_python(const Seen& seen) {
    const py::object metric = seen.label.has_metric != 0 ? py::object(py::float_(seen.label.metric)) : py::none();
    return py::make_tuple(seen.version, seen.label.step, metric, seen.label.trained, seen.label.published_ns, py::bytes(seen.config));
}

PyAddress address_of(const Window& window) {
    const Address address = window.address();
    const auto& nonce = address.offer.nonce;
    return {address.offer.pid, address.started, address.offer.fd, py::bytes(reinterpret_cast<const char*>(nonce.data()), sizeof nonce),
            address.offer.bytes};
}

std::unique_ptr<Remote> open(int pid, std::uint64_t started, int fd, const py::bytes& id, std::uint64_t bytes) {
    Address address{.started = started, .offer = {.pid = pid, .fd = fd, .bytes = bytes, .nonce = {}}};
    const std::string_view given = id;
    if (given.size() != sizeof address.offer.nonce) throw py::value_error("an id has 16 bytes, have " + std::to_string(given.size()));
    std::memcpy(address.offer.nonce.data(), given.data(), given.size());
    const py::gil_scoped_release released;
    return std::make_unique<Remote>(address);
}

py::tuple average_of(const std::vector<const Remote*>& remotes, const std::vector<double>& weights, const std::vector<PyRun>& given,
                     std::uintptr_t scratch, const std::vector<PyRun>& as_is) {
    const auto donors = views(remotes);
    std::vector<Run> runs;
    for (const auto& [at, count, dtype] : given) runs.push_back({at, count, named(dtypes, "dtype", dtype), true});
    for (const auto& [at, count, dtype] : as_is) runs.push_back({at, count, named(dtypes, "dtype", dtype), false});
    Averaged result;
    {
        const py::gil_scoped_release released;
        result = average(donors, weights, runs, reinterpret_cast<std::byte*>(scratch));
    }
    static constexpr std::array<const char*, 4> outcomes{"complete", "torn", "nothing yet", "not finite"};
    py::list seen;
    for (const Seen& one : result.seen) seen.append(in_python(one));
    return py::make_tuple(outcomes[static_cast<std::size_t>(result.outcome)], result.donor, result.at, seen);
}

void scatter(std::uintptr_t scratch, const std::vector<PyRow>& given) {
    const auto rows = rows_of(given);
    const py::gil_scoped_release released;
    std::size_t total = 0;
    for (const Row& row : rows) total += row.bytes;
    for (const Row& row : rows) {
        copy(const_cast<std::byte*>(row.from), reinterpret_cast<const std::byte*>(scratch) + row.at, row.bytes, total >= stream_from_bytes);
    }
}

}  // namespace

void bind_snapshots(py::module_& module) {
    const py::metaclass plain(reinterpret_cast<PyObject*>(&PyType_Type));
    py::class_<Remote>(module, "SnapshotRemote", plain)
        .def_static("open", &open)
        .def("manifest", [](const Remote& remote) { return py::bytes(std::string(remote.view()->manifest())); })
        .def("digest",
             [](const Remote& remote) {
                 const Digest& digest = remote.view()->digest();
                 return py::bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
             })
        .def("header", [](const Remote& remote) { return in_python(remote.header()); })
        .def("is_alive", &Remote::is_alive)
        .def("close", &Remote::close);

    py::class_<Window>(module, "SnapshotWindow", plain)
        .def(py::init(&make))
        .def("address", &address_of)
        .def("publish", &publish)
        .def("begin", &Window::begin, Release())
        .def("write", &write)
        .def("commit",
             [](Window& window, std::int64_t step, std::optional<double> metric, std::uint64_t trained, const py::bytes& config) {
                 const std::string_view text = config;
                 const py::gil_scoped_release released;
                 return window.commit(label_of(step, metric, trained), text);
             })
        .def("ask", [](Window& window, const Remote& wanted) { window.ask(*wanted.view()); })
        .def("is_asked", [](const Window& window, const std::vector<const Remote*>& others) { return window.is_asked(views(others)); })
        .def("close", &Window::close);

    module.def("snapshot_average", &average_of, py::arg("remotes"), py::arg("weights"), py::arg("runs"), py::arg("scratch"),
               py::arg("as_is") = std::vector<PyRun>{});
    module.def("snapshot_scatter", &scatter);
    module.attr("MAX_CONFIG_BYTES") = max_config_bytes;
}

}  // namespace softs
