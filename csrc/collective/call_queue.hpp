// Calls of one group in the order in which they were given, whatever thread gave them: at once if nothing is pending,
// else on a thread of the queue, or on one that waits for a call that no thread has begun.
//
// L1: calls run one at a time, first in, first out.
// L2: a call that was given uses memory of the caller until its outcome is there; the caller keeps that alive.
// L3: the thread takes no lock of Python's and no signals, so it may be in a call when the interpreter ends.
// L4: an eager broadcast is confirmed before the next call. If the ranks have made different calls, the others wait to hear
//     this one's, and go on then: so this rank makes its next call too, and says afterwards what became of the broadcast.
// L5: in a fork nothing is touched: the thread is the parent's, and so is a lock that is held.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "group.hpp"

namespace softs::collective {

class Outcome;

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
    friend class Outcome;
    struct State;

    void check_process() const;
    static std::vector<std::string> run(State& state, const Call& call);
    static std::exception_ptr make_first(State& state, std::unique_lock<std::mutex>& lock) noexcept;
    static void work(State& state) noexcept;

    std::shared_ptr<State> state_;  // the thread holds it too
};

// What becomes of one call.
class Outcome {
  public:
    // Whether the call has ended; waits up to the time for it.
    bool wait(std::chrono::nanoseconds at_most) const noexcept;
    // Makes the calls up to this one here, as long as no other thread makes one. Throws where a signal interrupts that.
    void make_here() const;
    // What the call returned: what each rank said, where they make different calls, else nothing. Throws what the call
    // threw. Only after its end.
    const std::vector<std::string>& differences() const;

  private:
    friend class PointToPoint;
    friend class CallQueue;

    enum : std::uint32_t { pending, awaited, ended };

    void end() noexcept;

    mutable std::atomic<std::uint32_t> state_{pending};
    std::weak_ptr<CallQueue::State> queue_;  // of none, for a message
    std::exception_ptr error_;
    std::vector<std::string> differences_;
};

}  // namespace softs::collective
