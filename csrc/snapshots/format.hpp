// Layout of a snapshot segment: two halves with tensors, and what readers must know of them. docs/snapshots.md has it
// on one screen.
//
// Rules, each kept by window.cpp, remote.cpp and average.cpp:
// - P1 one writer: only the owner writes to its segment; all others have it mapped for reading alone. Lines of
//   128 bytes that change for different reasons are apart.
// - P2 version v is written to half v mod 2, between the sequence words 2v - 1 and 2v. `latest` becomes v after it.
//   So a writer that ends or stops at any moment leaves the half of `latest` whole.
// - P3 a reader takes a half of which the sequence word is 2v, and discards all that it has read if the word is
//   another one afterwards.
// - P4 nothing read from here is used as an index, an address or a length without a check: the owner is of the same
//   user, but may be faulty. Sizes are read once, when the segment is opened.
//
// Data and labels of a half are copied by plain loads and stores while another process may change them. By the letter
// of C++ that is a data race. It is accepted, because the values are used for nothing before the sequence word has
// confirmed them: the loops that read do not branch, index or allocate by them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace softs::snapshots {

constexpr std::size_t line_bytes = 128;  // two cache lines: processors fetch neighbours in pairs
constexpr std::size_t page_bytes = 4096;

constexpr std::uint64_t magic = 0x31305f70616e7373;  // "ssnap_01"
constexpr std::uint32_t format_version = 1;

constexpr std::size_t max_tensor_bytes = std::size_t{1} << 40;
constexpr std::size_t max_manifest_bytes = std::size_t{1} << 24;
constexpr std::size_t max_config_bytes = page_bytes - 2 * line_bytes;
constexpr std::size_t max_asks = 120;

using Digest = std::array<std::uint8_t, 32>;

// Constant. `version` is stored last.
struct alignas(page_bytes) Header {
    std::uint64_t magic;
    std::uint64_t n_bytes;         // of one half
    std::uint64_t manifest_bytes;  // of the names, shapes and dtypes of the tensors
    std::uint64_t started;         // of the owner, clock ticks since boot
    std::int32_t pid;
    std::uint32_t uid;
    Digest digest;  // of the manifest
    std::atomic<std::uint32_t> version;
};

struct alignas(line_bytes) Board {
    std::atomic<std::uint64_t> latest;  // newest version that is whole; 0: none yet
    std::atomic<std::uint32_t> closed;  // the owner will publish no more
};

// "The owner of this segment has seen version `seen` of the window `id`, and wants a newer one."
struct Ask {
    std::atomic<std::uint64_t> id;
    std::atomic<std::uint64_t> seen;
};

struct alignas(line_bytes) Asks {
    std::atomic<std::uint64_t> count;
    std::array<Ask, max_asks> entries;
};

// What the owner says of a version.
struct Label {
    std::int64_t step = 0;
    std::uint64_t trained = 0;      // steps since its start or its last replacement
    std::int64_t published_ns = 0;  // CLOCK_MONOTONIC, the same for all processes of a host
    double metric = 0;
    std::uint32_t has_metric = 0;
    std::uint32_t config_bytes = 0;
};

struct alignas(page_bytes) Half {
    std::atomic<std::uint64_t> sequence;
    alignas(line_bytes) Label label;
    alignas(line_bytes) std::array<char, max_config_bytes> config;
};

// The beginning of a segment. The manifest and the two halves follow.
struct Front {
    Header header;
    Board board;
    Asks asks;
    std::array<Half, 2> halves;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(Half) == page_bytes && sizeof(Board) == line_bytes && sizeof(Front) == 4 * page_bytes);

// All offsets, computed from two numbers.
struct Layout {
    std::size_t n_bytes = 0;
    std::size_t manifest_bytes = 0;

    static std::size_t pages(std::size_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }
    bool is_possible() const { return n_bytes <= max_tensor_bytes && manifest_bytes <= max_manifest_bytes; }
    std::size_t manifest_at() const { return sizeof(Front); }
    std::size_t data_at(std::uint64_t version) const {
        return manifest_at() + pages(manifest_bytes) + static_cast<std::size_t>(version % 2) * pages(n_bytes);
    }
    std::size_t bytes() const { return data_at(0) + 2 * pages(n_bytes); }
};

}  // namespace softs::snapshots
