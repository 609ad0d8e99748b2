// Device memory: a memfd for each allocation, which other processes open through the descriptor of its owner.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "memory.hpp"
#include "settings.hpp"
#include "streams.hpp"

namespace standin {
namespace {

struct Registration {
    std::size_t bytes;
    bool is_mapped;
};

struct Block {
    std::size_t bytes;
    int device;
    int fd;  // -1: another process owns it
};

// Contents of a handle; it fills the 64 bytes of CUDA's.
struct Handle {
    char magic[8];
    std::uint64_t bytes;
    std::uint64_t inode;
    std::int32_t pid;
    std::int32_t fd;
    std::int32_t device;
    char rest[28];
};
static_assert(sizeof(Handle) == sizeof(cudaIpcMemHandle_t));
constexpr char magic[8] = {'s', 't', 'a', 'n', 'd', 'i', 'n', 'm'};

// Never destroyed: streams may still run when the process ends.
std::mutex& mutex = *new std::mutex;
std::map<char*, Block>& blocks = *new std::map<char*, Block>;
std::map<char*, Registration>& registered = *new std::map<char*, Registration>;

void* mapped(int fd, std::size_t bytes, int sharing = MAP_SHARED) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing, fd, 0);
    return address == MAP_FAILED ? nullptr : address;
}

cudaError_t give_back(void* address, bool is_ours) {
    need_context();
    synchronize_all();
    const std::lock_guard guard(mutex);
    const auto found = blocks.find(static_cast<char*>(address));
    if (found == blocks.end() || (found->second.fd >= 0) != is_ours) return failed(cudaErrorInvalidValue);
    munmap(address, found->second.bytes);
    if (is_ours) close(found->second.fd);
    blocks.erase(found);
    return cudaSuccess;
}

// The registration that an address is in; the lock is held.
const Registration* registration_of(const void* address, std::size_t bytes) {
    auto* at = const_cast<char*>(static_cast<const char*>(address));
    auto after = registered.upper_bound(at);
    if (after == registered.begin()) return nullptr;
    const auto& [base, found] = *--after;
    return at + bytes <= base + found.bytes ? &found : nullptr;
}

}  // namespace

bool is_mapped(const void* address, std::size_t bytes) {
    const std::lock_guard guard(mutex);
    const auto* found = registration_of(address, bytes);
    return found != nullptr && found->is_mapped;
}

}  // namespace standin

using namespace standin;

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
    *address = nullptr;
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    need_context();
    if (bytes == 0) return cudaSuccess;
    const int fd = memfd_create("standin", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return failed(cudaErrorMemoryAllocation);
    void* memory = mapped(fd, bytes);
    if (memory == nullptr) {
        close(fd);
        return failed(cudaErrorMemoryAllocation);
    }
    std::memset(memory, 0xA5, bytes);
    const std::lock_guard guard(mutex);
    blocks[static_cast<char*>(memory)] = {bytes, current_device(), fd};
    *address = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
    return address == nullptr ? cudaSuccess : give_back(address, true);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    const std::lock_guard guard(mutex);
    auto* at = const_cast<char*>(static_cast<const char*>(address));
    auto after = blocks.upper_bound(at);
    *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, nullptr};
    if (after != blocks.begin()) {
        const auto& [base, block] = *--after;
        if (at < base + block.bytes) *attributes = {cudaMemoryTypeDevice, block.device, at, nullptr};
    }
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
    const std::lock_guard guard(mutex);
    const auto found = blocks.find(static_cast<char*>(address));
    struct stat status{};
    if (found == blocks.end() || found->second.fd < 0 || fstat(found->second.fd, &status) != 0) return failed(cudaErrorInvalidValue);
    // CUDA would share the neighbours, too.
    if (found->second.bytes % (2u << 20) != 0) return failed(cudaErrorInvalidValue);
    Handle said{};
    std::memcpy(said.magic, magic, sizeof magic);
    said.bytes = found->second.bytes;
    said.inode = status.st_ino;
    said.pid = getpid();
    said.fd = found->second.fd;
    said.device = found->second.device;
    std::memcpy(handle, &said, sizeof said);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
    Handle said;
    std::memcpy(&said, &handle, sizeof said);
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    if (flags != cudaIpcMemLazyEnablePeerAccess || std::memcmp(said.magic, magic, sizeof magic) != 0) return failed(cudaErrorInvalidValue);
    if (said.pid == getpid()) return failed(cudaErrorDeviceUninitialized);
    if (!settings().ipc) return failed(cudaErrorInvalidValue);
    need_context();
    if (said.device >= settings().devices) return failed(cudaErrorInvalidDevice);
    if (said.device != current_device() && !settings().peers) return failed(cudaErrorPeerAccessUnsupported);
    const std::string path = "/proc/" + std::to_string(said.pid) + "/fd/" + std::to_string(said.fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status{};
    void* memory = nullptr;
    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_ino == said.inode && status.st_size == static_cast<off_t>(said.bytes)) {
        const bool is_false = said.device != current_device() && settings().false_peers;
        memory = mapped(is_false ? -1 : fd, said.bytes, is_false ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    }
    if (fd >= 0) close(fd);
    if (memory == nullptr) return failed(cudaErrorMapBufferObjectFailed);
    const std::lock_guard guard(mutex);
    blocks[static_cast<char*>(memory)] = {said.bytes, said.device, -1};
    *address = memory;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
    return give_back(address, false);
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned flags) {
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    need_context();
    const std::lock_guard guard(mutex);
    auto* begin = static_cast<char*>(address);
    for (const auto& [other, known] : registered) {
        if (begin < other + known.bytes && other < begin + bytes) return failed(cudaErrorHostMemoryAlreadyRegistered);
    }
    registered[begin] = {bytes, (flags & cudaHostRegisterMapped) != 0};
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** there, void* address, unsigned) {
    if (!is_mapped(address, 1)) return failed(cudaErrorInvalidValue);
    *there = address;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
    need_context();
    const std::lock_guard guard(mutex);
    return registered.erase(static_cast<char*>(address)) == 1 ? cudaSuccess : failed(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return submit(stream, [=] { std::memcpy(to, from, bytes); });
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t stream) {
    return submit(stream, [=] { std::memset(address, value, bytes); });
}
