// A build without CUDA: all functions of cuda/ that need it throw.
#include "device.hpp"
#include "pack.hpp"
#include "reduce.hpp"

namespace softs::cuda {
namespace {

[[noreturn]] void refuse() {
    throw Error("no CUDA", "this build of softs_fast has no CUDA side; build it with nvcc on PATH, or with SOFTS_CUDA=pip");
}

}  // namespace

int n_devices() noexcept {
    return 0;
}
std::optional<int> runtime_version() noexcept {
    return std::nullopt;
}
std::string device_name(int) {
    refuse();
}
std::string device_id(int) {
    refuse();
}
std::optional<int> device_of(const void*) {
    refuse();
}
bool can_access(int, int) {
    refuse();
}
void load_kernels(int) {
    refuse();
}
void copy(void*, const void*, std::uint64_t, StreamHandle) {
    refuse();
}
void register_host(void*, std::uint64_t, int) {
    refuse();
}
void unregister_host(void*, int) {
    refuse();
}
std::uint64_t map_host(void*, std::uint64_t, int) {
    refuse();
}
void write_word(std::uint64_t, std::uint32_t, int, StreamHandle) {
    refuse();
}
void wait_for_word(std::uint64_t, std::uint32_t, int, StreamHandle) {
    refuse();
}
void pack(const std::vector<PackItem>&, void*, std::uint64_t) {
    refuse();
}
void reduce_on_device(const DeviceReduction&, const std::vector<const void*>&, void*, std::uint64_t, std::uint64_t) {
    refuse();
}
void reduce_together(const Together&, std::uint64_t) {
    refuse();
}

Memory::Memory(std::uint64_t bytes, int device) : bytes_(bytes), device_(device) {
    refuse();
}
void Memory::close() noexcept {}

Mapping::Mapping(const Handle&, int device) : device_(device) {
    refuse();
}
void Mapping::close() noexcept {}

Event::Event(int device) : device_(device) {
    refuse();
}
Event::Event(const Handle&, int device) : device_(device) {
    refuse();
}
void Event::check_open() const {}
void Event::record(StreamHandle) {}
void Event::wait(StreamHandle) {}
bool Event::is_done() {
    return false;
}
void Event::synchronize() {}
void Event::close() noexcept {}

Stream::Stream(int device) : device_(device) {
    refuse();
}
void Stream::synchronize() {}
void Stream::close() noexcept {}

}  // namespace softs::cuda
