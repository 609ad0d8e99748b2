// Unnamed shared memory of one host: made by one process, opened by others through its descriptor, freed with the
// last of them.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace softs::collective {

// The descriptor of a segment in its process, and the random number that proves that the opened memory is that
// segment.
struct Offer {
    std::int32_t pid = 0;
    std::int32_t fd = -1;
    std::uint64_t bytes = 0;
    std::array<std::uint64_t, 2> nonce{};
};

enum class Access { read_write, read_only };

// A segment mapped into this process. The first page belongs to this class; `data()` begins after it. A plain file has no
// such page.
class Mapping {
  public:
    // A new segment of `bytes`, its memory not yet allocated (`allocate`).
    // Throws Error{segment} where /dev/shm is missing, full, or of another kind than tmpfs.
    static Mapping create(std::size_t bytes);

    // Opens the offer of another process. Throws Error{segment} where that is impossible, or the memory is not the
    // offered one: a process of another host or pid namespace, or one that has ended.
    // A mapping for reading alone must not be written to (SIGSEGV), and is refused where memory is missing, because
    // reading would allocate it.
    static Mapping open(const Offer& offer, Access access = Access::read_write);

    // Opens a file of memory of another process, which nothing precedes; `nonce` is its inode and device.
    static Mapping open_plain(const Offer& offer);

    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    // Allocates the memory of a range, so that a full /dev/shm is an error here and not a SIGBUS later. Existing
    // pages keep their contents; new ones are zero, and near the calling thread. Throws Error{segment}.
    void allocate(std::size_t offset, std::size_t bytes);

    // Other processes cannot open it from this process any more; the memory stays mapped.
    void close_descriptor() noexcept;

    std::byte* data() const noexcept { return memory_ + header_; }
    std::size_t bytes() const noexcept { return bytes_; }
    const Offer& offer() const noexcept { return offer_; }

  private:
    static constexpr std::size_t header_bytes = 4096;

    Mapping() = default;
    static Mapping open_file(const Offer& offer, Access access, std::size_t header);
    void map(Access access);
    void release() noexcept;

    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;  // without the first page
    std::size_t header_ = header_bytes;
    int fd_ = -1;
    Offer offer_;
};

}  // namespace softs::collective
