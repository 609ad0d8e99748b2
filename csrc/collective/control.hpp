// Layout of a group's segment: one header, then for every rank lines that only it writes, then the staging areas.
//
// Rules, each kept by group.cpp:
// - G1 one writer: `epoch`, `state`, `call`, `shared`, `notice` and `offer` of a rank are stored by that rank only, on lines of
//   128 bytes (two cache lines: processors fetch neighbours in pairs) that hold nothing of other ranks.
// - G2 an epoch is published after everything that it announces (release) and read before everything that it permits
//   (acquire).
// - G3 a rank publishes epoch e + 1 only when it no longer reads data of other ranks for epoch e - 1 or earlier; so
//   the data of an epoch is in the half of that epoch's parity, and is overwritten two epochs later at the earliest.
//   An all_reduce in chunks has its results where the inputs were, which it reads for one epoch longer: it ends with an
//   epoch for which it does not wait.
//   After an eager broadcast the root is the one that has not waited: it publishes and writes nothing until `confirm`.
//   The exception is `word`, by the rules of words.hpp: the rank's device stores it, in the order of its stream.
// - G4 nothing read from here is used as an index, an address or a length without a check: peers are of the same
//   user, but may be faulty.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "mapping.hpp"

namespace softs::collective {

constexpr int max_ranks = 64;  // the survivors of a group are the bits of one word
constexpr std::size_t line_bytes = 128;

// Epochs and words begin shortly before they wrap around, so that every group soon crosses the wrap.
constexpr std::uint32_t first_epoch = 0xFFFFFF00;

enum class State : std::uint32_t { working = 0, gave_up = 1, left = 2 };

struct alignas(line_bytes) Flags {
    std::atomic<std::uint32_t> epoch;
    std::atomic<std::uint32_t> state;
    std::array<std::atomic<std::uint64_t>, 2> call;    // hash of the call of the rank; by parity of its calls
    std::array<std::atomic<std::uint32_t>, 2> shared;  // word of that call's tensor (shared_tensor.hpp)
};

// Number of ranks that wait for the epoch of a rank; waiting ranks write it, so it is apart from the flags.
struct alignas(line_bytes) Sleepers {
    std::atomic<std::uint32_t> count;
};

// Why a rank gave up, and the ranks that it gave up (as bits). Written before `state`.
struct alignas(line_bytes) Notice {
    std::atomic<std::uint64_t> lost;
    std::array<char, 2 * line_bytes - sizeof(std::uint64_t)> text;
};

// A segment that a rank offers to the others, and the outcome of its own part in a common one.
struct alignas(line_bytes) Offering {
    std::atomic<std::uint32_t> ready;   // for a group made from a broken one, which has no epochs any more
    std::atomic<std::uint32_t> rejoin;  // wants to be in the next group
    std::atomic<std::uint32_t> failed;  // its part failed; read after an epoch
    std::atomic<std::uint32_t> fd;
    std::array<std::atomic<std::uint64_t>, 2> nonce;
};

// The progress of a rank's stream, for which streams of other ranks wait (words.hpp). A line of its own: devices poll
// it through the bus.
struct alignas(line_bytes) Word {
    std::atomic<std::uint32_t> reached;
};

// Stored by the rank's watchdog, once; read by the rank's kernels, and by the hosts of all ranks.
struct alignas(line_bytes) Drain {
    std::atomic<std::uint32_t> stop;     // kernels of this rank shall no longer wait for other ranks
    std::atomic<std::uint32_t> drained;  // a stream of this rank has gone on without the work of another rank
};

struct alignas(line_bytes) Rank {
    Flags flags;
    Sleepers sleepers;
    Notice notice;
    Offering offering;
    Word word;
    Drain drain;
};

struct alignas(line_bytes) Shared {
    std::atomic<std::uint64_t> survivors;  // ranks of the next group as bits, decided once
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(Flags) == line_bytes && sizeof(Offering) == line_bytes);
// Devices access words as plain memory.
static_assert(sizeof(Word) == line_bytes && sizeof(Drain) == line_bytes);

// All offsets, computed from two numbers that every rank knows.
struct Layout {
    int size = 0;
    std::size_t slot_bytes = 0;  // of one staging area; a multiple of line_bytes

    std::size_t ranks_at() const { return sizeof(Shared); }
    std::size_t staging_at() const { return (ranks_at() + static_cast<std::size_t>(size) * sizeof(Rank) + 4095) / 4096 * 4096; }
    // Not a power of two, which would put the same element of all ranks into the same cache set.
    std::size_t stride() const { return slot_bytes + 4096 + 5 * line_bytes; }
    // Two halves for each rank.
    std::size_t area_at(int rank, std::uint32_t half) const {
        return staging_at() + (2 * static_cast<std::size_t>(rank) + half) * stride();
    }
    std::size_t bytes() const { return area_at(size, 0); }
};

// Elements of `count` that belong to a rank: whole lines, so that no two ranks store to one.
inline std::size_t slice_begin(std::size_t count, std::size_t item_bytes, int rank, int size) {
    const std::size_t step = std::max<std::size_t>(1, line_bytes / item_bytes);
    const std::size_t steps = (count + step - 1) / step;
    return std::min(count, steps * static_cast<std::size_t>(rank) / static_cast<std::size_t>(size) * step);
}

}  // namespace softs::collective
