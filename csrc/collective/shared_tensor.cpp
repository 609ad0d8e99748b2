#include "shared_tensor.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "error.hpp"

namespace softs::collective {
namespace {

constexpr std::uintptr_t page_bytes = 4096;
constexpr unsigned not_executable = 0x8;  // MFD_NOEXEC_SEAL, of Linux 6.3

[[noreturn]] void fail(const char* what) {
    throw Error(Failure::segment, std::string("cannot ") + what + ": " + std::strerror(errno));
}

struct File {
    const int fd;
    ~File() {
        if (fd >= 0) ::close(fd);
    }
};

int make_file() noexcept {
    const int fd = memfd_create("softs-tensor", MFD_CLOEXEC | not_executable);
    return fd < 0 && errno == EINVAL ? memfd_create("softs-tensor", MFD_CLOEXEC) : fd;
}

// Puts a new file with the same contents in the place of the one that is mapped at `memory`, in the same mapping and the
// same descriptor. No other process has the new one.
void replace_file(std::span<std::byte> memory, int fd) {
    const File file{make_file()};
    if (file.fd < 0) fail("make memory for a tensor");
    for (std::size_t done = 0; done < memory.size();) {
        const ssize_t written = ::pwrite(file.fd, memory.data() + done, memory.size() - done, static_cast<off_t>(done));
        if (written < 0 && errno != EINTR) fail("take memory for a tensor");
        if (written > 0) done += static_cast<std::size_t>(written);
    }
    if (mmap(memory.data(), memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.fd, 0) == MAP_FAILED) {
        fail("map memory for a tensor");
    }
    madvise(memory.data(), memory.size(), MADV_HUGEPAGE);  // only a hint
    while (dup3(file.fd, fd, O_CLOEXEC) < 0) {
        if (errno != EINTR && errno != EBUSY) fail("keep the descriptor of a tensor");
    }
}

std::array<std::uint64_t, 2> file_of(int fd) noexcept {
    struct stat found{};
    if (fstat(fd, &found) != 0) return {};
    return {found.st_ino, found.st_dev};
}

}  // namespace

bool SharedTensor::seen() noexcept {
    if (n_seen_ < seen_often && ++n_seen_ == seen_often) word_.store(wanted, std::memory_order_relaxed);
    return is_due_.load(std::memory_order_relaxed) && word_.load(std::memory_order_relaxed) == wanted;
}

void SharedTensor::move(std::byte* data, std::size_t bytes, int fd) {
    if (reinterpret_cast<std::uintptr_t>(data) % page_bytes != 0) throw Error(Failure::segment, "a tensor is not in memory of its own");
    data_ = {data, bytes};
    fd_ = fd;
    // A fork parts from this file, too.
    file_ = file_of(fd_);
    replace_file(data_, fd_);
    file_ = file_of(fd_);
    word_.store(moved, std::memory_order_release);
}

bool SharedTensor::is_there() const noexcept {
    return fd_ >= 0 && file_of(fd_) == file_;
}

void SharedTensor::part_from_parent() noexcept {
    if (is_there()) (void)mmap(data_.data(), data_.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd_, 0);
}

std::uint32_t SharedTensor::word(const std::byte* data, std::size_t bytes) noexcept {
    const std::uint32_t now = word_.load(std::memory_order_acquire);
    if (now == refused) return staged;
    if (now < moved || (data == data_.data() && bytes == data_.size() && is_there())) return now;
    forget();
    return staged;
}

void SharedTensor::learn(std::uint32_t lowest, std::uint32_t highest) noexcept {
    const std::uint32_t now = word_.load(std::memory_order_relaxed);
    if (now == refused) return;
    if (lowest >= wanted) is_due_.store(true, std::memory_order_relaxed);
    const bool has_refused = now == moved && lowest == staged;
    const bool is_another = now >= moved && lowest != staged && highest >= first_number && lowest != highest;
    if (has_refused || is_another) forget();
}

void SharedTensor::open(const std::vector<Offer>& offers, int own_rank) {
    for (int rank = 0; rank < static_cast<int>(offers.size()); ++rank) {
        if (rank != own_rank) {
            opened_.push_back(Mapping::open_plain(offers[static_cast<std::size_t>(rank)]));
            opened_.back().close_descriptor();
        }
        parts_.push_back(rank == own_rank ? data_.data() : opened_.back().data());
    }
}

void SharedTensor::forget() noexcept {
    refuse();
    parts_.clear();
    opened_.clear();
}

bool SharedTensor::withdraw() noexcept {
    forget();
    try {
        replace_file(data_, fd_);
        file_ = file_of(fd_);
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

}  // namespace softs::collective
