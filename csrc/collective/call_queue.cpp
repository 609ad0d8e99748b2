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
    std::shared_ptr<Group> group;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<Call, std::shared_ptr<Outcome>>> calls;
    bool busy = false;
    bool closed = false;
    std::thread thread;  // begins with the first call that is given to it
};

CallQueue::CallQueue(std::shared_ptr<Group> group) : state_(std::make_shared<State>()), forks_(fork_count()) {
    state_->group = std::move(group);
}

bool CallQueue::on_thread() noexcept {
    return is_queue;
}

bool Outcome::wait(std::chrono::nanoseconds at_most) const noexcept {
    const auto deadline = std::chrono::steady_clock::now() + at_most;
    while (ended_.load(std::memory_order_acquire) == 0) {
        const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
        if (left <= left.zero()) return false;
        futex_wait(ended_, 0, left);
    }
    return true;
}

const std::vector<std::string>& Outcome::differences() const {
    if (error_) std::rethrow_exception(error_);
    return differences_;
}

void Outcome::end() noexcept {
    ended_.store(1, std::memory_order_release);
    futex_wake_all(ended_);
}

void CallQueue::check_process() const {
    if (forks_ != fork_count()) {
        throw Error(Failure::forked, "this group belongs to the process that made it; make one of the forked process's own");
    }
}

std::vector<std::string> CallQueue::run(Group& group, const Call& call) {
    group.set_timeout(call.timeout);
    return call.run(group) ? std::vector<std::string>{} : group.exchange(call.described());
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
            state.busy = false;
            state.changed.notify_all();
        }
    } const ended{state};
    return run(*state.group, call);
}

std::shared_ptr<const Outcome> CallQueue::submit(Call call) {
    check_process();
    State& state = *state_;
    auto outcome = std::make_shared<Outcome>();
    const std::lock_guard lock(state.mutex);
    if (state.closed) throw Error(Failure::config, "the group is closed");
    state.calls.emplace_back(std::move(call), outcome);
    if (!state.thread.joinable()) {
        state.thread = thread_without_signals([held = state_] { work(*held); });
    }
    state.changed.notify_all();
    return outcome;
}

void CallQueue::work(State& state) noexcept {
    is_queue = true;
    std::unique_lock lock(state.mutex);
    while (true) {
        state.changed.wait(lock, [&] { return !state.busy && (state.closed || !state.calls.empty()); });
        if (state.calls.empty()) return;
        auto [call, outcome] = std::move(state.calls.front());
        state.calls.pop_front();
        state.busy = true;
        lock.unlock();
        try {
            outcome->differences_ = run(*state.group, call);
        } catch (...) {
            outcome->error_ = std::current_exception();
        }
        outcome->end();
        lock.lock();
        state.busy = false;
    }
}

void CallQueue::close() noexcept {
    if (forks_ != fork_count()) return;
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
    if (forks_ != fork_count()) return;
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->changed.notify_all();
    if (state_->thread.joinable()) state_->thread.detach();
}

}  // namespace softs::collective
