// Calls of one group in the order in which they were given, whatever thread gave them: at once if nothing is pending,
// else on a thread of the queue.
//
// L1: calls run one at a time, first in, first out.
// L2: a call that was given uses memory of the caller until its outcome is there; the caller keeps that alive.
// L3: the thread takes no lock of Python's and no signals, so it may be in a call when the interpreter ends.
// L4: in a fork nothing is touched: the thread is the parent's, and so is a lock that is held.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "group.hpp"

namespace softs::collective {

// What becomes of one call.
class Outcome {
  public:
    // Whether the call has ended; waits up to the time for it.
    bool wait(std::chrono::nanoseconds at_most) const noexcept;
    // What the call returned: what each rank said, where they make different calls, else nothing. Throws what the call
    // threw. Only after its end.
    const std::vector<std::string>& differences() const;

  private:
    friend class PointToPoint;
    friend class CallQueue;

    void end() noexcept;

    mutable std::atomic<std::uint32_t> ended_{0};
    std::exception_ptr error_;
    std::vector<std::string> differences_;
};

class CallQueue {
  public:
    struct Call {
        std::function<bool(Group&)> run;         // false where the ranks make different calls
        std::function<std::string()> described;  // for the others, then
        std::chrono::nanoseconds timeout{};      // for the slowest rank, in each step
    };

    explicit CallQueue(std::shared_ptr<Group> group);
    CallQueue(const CallQueue&) = delete;
    CallQueue& operator=(const CallQueue&) = delete;
    ~CallQueue() { close(); }

    // Makes the call here, unless others are pending. Returns `Outcome::differences`; throws what the call throws.
    std::optional<std::vector<std::string>> make(const Call& call);
    // Gives the call to the thread. Throws Error{config} after `close`, Error{forked}.
    std::shared_ptr<const Outcome> submit(Call call);
    // Waits for the calls that were given, and ends the thread.
    void close() noexcept;
    // Takes no more calls, and leaves the thread in what it does, for a process that ends.
    void abandon() noexcept;
    // Whether the caller is the thread of a queue.
    static bool on_thread() noexcept;

  private:
    struct State;

    void check_process() const;
    static std::vector<std::string> run(Group& group, const Call& call);
    static void work(State& state) noexcept;

    std::shared_ptr<State> state_;  // the thread holds it too
    unsigned forks_;
};

}  // namespace softs::collective
