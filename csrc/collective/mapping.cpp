#include "mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "error.hpp"

namespace softs::collective {
namespace {

constexpr std::uint64_t magic = 0x32305f6c6c6f6373;  // "scoll_02"

struct Header {
    std::uint64_t magic;
    std::array<std::uint64_t, 2> nonce;
};

[[noreturn]] void fail(const std::string& what, int error) {
    throw Error(Failure::segment, what + ": " + std::strerror(error));
}

std::string path_of(const Offer& offer) {
    return "/proc/" + std::to_string(offer.pid) + "/fd/" + std::to_string(offer.fd);
}

std::string cannot_open(const Offer& offer) {
    return "cannot open shared memory of process " + std::to_string(offer.pid) + " (" + path_of(offer) + ')';
}

std::array<std::uint64_t, 2> random_nonce() {
    std::array<std::uint64_t, 2> nonce{};
    if (getrandom(nonce.data(), sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce)) fail("cannot draw a random number", errno);
    return nonce;
}

}  // namespace

Mapping Mapping::create(std::size_t bytes) {
    Mapping made;
    made.bytes_ = bytes;
    // Unnamed: nothing is left behind when a process is killed.
    made.fd_ = ::open("/dev/shm", O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
    if (made.fd_ < 0) fail("cannot create shared memory in /dev/shm (a tmpfs is needed there)", errno);
    if (ftruncate(made.fd_, static_cast<off_t>(bytes + header_bytes)) != 0) {
        fail("cannot create shared memory of " + std::to_string(bytes) + " bytes in /dev/shm", errno);
    }
    made.allocate(0, 0);
    made.map(Access::read_write);
    made.offer_ = {.pid = getpid(), .fd = made.fd_, .bytes = bytes, .nonce = random_nonce()};
    const Header header{.magic = magic, .nonce = made.offer_.nonce};
    std::memcpy(made.memory_, &header, sizeof header);
    return made;
}

Mapping Mapping::open_file(const Offer& offer, Access access, std::size_t header) {
    const std::string path = path_of(offer);
    Mapping opened;
    opened.bytes_ = offer.bytes;
    opened.header_ = header;
    opened.offer_ = offer;
    // The descriptor may be a pipe or a device by now: neither wait for it nor make it the terminal.
    opened.fd_ = ::open(path.c_str(), (access == Access::read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened.fd_ < 0) fail(cannot_open(offer), errno);
    struct stat found{};
    if (fstat(opened.fd_, &found) != 0) fail(cannot_open(offer), errno);
    const bool is_file = S_ISREG(found.st_mode) && found.st_uid == geteuid() && found.st_size >= 0 &&
                         static_cast<std::uint64_t>(found.st_size) == offer.bytes + header;
    const bool is_it = header != 0 || offer.nonce == std::array<std::uint64_t, 2>{found.st_ino, found.st_dev};
    if (!is_file || !is_it) throw Error(Failure::segment, cannot_open(offer) + ": it is another file");
    if (access == Access::read_only && static_cast<std::uint64_t>(found.st_blocks) * 512 < offer.bytes + header) {
        throw Error(Failure::segment, cannot_open(offer) + ": only a part of it is allocated");
    }
    opened.map(access);
    return opened;
}

Mapping Mapping::open(const Offer& offer, Access access) {
    Mapping opened = open_file(offer, access, header_bytes);
    Header header;
    std::memcpy(&header, opened.memory_, sizeof header);
    if (header.magic != magic || header.nonce != offer.nonce) throw Error(Failure::segment, cannot_open(offer) + ": it is other memory");
    return opened;
}

Mapping Mapping::open_plain(const Offer& offer) {
    return open_file(offer, Access::read_write, 0);
}

Mapping::Mapping(Mapping&& other) noexcept {
    *this = std::move(other);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    if (this != &other) {
        release();
        memory_ = std::exchange(other.memory_, nullptr);
        bytes_ = other.bytes_;
        header_ = other.header_;
        fd_ = std::exchange(other.fd_, -1);
        offer_ = other.offer_;
    }
    return *this;
}

Mapping::~Mapping() {
    release();
}

void Mapping::allocate(std::size_t offset, std::size_t bytes) {
    // The first page is allocated with the beginning of the data.
    const auto start = static_cast<off_t>(offset == 0 ? 0 : offset + header_bytes);
    const auto length = static_cast<off_t>(offset == 0 ? bytes + header_bytes : bytes);
    int error = EINTR;
    while (error == EINTR) error = length == 0 ? 0 : posix_fallocate(fd_, start, length);
    if (error == 0) return;
    struct statvfs there{};
    const bool is_known = fstatvfs(fd_, &there) == 0;
    const std::string free = is_known ? ", " + std::to_string(there.f_bavail * there.f_frsize) + " are free" : "";
    throw Error(Failure::segment, "cannot take " + std::to_string(length) + " bytes of shared memory" + free + ": " + std::strerror(error) +
                                      "; free or enlarge /dev/shm (for a container: --shm-size)");
}

void Mapping::close_descriptor() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Mapping::map(Access access) {
    const int protection = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    void* const memory = mmap(nullptr, bytes_ + header_, protection, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) fail("cannot map " + std::to_string(bytes_) + " bytes of shared memory", errno);
    memory_ = static_cast<std::byte*>(memory);
    // Only a hint: hosts that allow huge pages here save most TLB misses.
    madvise(memory, bytes_ + header_, MADV_HUGEPAGE);
}

void Mapping::release() noexcept {
    if (memory_ != nullptr) munmap(std::exchange(memory_, nullptr), bytes_ + header_);
    close_descriptor();
}

}  // namespace softs::collective
