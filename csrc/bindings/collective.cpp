// Bindings of csrc/collective: groups of processes, and the memory that they share.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "collective/call_queue.hpp"
#include "collective/error.hpp"
#include "collective/group.hpp"
#include "collective/point_to_point.hpp"
#include "collective/shared_tensor.hpp"
#include "collective/words.hpp"

namespace py = pybind11;

namespace softs {
namespace {

using namespace collective;
using Release = py::call_guard<py::gil_scoped_release>;

std::byte* pointer(std::uintptr_t address) {
    return reinterpret_cast<std::byte*>(address);
}

Reduction reduction(int dtype, int op, double scale) {
    if (dtype < 0 || dtype > static_cast<int>(Dtype::boolean) || op < 0 || op > static_cast<int>(Op::exact_mean)) {
        throw Error(Failure::config, "unknown dtype or operation");
    }
    return {.dtype = static_cast<Dtype>(dtype), .op = static_cast<Op>(op), .scale = scale};
}

std::chrono::nanoseconds nanoseconds(double seconds) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

// Lets Ctrl-C and other signals through while a call waits. The thread of a queue may outlive the interpreter.
void check_signals() {
    if (CallQueue::on_thread()) return;
    const py::gil_scoped_acquire with_gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// One rank's memory with Python's buffer protocol; keeps the region.
struct Part {
    Region region;
    std::byte* data;
};

std::string packed(const Offer& offer) {
    return {reinterpret_cast<const char*>(&offer), sizeof offer};
}

Mapping open_offered(std::string_view packed_offer, std::size_t bytes) {
    Offer offer;
    if (packed_offer.size() != sizeof offer) throw Error(Failure::segment, "an offer of shared memory is malformed");
    std::memcpy(&offer, packed_offer.data(), sizeof offer);
    if (offer.bytes != bytes) {
        throw Error(Failure::config, "the memory offered has " + std::to_string(offer.bytes) + " bytes, not " + std::to_string(bytes) +
                                         "; give every rank the same size and staging_bytes");
    }
    return Mapping::open(offer);
}

std::size_t group_bytes(int size, std::size_t slot_bytes) {
    return Layout{.size = size, .slot_bytes = slot_bytes}.bytes();
}

// A segment that a group or a region takes over, once.
struct Segment {
    std::optional<Mapping> mapping;

    Mapping take() {
        if (!mapping) throw Error(Failure::config, "the segment has been taken already");
        return std::move(*std::exchange(mapping, std::nullopt));
    }
};

Segment create_region(std::size_t bytes, int size) {
    Mapping memory = Mapping::create(Region::total(bytes, size));
    memory.allocate(0, memory.bytes());
    return {std::move(memory)};
}

Region region_of(Segment& segment, std::size_t bytes, int size) {
    Mapping memory = segment.take();
    if (memory.bytes() != Region::total(bytes, size)) throw Error(Failure::config, "the segment is of another region");
    return {std::make_shared<Mapping>(std::move(memory)), bytes, size};
}

std::unique_ptr<Group> join(int rank, const std::vector<std::pair<int, std::uint64_t>>& processes, Segment& segment, std::size_t slot_bytes,
                            double timeout_s) {
    std::vector<Member> members;
    for (const auto& [pid, started] : processes) members.push_back({.pid = pid, .started = started});
    return std::make_unique<Group>(rank, std::move(members), segment.take(), slot_bytes,
                                   Settings{.timeout = nanoseconds(timeout_s), .interrupted = check_signals});
}

// A thread that waits inside a group needs the GIL at times, so no thread waits for a group with the GIL held.
template <class Ask>
auto without_gil(Ask ask) {
    const py::gil_scoped_release released;
    return ask();
}

void check_bounds(const Group& group, const std::vector<std::size_t>& bounds) {
    bool rises = bounds.size() == static_cast<std::size_t>(group.size()) + 1 && bounds.front() == 0;
    for (std::size_t i = 1; rises && i < bounds.size(); ++i) rises = bounds[i - 1] <= bounds[i];
    if (!rises) throw Error(Failure::config, "slices need one bound more than there are ranks, from 0 and never falling");
}

using Addresses = std::vector<std::pair<std::uintptr_t, std::size_t>>;

std::vector<Piece> pieces_of(const Addresses& addresses) {
    std::vector<Piece> pieces;
    pieces.reserve(addresses.size());
    for (const auto& [address, count] : addresses) pieces.push_back({.data = pointer(address), .count = count});
    return pieces;
}

// The slices of one buffer, from item bounds[r] to bounds[r + 1] each.
std::vector<Piece> slices_of(const Group& group, std::uintptr_t address, const std::vector<std::size_t>& bounds, std::size_t item) {
    check_bounds(group, bounds);
    std::vector<Piece> pieces;
    for (std::size_t i = 1; i < bounds.size(); ++i) {
        pieces.push_back({.data = pointer(address) + bounds[i - 1] * item, .count = bounds[i] - bounds[i - 1]});
    }
    return pieces;
}

bool all_reduce_pieces(Group& group, const Addresses& pieces, int dtype, int op, double scale, std::uint64_t tag) {
    const std::vector<Piece> there = pieces_of(pieces);
    const Reduction what = reduction(dtype, op, scale);
    return without_gil([&] { return group.all_reduce(there, what, tag); });
}

std::string text_of(const Reduction& reduction) {
    static constexpr std::array ops{"sum", "mean", "min", "max", "exact mean"};
    static constexpr std::array dtypes{"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"};
    return std::string(ops[static_cast<std::size_t>(reduction.op)]) + " of " + dtypes[static_cast<std::size_t>(reduction.dtype)];
}

std::string text_of(const std::vector<Piece>& pieces) {
    std::string text;
    for (const Piece& piece : pieces) text += (text.empty() ? "" : ", ") + std::to_string(piece.count);
    return "[" + text + "]";
}

std::vector<py::bytes> as_bytes(const std::vector<std::string>& texts) {
    return {texts.begin(), texts.end()};
}

constexpr std::chrono::nanoseconds signals_every = std::chrono::milliseconds(50);

// Without a time it waits for the end, and makes the call if no thread has begun it: that spares two wake-ups.
bool wait(const Outcome& outcome, std::optional<double> seconds) {
    const auto start = std::chrono::steady_clock::now();
    if (!seconds) without_gil([&] { outcome.make_here(); });
    while (true) {
        const auto waited = std::chrono::steady_clock::now() - start;
        const auto left = seconds ? std::max(nanoseconds(*seconds) - waited, std::chrono::nanoseconds::zero()) : signals_every;
        if (without_gil([&] { return outcome.wait(std::min(left, signals_every)); })) return true;
        check_signals();
        if (left == left.zero()) return false;
    }
}

std::vector<py::bytes> make(CallQueue& queue, const CallQueue::Call& call, double timeout_s) {
    CallQueue::Call timed = call;
    timed.timeout = nanoseconds(timeout_s);
    if (const auto differences = without_gil([&] { return queue.make(timed); })) return as_bytes(*differences);
    const auto outcome = queue.submit(std::move(timed));
    wait(*outcome, std::nullopt);
    return as_bytes(outcome->differences());
}

py::list metrics(Group& group) {
    py::list rows;
    for (const Metric& metric : without_gil([&] { return group.metrics(); })) {
        rows.append(py::make_tuple(metric.calls, metric.bytes, std::chrono::duration<double>(metric.total).count(),
                                   std::chrono::duration<double>(metric.waiting).count()));
    }
    return rows;
}

CallQueue::Call all_reduce_call(const Addresses& addresses, int dtype, int op, int root, std::shared_ptr<SharedTensor> shared) {
    return {.run =
                [pieces = pieces_of(addresses), what = reduction(dtype, op, 1.0), root, shared = std::move(shared)](Group& group) {
                    return group.all_reduce(pieces, what, static_cast<std::uint64_t>(root + 1), root < 0 || root == group.rank(),
                                            shared.get());
                },
            .described =
                [pieces = pieces_of(addresses), what = reduction(dtype, op, 1.0), root] {
                    return (root < 0 ? std::string("all_reduce ") : "reduce to rank " + std::to_string(root) + ", ") + text_of(what) + " " +
                           text_of(pieces);
                }};
}

CallQueue::Call reduce_scatter_call(const Addresses& addresses, std::uintptr_t out, int dtype, int op) {
    const std::vector<Piece> pieces = pieces_of(addresses);
    const Reduction what = reduction(dtype, op, 1.0);
    return {.run = [=](Group& group) { return group.reduce_scatter(pieces, pointer(out), what, 0); },
            .described = [=] { return "reduce_scatter " + text_of(what) + " " + text_of(pieces); }};
}

CallQueue::Call all_gather_call(std::uintptr_t in, const Addresses& addresses, int root) {
    const std::vector<Piece> pieces = pieces_of(addresses);
    return {.run = [=](Group& group) { return group.all_gather(pointer(in), pieces, static_cast<std::uint64_t>(root + 1)); },
            .described =
                [=] {
                    return (root < 0 ? std::string("all_gather") : "gather to rank " + std::to_string(root)) + " of bytes " +
                           text_of(pieces);
                }};
}

CallQueue::Call broadcast_call(std::uintptr_t data, std::size_t bytes, int root) {
    return {.run = [=](Group& group) { return group.broadcast(pointer(data), bytes, root, 0, true); },
            .described = [=] { return "broadcast of " + std::to_string(bytes) + " bytes from rank " + std::to_string(root); }};
}

CallQueue::Call scatter_call(const Addresses& addresses, std::uintptr_t out, std::size_t bytes, int root) {
    const std::vector<Piece> pieces = pieces_of(addresses);
    const Piece target{.data = pointer(out), .count = bytes};
    return {.run = [=](Group& group) { return group.scatter(pieces, target, root, 0); },
            .described = [=] { return "scatter of " + std::to_string(bytes) + " bytes for each from rank " + std::to_string(root); }};
}

CallQueue::Call all_to_all_call(const Addresses& sources, const Addresses& targets) {
    const std::vector<Piece> in = pieces_of(sources);
    const std::vector<Piece> out = pieces_of(targets);
    return {.run = [=](Group& group) { return group.all_to_all(in, out, 0); },
            .described = [=] { return "all_to_all of bytes " + text_of(in) + " for " + text_of(out); }};
}

void raise(const Error& error) {
    static constexpr std::array<std::pair<Failure, const char*>, 4> classes{{
        {Failure::config, "ConfigError"},
        {Failure::peer_lost, "PeerLost"},
        {Failure::segment, "SegmentError"},
        {Failure::forked, "ForkedError"},
    }};
    for (const auto& [failure, name] : classes) {
        if (failure == error.failure) {
            const py::object type = py::module_::import("softs_fast.errors").attr(name);
            PyErr_SetString(type.ptr(), error.what());
        }
    }
}

}  // namespace

void bind_collective(py::module_& module) {
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) std::rethrow_exception(thrown);
        } catch (const Error& error) {
            raise(error);
        }
    });

    // The plain metaclass: pybind11's own is for static properties, and cannot be named in a stub.
    const py::metaclass plain(reinterpret_cast<PyObject*>(&PyType_Type));
    py::class_<Segment>(module, "Segment", plain)
        .def_static("create", [](std::size_t bytes) { return Segment{Mapping::create(bytes)}; })
        .def_static("create_group", [](int size, std::size_t slot_bytes) { return Segment{Group::create_segment(size, slot_bytes)}; })
        .def_static("open", [](const py::bytes& offer, std::size_t bytes) { return Segment{open_offered(std::string(offer), bytes)}; })
        .def_static("open_group",
                    [](const py::bytes& offer, int size, std::size_t slot_bytes) {
                        return Segment{open_offered(std::string(offer), group_bytes(size, slot_bytes))};
                    })
        .def_static("create_region", &create_region, py::arg("n_bytes"), py::arg("size"))
        .def_static(
            "open_region",
            [](const py::bytes& offer, std::size_t bytes, int size) {
                return Segment{open_offered(std::string(offer), Region::total(bytes, size))};
            },
            py::arg("offer"), py::arg("n_bytes"), py::arg("size"))
        .def("offer", [](const Segment& segment) {
            if (!segment.mapping) throw Error(Failure::config, "the segment has been taken already");
            return py::bytes(packed(segment.mapping->offer()));
        });

    py::class_<Part>(module, "Part", plain, py::buffer_protocol()).def_buffer([](Part& part) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(part.data), static_cast<py::ssize_t>(part.region.bytes()));
    });

    py::class_<Region>(module, "Region", plain)
        .def(py::init(&region_of), py::arg("segment"), py::arg("n_bytes"), py::arg("size"))
        .def("part", [](const Region& region, int rank) { return Part{region, region.part(rank)}; })
        .def("result", [](const Region& region) { return Part{region, region.result()}; });

    py::class_<Group, std::shared_ptr<Group>>(module, "Group", plain)
        .def(py::init(&join))
        .def("barrier", &Group::barrier, Release())
        .def("all_reduce", &all_reduce_pieces)
        .def(
            "all_reduce_region",
            [](Group& group, const Region& region, std::size_t offset, std::size_t count, bool into_result, bool stream, int dtype, int op,
               double scale, std::uint64_t tag) {
                if (region.size() != group.size()) throw Error(Failure::config, "the bucket belongs to another group");
                return group.all_reduce(region, offset, count, into_result, stream, reduction(dtype, op, scale), tag);
            },
            Release())
        .def(
            "reduce_scatter",
            [](Group& group, std::uintptr_t in, const std::vector<std::size_t>& bounds, std::uintptr_t out, int dtype, int op, double scale,
               std::uint64_t tag) {
                const Reduction what = reduction(dtype, op, scale);
                return group.reduce_scatter(slices_of(group, in, bounds, item_bytes(what.dtype)), pointer(out), what, tag);
            },
            Release())
        .def(
            "all_gather",
            [](Group& group, std::uintptr_t in, const std::vector<std::size_t>& bounds, std::uintptr_t out, std::uint64_t tag) {
                return group.all_gather(pointer(in), slices_of(group, out, bounds, 1), tag);
            },
            Release())
        .def(
            "broadcast",
            [](Group& group, std::uintptr_t data, std::size_t bytes, int root, std::uint64_t tag) {
                return group.broadcast(pointer(data), bytes, root, tag);
            },
            Release())
        .def("exchange", [](Group& group, const std::string& said) { return as_bytes(without_gil([&] { return group.exchange(said); })); })
        .def("share", &Group::share, Release())
        .def("give_up", &Group::give_up, Release())
        .def("end", &Group::end, Release())
        .def(
            "rebuild", [](Group& group) { return std::shared_ptr<Group>(group.rebuild()); }, Release())
        .def("close", &Group::close, Release())
        .def(
            "set_schedule",
            [](Group& group, std::size_t one_shot_bytes, std::size_t chunk_bytes) {
                group.set_schedule({.one_shot_bytes = one_shot_bytes, .chunk_bytes = chunk_bytes});
            },
            Release())
        .def("metrics", &metrics)
        .def("n_in_place", &Group::n_in_place, Release())
        .def("lost", &Group::lost, Release())
        .def("ended", &Group::ended, Release())
        .def("describe",
             [](const Group& group, int rank) {
                 if (rank < 0 || rank >= group.size()) throw py::value_error("no such rank");
                 return group.describe(rank);
             })
        .def("processes",
             [](const Group& group) {
                 std::vector<std::pair<int, std::uint64_t>> processes;
                 for (const Member& member : group.watch().members()) processes.emplace_back(member.pid, member.started);
                 return processes;
             })
        .def("broken", &Group::broken, Release())
        .def_property_readonly("rank", &Group::rank)
        .def_property_readonly("size", &Group::size);

    py::class_<SharedTensor, std::shared_ptr<SharedTensor>>(module, "SharedTensor", plain)
        .def(py::init<>())
        .def("seen", &SharedTensor::seen)
        .def(
            "move", [](SharedTensor& shared, std::uintptr_t data, std::size_t bytes, int fd) { shared.move(pointer(data), bytes, fd); },
            Release(), py::arg("data"), py::arg("n_bytes"), py::arg("fd"))
        .def("refuse", &SharedTensor::refuse)
        .def("part_from_parent", &SharedTensor::part_from_parent);

    using Call = CallQueue::Call;
    py::class_<Call>(module, "Call", plain)
        .def_static(
            "barrier",
            [] { return Call{.run = [](Group& group) { return group.barrier(0); }, .described = [] { return std::string("barrier"); }}; })
        .def_static("confirm", [] { return Call{.run = [](Group&) { return true; }, .described = {}}; })
        .def_static("all_reduce", &all_reduce_call, py::arg("pieces"), py::arg("dtype"), py::arg("op"), py::arg("root") = -1,
                    py::arg("shared") = nullptr)
        .def_static("reduce_scatter", &reduce_scatter_call, py::arg("pieces"), py::arg("target"), py::arg("dtype"), py::arg("op"))
        .def_static("all_gather", &all_gather_call, py::arg("source"), py::arg("pieces"), py::arg("root") = -1)
        .def_static("broadcast", &broadcast_call, py::arg("data"), py::arg("n_bytes"), py::arg("root"))
        .def_static("scatter", &scatter_call, py::arg("pieces"), py::arg("target"), py::arg("n_bytes"), py::arg("root"))
        .def_static("all_to_all", &all_to_all_call, py::arg("sources"), py::arg("targets"));

    py::class_<Outcome, std::shared_ptr<Outcome>>(module, "Outcome", plain)
        .def("wait", &wait, py::arg("seconds") = py::none())
        .def("differences", [](const Outcome& outcome) { return as_bytes(outcome.differences()); });

    py::class_<CallQueue, std::shared_ptr<CallQueue>>(module, "CallQueue", plain)
        .def(py::init<std::shared_ptr<Group>>(), py::arg("group"))
        .def("make", &make, py::arg("call"), py::arg("timeout_s"))
        .def(
            "submit",
            [](CallQueue& queue, Call call, double timeout_s) {
                call.timeout = nanoseconds(timeout_s);
                return std::const_pointer_cast<Outcome>(queue.submit(std::move(call)));
            },
            py::arg("call"), py::arg("timeout_s"))
        .def("close", &CallQueue::close, Release())
        .def("abandon", &CallQueue::abandon, Release());

    py::class_<PointToPoint, std::shared_ptr<PointToPoint>>(module, "PointToPoint", plain)
        .def(py::init<std::shared_ptr<Group>, Region>(), py::arg("group"), py::arg("region"))
        .def_static("part_bytes", &PointToPoint::part_bytes, py::arg("size"))
        .def(
            "send",
            [](PointToPoint& messages, int rank, std::uintptr_t data, std::size_t bytes, std::uint32_t tag, double timeout_s) {
                return std::const_pointer_cast<Outcome>(messages.send(rank, pointer(data), bytes, tag, nanoseconds(timeout_s)));
            },
            py::arg("rank"), py::arg("data"), py::arg("n_bytes"), py::arg("tag"), py::arg("timeout_s"))
        .def(
            "receive",
            [](PointToPoint& messages, int rank, std::uintptr_t data, std::size_t bytes, std::uint32_t tag, double timeout_s) {
                return std::const_pointer_cast<Outcome>(messages.receive(rank, pointer(data), bytes, tag, nanoseconds(timeout_s)));
            },
            py::arg("rank"), py::arg("data"), py::arg("n_bytes"), py::arg("tag"), py::arg("timeout_s"))
        .def("close", &PointToPoint::close, Release())
        .def("abandon", &PointToPoint::abandon, Release());

    py::class_<Words>(module, "Words", plain)
        .def(py::init<std::shared_ptr<Group>>(), py::arg("group"))
        .def_property_readonly("memory",
                               [](const Words& words) {
                                   const auto memory = words.memory();
                                   return std::pair(reinterpret_cast<std::uintptr_t>(memory.data()), memory.size());
                               })
        .def(
            "word",
            [](const Words& words, int rank) {
                if (rank < 0 || rank >= words.size()) throw py::value_error("no such rank");
                return reinterpret_cast<std::uintptr_t>(words.word(rank));
            },
            py::arg("rank"))
        .def_property_readonly("stop", [](const Words& words) { return reinterpret_cast<std::uintptr_t>(words.stop()); })
        .def_property("own", &Words::own, &Words::set_own)
        .def("want", &Words::want, py::arg("value"))
        .def("undone", &Words::undone)
        .def("drained", &Words::drained)
        .def("close", &Words::close, Release());
    module.attr("FIRST_WORD") = first_epoch;

    module.def("this_process", [] {
        const Member self = this_process();
        return std::tuple(static_cast<int>(self.pid), self.started, self.pid_namespace);
    });
    module.def(
        "is_alive",
        [](int pid, std::uint64_t started, std::uint64_t pid_namespace) {
            return is_alive({.pid = pid, .started = started, .pid_namespace = pid_namespace});
        },
        py::arg("pid"), py::arg("started"), py::arg("pid_namespace"));
    module.attr("MAX_RANKS") = max_ranks;
}

}  // namespace softs
