#include "streams.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "settings.hpp"

struct StandinStream {
    explicit StandinStream(int device) : device(device), thread([this] { run(); }) {}

    void put(std::function<void()> work) {
        const std::lock_guard guard(mutex);
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
    *stream = new StandinStream(current_device());
    const std::lock_guard guard(mutex);
    streams.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    {
        const std::lock_guard guard(mutex);
        if (streams.erase(stream) == 0) return failed(cudaErrorInvalidResourceHandle);
    }
    stream->end();
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (stream != nullptr) stream->wait();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return stream == nullptr || stream->idle() ? cudaSuccess : failed(cudaErrorNotReady);
}
