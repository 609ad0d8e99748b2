// Unnamed shared memory of one host: made by one process, opened by others through its descriptor, gone with the last of them.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace softs::collective {

// Where a process keeps a segment open, and the random number that proves that what was opened there is that segment.
struct Offer {
    std::int32_t pid = 0;
    std::int32_t fd = -1;
    std::uint64_t bytes = 0;
    std::array<std::uint64_t, 2> nonce{};
};

// A segment mapped into this process. The first page belongs to this class; `data()` begins behind it.
class Mapping {
  public:
    // A new segment of `bytes`, its memory not yet allocated (`allocate`).
    // Throws Error{segment} where /dev/shm is missing, full, or of another kind than tmpfs.
    static Mapping create(std::size_t bytes);

    // Opens what another process offers. Throws Error{segment} where that is impossible, or is not what was offered: a process of
    // another host or pid namespace, or one that has ended.
    static Mapping open(const Offer& offer);

    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    // Takes memory for a range, so that a full /dev/shm is an error here and no SIGBUS later. Pages that exist stay as they are;
    // new ones are zero, and near the calling thread. Throws Error{segment}.
    void allocate(std::size_t offset, std::size_t bytes);

    // No more can be opened from this process; the memory stays mapped.
    void close_descriptor() noexcept;

    std::byte* data() const noexcept { return memory_ + header_bytes; }
    std::size_t bytes() const noexcept { return bytes_; }
    const Offer& offer() const noexcept { return offer_; }

  private:
    static constexpr std::size_t header_bytes = 4096;

    Mapping() = default;
    void map();
    void release() noexcept;

    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;  // without the first page
    int fd_ = -1;
    Offer offer_;
};

}  // namespace softs::collective
