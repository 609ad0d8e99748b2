// Words of a group that the streams of its ranks' devices write and wait for, and the watchdog that ends waits for
// ranks that will not write.
//
// The word of a rank is a count, which its stream raises by steps of one: `value` is written when everything before it
// in the stream is done. Streams of other ranks wait until a word has reached a value, by a difference of 32 bits,
// because counts wrap around.
//
// Rules:
// - W1 one writer: a word is written by the stream of its rank, and by watchdogs as W3 says.
// - W2 no stream waits for a value before a live process has submitted its write: the hosts pass an epoch in between.
//   So a word stays behind only because its rank's process has ended, is stopped, or its device no longer works.
// - W3 a watchdog raises the word of a rank to the value that the streams of its own rank wait for, no further: at once
//   if the process of that rank has ended, and for all ranks if one of them has broken the group. Both are final, and
//   calls throw from then on; what a call has begun to submit before, the watchdog lets through as well. So all waits
//   of the group's streams end.
// - W4 a watchdog stores `drained` of its own rank before it raises a word. A host that has seen its stream pass the word
//   of any rank reads `drained` of all ranks afterwards. So it knows whether the results may be wrong.
// - W5 the device of a process that was killed may still do a write that was submitted, of a lower value: so a watchdog
//   that has raised a word looks again every `look_every`, until `close`. It raises a word by one atomic operation that
//   compares, so it never lowers one that a device or another watchdog has raised.
// - W6 words are never reset: a group that was rebuilt has a new segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "group.hpp"

namespace softs::collective {

// The words of all ranks, for one rank. While no stream waits and all ranks live, its watchdog does not run. An object
// that is destroyed without `close` closes the group, but leaves its watchdog running and the memory mapped until the
// process ends: streams may still wait.
class Words {
  public:
    // Throws Error{segment} where the system gives no thread or descriptor.
    explicit Words(std::shared_ptr<Group> group);
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;
    ~Words();

    int size() const noexcept { return group_->size(); }
    // The memory to register with a device, whole pages, and places in it.
    std::span<std::byte> memory() const noexcept { return group_->control(); }
    void* word(int rank) const noexcept { return &group_->of(rank).word; }
    void* stop() const noexcept { return &group_->of(group_->rank()).drain.stop; }

    // This rank's word, before any stream of another rank waits for it.
    std::uint32_t own() const noexcept;
    void set_own(std::uint32_t value) noexcept;

    // Streams of this rank are about to wait until all words have reached `value`. Call it before the waits are
    // submitted, and with rising values.
    void want(std::uint32_t value) noexcept;
    // Ranks that have not reached it by themselves.
    std::vector<int> undone() const;
    // Whether a stream of any rank has gone on without the work of another one.
    bool drained() const noexcept;
    // Ends the watchdog; no stream of this process may wait for a word any more. Idempotent.
    void close() noexcept;

  private:
    struct Watchdog;

    std::shared_ptr<Group> group_;
    std::unique_ptr<Watchdog> watchdog_;
    unsigned forks_;
};

}  // namespace softs::collective
