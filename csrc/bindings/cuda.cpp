// Bindings of csrc/cuda. In a build without CUDA every call of them throws.
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "cuda/device.hpp"
#include "cuda/pack.hpp"
#include "dlpack.hpp"
#include "names.hpp"

namespace py = pybind11;

namespace softs {
namespace {

using without_gil = py::call_guard<py::gil_scoped_release>;

#if defined(SOFTS_CUDA)
constexpr std::string_view architectures = SOFTS_CUDA;
#else
constexpr std::string_view architectures;
#endif
constexpr bool is_standin = architectures == "stand-in";

// Address, items and dtype of the source; offset and dtype in the slot.
using Row = std::tuple<std::uintptr_t, std::uint64_t, std::string_view, std::uint64_t, std::string_view>;

void pack_rows(const std::vector<Row>& rows, std::uintptr_t slot, std::uint64_t slot_bytes, std::uint64_t stream) {
    std::vector<cuda::PackItem> items;
    for (const auto& [address, count, in, offset, out] : rows) {
        items.push_back({reinterpret_cast<const void*>(address), count, offset, named(dtypes, "dtype", in), named(dtypes, "dtype", out)});
    }
    if (const auto problem = cuda::pack_problem(items, slot_bytes); !problem.empty()) throw py::value_error(problem);
    const py::gil_scoped_release released;
    cuda::pack(items, reinterpret_cast<void*>(slot), stream);
}

// Runtime version and architectures; none in a build without CUDA.
std::optional<std::pair<int, std::string>> build() {
    const auto version = cuda::runtime_version();
    if (!version) return std::nullopt;
    return std::pair{*version, std::string(architectures)};
}

cuda::Handle as_handle(const py::bytes& given) {
    const std::string_view bytes = given;
    cuda::Handle handle;
    if (bytes.size() != handle.size()) throw py::value_error("a handle has 64 bytes, have " + std::to_string(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), handle.begin());
    return handle;
}

py::bytes as_bytes(const cuda::Handle& handle) {
    return {handle.data(), handle.size()};
}

dlpack::DataType as_dlpack(Dtype dtype) {
    const auto bits = static_cast<std::uint8_t>(8 * item_bytes(dtype));
    switch (dtype) {
        case Dtype::float64:
        case Dtype::float32:
        case Dtype::float16:
            return {2, bits, 1};
        case Dtype::bfloat16:
            return {4, bits, 1};
        case Dtype::uint8:
            return {1, bits, 1};
        case Dtype::boolean:
            return {6, bits, 1};
        default:
            return {0, bits, 1};
    }
}

// A tensor, and the owner of its memory.
struct Exported {
    std::vector<std::int64_t> shape, strides;
    py::object keep;
    dlpack::ManagedTensor managed;
};

void let_go(dlpack::ManagedTensor* managed) {
    // After the end of the interpreter nothing can be released, and nothing uses it.
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire acquired;
    delete static_cast<Exported*>(managed->context);
}

py::capsule tensor(std::uintptr_t address, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides, std::string_view dtype,
                   int device, py::object keep) {
    if (shape.size() != strides.size()) throw py::value_error("need a stride for each dimension");
    auto exported = std::make_unique<Exported>(Exported{std::move(shape), std::move(strides), std::move(keep), {}});
    exported->managed = {
        .tensor = {.data = reinterpret_cast<void*>(address),
                   .device = is_standin ? dlpack::Device{dlpack::cpu, 0} : dlpack::Device{dlpack::cuda, device},
                   .ndim = static_cast<std::int32_t>(exported->shape.size()),
                   .dtype = as_dlpack(named(dtypes, "dtype", dtype)),
                   .shape = exported->shape.data(),
                   .strides = exported->strides.data(),
                   .byte_offset = 0},
        .context = exported.get(),
        .deleter = let_go,
    };
    const py::capsule capsule(&exported->managed, "dltensor", [](PyObject* self) {
        // A consumer of the tensor has renamed it.
        if (!PyCapsule_IsValid(self, "dltensor")) return;
        auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(self, "dltensor"));
        managed->deleter(managed);
    });
    (void)exported.release();
    return capsule;
}

}  // namespace

