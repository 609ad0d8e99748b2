#include "call_queue.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "error.hpp"
#include "futex.hpp"
#include "quiet_thread.hpp"

namespace softs::collective {
namespace {

thread_local bool is_queue = false;

}  // namespace

struct CallQueue::State {
    const unsigned forks = fork_count();
    std::shared_ptr<Group> group;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<Call, std::shared_ptr<Outcome>>> calls;
    std::function<std::string()> unconfirmed;  // the eager broadcast before the next call
    bool busy = false;
    bool closed = false;
    std::thread thread;  // begins with the first call that is given to it

    // Ends the call that was being made. The thread is woken only if there is something to do for it.
    void free() {
        busy = false;
        if (closed || !calls.empty()) changed.notify_one();
    }
};

CallQueue::CallQueue(std::shared_ptr<Group> group) : state_(std::make_shared<State>()) {
    state_->group = std::move(group);
}

bool CallQueue::on_thread() noexcept {
    return is_queue;
}

bool Outcome::wait(std::chrono::nanoseconds at_most) const noexcept {
    const auto deadline = std::chrono::steady_clock::now() + at_most;
    std::uint32_t seen = state_.load(std::memory_order_acquire);
    while (seen != ended) {
        const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
        if (left <= left.zero()) return false;
        if (seen == awaited || state_.compare_exchange_strong(seen, awaited, std::memory_order_acquire)) {
            futex_wait(state_, awaited, left);
            seen = state_.load(std::memory_order_acquire);
        }
    }
    return true;
}

void Outcome::make_here() const {
    const auto queue = queue_.lock();
    if (queue == nullptr || queue->forks != fork_count()) return;
    std::unique_lock lock(queue->mutex);
    while (!queue->busy && !queue->calls.empty() && state_.load(std::memory_order_acquire) != ended) {
        if (const auto interruption = CallQueue::make_first(*queue, lock)) std::rethrow_exception(interruption);
    }
}

const std::vector<std::string>& Outcome::differences() const {
    if (error_) std::rethrow_exception(error_);
    return differences_;
}

void Outcome::end() noexcept {
    if (state_.exchange(ended, std::memory_order_acq_rel) == awaited) futex_wake_all(state_);
}

void CallQueue::check_process() const {
    if (state_->forks != fork_count()) {
        throw Error(Failure::forked, "this group belongs to the process that made it; make one of the forked process's own");
    }
}

std::vector<std::string> CallQueue::run(State& state, const Call& call) {
    Group& group = *state.group;
    group.set_timeout(call.timeout);
    const std::vector<std::string> earlier = group.confirm() ? std::vector<std::string>{} : group.exchange(state.unconfirmed());
    const bool agreed = call.run(group);
    if (group.is_unconfirmed()) state.unconfirmed = call.described;
    if (agreed) return earlier;
    const std::vector<std::string> said = group.exchange(call.described());
    return earlier.empty() ? said : earlier;
}

std::optional<std::vector<std::string>> CallQueue::make(const Call& call) {
    check_process();
    State& state = *state_;
    {
        const std::lock_guard lock(state.mutex);
        if (state.busy || !state.calls.empty()) return std::nullopt;
        state.busy = true;
    }
    struct Ended {
        State& state;
        ~Ended() {
            const std::lock_guard lock(state.mutex);
            state.free();
        }
    } const ended{state};
    return run(state, call);
}

std::shared_ptr<const Outcome> CallQueue::submit(Call call) {
    check_process();
    State& state = *state_;
    auto outcome = std::make_shared<Outcome>();
    outcome->queue_ = state_;
    const std::lock_guard lock(state.mutex);
    if (state.closed) throw Error(Failure::config, "the group is closed");
    // First, since the system may have no more threads: then there is no call, either.
    if (!state.thread.joinable()) {
        state.thread = thread_without_signals([held = state_] { work(*held); });
    }
    state.calls.emplace_back(std::move(call), outcome);
    if (!state.busy) state.changed.notify_one();
    return outcome;
}

// Makes the first call, without the lock. Returns what interrupted it; the outcome then says that the group is broken.
std::exception_ptr CallQueue::make_first(State& state, std::unique_lock<std::mutex>& lock) noexcept {
    auto [call, outcome] = std::move(state.calls.front());
    state.calls.pop_front();
    state.busy = true;
    lock.unlock();
    std::exception_ptr interruption;
    try {
        outcome->differences_ = run(state, call);
    } catch (const Error&) {
        outcome->error_ = std::current_exception();
    } catch (...) {
        interruption = outcome->error_ = std::current_exception();
        if (const std::string broken = state.group->broken(); !broken.empty()) {
            outcome->error_ = std::make_exception_ptr(Error(Failure::peer_lost, broken));
        }
    }
    outcome->end();
    lock.lock();
    state.free();
    return interruption;
}

void CallQueue::work(State& state) noexcept {
    is_queue = true;
    std::unique_lock lock(state.mutex);
    while (true) {
        state.changed.wait(lock, [&] { return !state.busy && (state.closed || !state.calls.empty()); });
        if (state.calls.empty()) return;
        (void)make_first(state, lock);
    }
}

void CallQueue::close() noexcept {
    if (state_->forks != fork_count()) return;
    std::thread thread;
    {
        const std::lock_guard lock(state_->mutex);
        state_->closed = true;
        state_->changed.notify_all();
        thread = std::move(state_->thread);
    }
    if (thread.joinable()) thread.join();
}

void CallQueue::abandon() noexcept {
    if (state_->forks != fork_count()) return;
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->changed.notify_all();
    if (state_->thread.joinable()) state_->thread.detach();
}

}  // namespace softs::collective
