#include "streams.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "settings.hpp"

namespace {

constexpr std::size_t longest_queue = 1024;

}  // namespace

struct StandinStream {
    explicit StandinStream(int device) : device(device), thread([this] { run(); }) {}

    void put(std::function<void()> work) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return todo.size() < longest_queue; });
        todo.push_back(std::move(work));
        changed.notify_all();
    }
    bool idle() {
        const std::lock_guard guard(mutex);
        return todo.empty();
    }
    void wait() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return todo.empty(); });
    }
    void end() {
        wait();
        {
            const std::lock_guard guard(mutex);
            ended = true;
            changed.notify_all();
        }
        thread.join();
    }
    void run() {
        std::unique_lock lock(mutex);
        while (true) {
            changed.wait(lock, [this] { return ended || !todo.empty(); });
            if (todo.empty()) return;
            // It stays in the queue until it is done: an empty queue means that all work is done.
            const auto& work = todo.front();
            lock.unlock();
            standin::delay();
            work();
            lock.lock();
            todo.pop_front();
            changed.notify_all();
        }
    }

    const int device;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> todo;
    bool ended = false;
    std::thread thread;
};

namespace standin {
namespace {

// Never destroyed: streams may still run when the process ends.
std::mutex& mutex = *new std::mutex;
std::set<cudaStream_t>& streams = *new std::set<cudaStream_t>;
std::map<int, cudaStream_t>& defaults = *new std::map<int, cudaStream_t>;

cudaStream_t made(int device) {
    auto* stream = new StandinStream(device);
    // A driver ends a process in an orderly way only when its streams are done.
    static const int at_exit = std::atexit(synchronize_all);
    (void)at_exit;
    streams.insert(stream);
    return stream;
}

// The stream itself, or that of the default stream; nothing if that one executes everything at once.
cudaStream_t behind(cudaStream_t stream) {
    if (stream != nullptr || !settings().late_default) return stream;
    const std::lock_guard guard(mutex);
    auto& found = defaults[current_device()];
    if (found == nullptr) found = made(current_device());
    return found;
}

}  // namespace

void delay() {
    if (settings().delay_us <= 0) return;
    thread_local std::minstd_rand chance(std::random_device{}());
    std::this_thread::sleep_for(std::chrono::microseconds(chance() % static_cast<unsigned>(settings().delay_us)));
}

int device_of(cudaStream_t stream) {
    return stream == nullptr ? current_device() : stream->device;
}

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    need_context();
    stream = behind(stream);
    if (stream == nullptr) {
        work();
    } else {
        stream->put(std::move(work));
    }
    return cudaSuccess;
}

void synchronize_all() {
    std::set<cudaStream_t> all;
    {
        const std::lock_guard guard(mutex);
        all = streams;
    }
    for (const auto stream : all) stream->wait();
}

}  // namespace standin

using namespace standin;

cudaError_t cudaDeviceSynchronize() {
    synchronize_all();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    if (settings().devices <= 0) return failed(cudaErrorInsufficientDriver);
    if (flags != cudaStreamNonBlocking) return failed(cudaErrorInvalidValue);
    need_context();
    const std::lock_guard guard(mutex);
    *stream = made(current_device());
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    need_context();
    {
        const std::lock_guard guard(mutex);
        if (streams.erase(stream) == 0) return failed(cudaErrorInvalidResourceHandle);
    }
    stream->end();
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    need_context();
    stream = behind(stream);
    if (stream != nullptr) stream->wait();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    stream = behind(stream);
    return stream == nullptr || stream->idle() ? cudaSuccess : failed(cudaErrorNotReady);
}