void bind_cuda(py::module_& module) {
    py::register_exception<cuda::Error>(module, "CudaError", PyExc_RuntimeError);
    module.def("cuda_build", &build);
    module.def("cuda_devices", &cuda::n_devices);
    module.def("cuda_device_name", &cuda::device_name, py::arg("device"));
    module.def("cuda_device_id", &cuda::device_id, py::arg("device"));
    module.def(
        "cuda_device_of", [](std::uintptr_t address) { return cuda::device_of(reinterpret_cast<const void*>(address)); },
        py::arg("address"));
    module.def("cuda_can_access", &cuda::can_access, py::arg("device"), py::arg("peer"));
    module.def("cuda_load_kernels", &cuda::load_kernels, py::arg("device"), without_gil());
    module.def(
        "cuda_copy",
        [](std::uintptr_t to, std::uintptr_t source, std::uint64_t n_bytes, std::uint64_t stream) {
            cuda::copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(source), n_bytes, stream);
        },
        py::arg("to"), py::arg("source"), py::arg("n_bytes"), py::arg("stream"), without_gil());
    module.def("cuda_pack", &pack_rows, py::arg("rows"), py::kw_only(), py::arg("slot"), py::arg("slot_bytes"), py::arg("stream"));
    module.def("cuda_tensor", &tensor, py::arg("address"), py::arg("shape"), py::arg("strides"), py::arg("dtype"), py::arg("device"),
               py::arg("keep"));
    module.def(
        "cuda_register",
        [](std::uintptr_t address, std::uint64_t n_bytes, int device) {
            cuda::register_host(reinterpret_cast<void*>(address), n_bytes, device);
        },
        py::arg("address"), py::arg("n_bytes"), py::arg("device"), without_gil());
    module.def(
        "cuda_unregister", [](std::uintptr_t address, int device) { cuda::unregister_host(reinterpret_cast<void*>(address), device); },
        py::arg("address"), py::arg("device"), without_gil());

    module.def(
        "cuda_map_host",
        [](std::uintptr_t address, std::uint64_t n_bytes, int device) {
            return cuda::map_host(reinterpret_cast<void*>(address), n_bytes, device);
        },
        py::arg("address"), py::arg("n_bytes"), py::arg("device"), without_gil());
    module.def("cuda_write_word", &cuda::write_word, py::arg("at"), py::arg("value"), py::arg("device"), py::arg("stream"), without_gil());
    module.def("cuda_wait_for_word", &cuda::wait_for_word, py::arg("at"), py::arg("value"), py::arg("device"), py::arg("stream"),
               without_gil());

    // The plain metaclass, as in collective.cpp: one that a stub can name.
    const py::metaclass plain(reinterpret_cast<PyObject*>(&PyType_Type));
    py::class_<cuda::Memory>(module, "CudaMemory", plain)
        .def(py::init<std::uint64_t, int>(), py::arg("n_bytes"), py::arg("device"), without_gil())
        .def_property_readonly("address", [](const cuda::Memory& self) { return reinterpret_cast<std::uintptr_t>(self.address()); })
        .def_property_readonly("n_bytes", &cuda::Memory::bytes)
        .def_property_readonly("device", &cuda::Memory::device)
        .def_property_readonly("handle", [](const cuda::Memory& self) { return as_bytes(self.handle()); })
        .def("close", &cuda::Memory::close, without_gil())
        .def("abandon", &cuda::Memory::abandon);
    py::class_<cuda::Mapping>(module, "CudaMapping", plain)
        .def(py::init([](const py::bytes& handle, int device) {
                 const auto given = as_handle(handle);
                 const py::gil_scoped_release released;
                 return std::make_unique<cuda::Mapping>(given, device);
             }),
             py::arg("handle"), py::arg("device"))
        .def_property_readonly("address", [](const cuda::Mapping& self) { return reinterpret_cast<std::uintptr_t>(self.address()); })
        .def("close", &cuda::Mapping::close, without_gil())
        .def("abandon", &cuda::Mapping::abandon);
    py::class_<cuda::Event>(module, "CudaEvent", plain)
        .def(py::init<int>(), py::arg("device"), without_gil())
        .def_static(
            "open",
            [](const py::bytes& handle, int device) {
                const auto given = as_handle(handle);
                const py::gil_scoped_release released;
                return std::make_unique<cuda::Event>(given, device);
            },
            py::arg("handle"), py::arg("device"))
        .def_property_readonly("handle", [](const cuda::Event& self) { return as_bytes(self.handle()); })
        .def("record", &cuda::Event::record, py::arg("stream"), without_gil())
        .def("wait", &cuda::Event::wait, py::arg("stream"), without_gil())
        .def("is_done", &cuda::Event::is_done)
        .def("synchronize", &cuda::Event::synchronize, without_gil())
        .def("close", &cuda::Event::close, without_gil());
    py::class_<cuda::Stream>(module, "CudaStream", plain)
        .def(py::init<int>(), py::arg("device"), without_gil())
        .def_property_readonly("handle", &cuda::Stream::handle)
        .def_property_readonly("device", &cuda::Stream::device)
        .def("synchronize", &cuda::Stream::synchronize, without_gil())
        .def("close", &cuda::Stream::close, without_gil());
}

}  // namespace softs
