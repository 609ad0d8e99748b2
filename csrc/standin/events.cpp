// Events: the number of records, and the last record with completed work, in memory that other processes can open.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "settings.hpp"
#include "streams.hpp"

namespace {

struct Marks {
    std::atomic<std::uint64_t> recorded;
    std::atomic<std::uint64_t> done;
    std::atomic<pid_t> recorder;

    bool reached(std::uint64_t mark) const { return done.load(std::memory_order_acquire) >= mark; }
    void wait(std::uint64_t mark) const {
        while (!reached(mark)) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    void reach(std::uint64_t mark) {
        auto known = done.load(std::memory_order_relaxed);
        while (known < mark && !done.compare_exchange_weak(known, mark, std::memory_order_release, std::memory_order_relaxed)) {
        }
    }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Contents of a handle; it fills the 64 bytes of CUDA's.
struct Handle {
    char magic[8];
    std::uint64_t inode;
    std::int32_t pid;
    std::int32_t fd;
    std::int32_t device;
    char rest[36];
};
static_assert(sizeof(Handle) == sizeof(cudaIpcEventHandle_t));
constexpr char magic[8] = {'s', 't', 'a', 'n', 'd', 'i', 'n', 'e'};

// Work that is still in a stream keeps the state of a destroyed event.
std::shared_ptr<Marks> mapped(int fd) {
    void* memory = mmap(nullptr, sizeof(Marks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return nullptr;
    return {static_cast<Marks*>(memory), [](Marks* marks) { munmap(marks, sizeof(Marks)); }};
}

}  // namespace

struct StandinEvent {
    std::shared_ptr<Marks> marks;
    int device;
    int fd;  // -1: another process owns it
};

using namespace standin;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0) return failed(cudaErrorInvalidValue);
    need_context();
    const int fd = memfd_create("standin", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(Marks)) != 0) return failed(cudaErrorMemoryAllocation);
    auto marks = mapped(fd);
    if (marks == nullptr) return failed(cudaErrorMemoryAllocation);
    *event = new StandinEvent{marks, current_device(), fd};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    need_context();
    if (event->fd >= 0) close(event->fd);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (device_of(stream) != event->device) return failed(cudaErrorInvalidResourceHandle);
    const auto mark = event->marks->recorded.fetch_add(1) + 1;
    // As on a GPU: behind an undone record of another process, so never if that one was killed.
    const bool of_other = event->marks->recorder.exchange(getpid()) != getpid();
    return submit(stream, [marks = event->marks, mark, of_other] {
        if (of_other) marks->wait(mark - 1);
        marks->reach(mark);
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return submit(stream, [marks = event->marks, mark = event->marks->recorded.load()] { marks->wait(mark); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    need_context();
    return event->marks->reached(event->marks->recorded.load()) ? cudaSuccess : failed(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    need_context();
    event->marks->wait(event->marks->recorded.load());
    return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
    struct stat status{};
    if (event->fd < 0 || fstat(event->fd, &status) != 0) return failed(cudaErrorInvalidResourceHandle);
    Handle said{};
    std::memcpy(said.magic, magic, sizeof magic);
    said.inode = status.st_ino;
    said.pid = getpid();
    said.fd = event->fd;
    said.device = event->device;
    std::memcpy(handle, &said, sizeof said);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
    Handle said;
    std::memcpy(&said, &handle, sizeof said);
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    if (std::memcmp(said.magic, magic, sizeof magic) != 0) return failed(cudaErrorInvalidResourceHandle);
    if (said.pid == getpid()) return failed(cudaErrorDeviceUninitialized);
    if (!settings().ipc) return failed(cudaErrorInvalidResourceHandle);
    need_context();
    const std::string path = "/proc/" + std::to_string(said.pid) + "/fd/" + std::to_string(said.fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status{};
    std::shared_ptr<Marks> marks;
    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_ino == said.inode) marks = mapped(fd);
    if (fd >= 0) close(fd);
    if (marks == nullptr) return failed(cudaErrorInvalidResourceHandle);
    *event = new StandinEvent{marks, said.device, -1};
    return cudaSuccess;
}
