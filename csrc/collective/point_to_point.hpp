// Messages from one rank of a group to another, beside its collectives. Each rank has a thread that moves what was given
// to it through rings: one for each ordered pair of ranks, in the part of the region that belongs to the sender.
//
// C1 one writer: the sender stores `written`, the receiver `read`; bytes of a ring are stored before `written` covers
//    them, and read before `read` does.
// C2 messages of one pair keep their order for each tag. One that nothing waits for stays in the ring, unless the
//    receiver waits for a later one: then it is kept here, until it is asked for.
// C3 nothing that is read from a ring is used as an index, an address or a length without a check.
// C4 memory of the caller is used until the outcome is there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "call_queue.hpp"
#include "group.hpp"

namespace softs::collective {

class PointToPoint {
  public:
    // The region is shared by the ranks of the group, with `part_bytes` for each rank.
    PointToPoint(std::shared_ptr<Group> group, Region region);
    PointToPoint(const PointToPoint&) = delete;
    PointToPoint& operator=(const PointToPoint&) = delete;
    ~PointToPoint() { close(); }

    // Bytes of the part of each rank in a group of this size.
    static std::size_t part_bytes(int size) noexcept;

    // Throw Error{config} for a rank that is none, and after `close`; Error{forked}.
    std::shared_ptr<const Outcome> send(int rank, const std::byte* data, std::size_t bytes, std::uint32_t tag,
                                        std::chrono::nanoseconds timeout);
    std::shared_ptr<const Outcome> receive(int rank, std::byte* data, std::size_t bytes, std::uint32_t tag,
                                           std::chrono::nanoseconds timeout);
    // Ends what is pending, and the thread.
    void close() noexcept;
    // Takes nothing more, and leaves the thread in what it does, for a process that ends.
    void abandon() noexcept;

  private:
    struct Post;
    struct State;

    std::shared_ptr<const Outcome> give(int rank, Post post);
    static void work(State& state) noexcept;

    std::shared_ptr<State> state_;  // the thread holds it too
    unsigned forks_;
};

}  // namespace softs::collective
