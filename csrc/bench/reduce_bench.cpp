// Benchmark of the reduce kernels on one core, of memcpy as the limit of the core, and of memcpy from the cache of another
// core, as the limit of what two ranks can exchange. One JSON object per line.
//
// reduce_bench [seconds per case]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu/reduce.hpp"

namespace {

using namespace softs;
using Clock = std::chrono::steady_clock;

double seconds_per_case = 0.2;

// Median seconds of one call. Short calls are timed in groups.
template <class Call>
double median_seconds(Call call) {
    const auto once = [&](int calls) {
        const auto begin = Clock::now();
        for (int i = 0; i < calls; ++i) call();
        return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    once(1);
    const int bunch = std::max(1, static_cast<int>(1e-3 / std::max(once(3) / 3, 1e-9)));
    std::vector<double> samples;
    for (double spent = 0; spent < seconds_per_case;) {
        const double seconds = once(bunch);
        samples.push_back(seconds / bunch);
        spent += seconds;
    }
    std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
    return samples[samples.size() / 2];
}

// Buffers at odd distances, so that none evicts another for having the same low address bits.
struct Buffers {
    Buffers(int n, std::size_t bytes) : memory(static_cast<std::size_t>(n) * (bytes + 8192 + 448) + 64) {
        for (int i = 0; i < n; ++i) {
            const auto address = reinterpret_cast<std::uintptr_t>(memory.data()) + static_cast<std::size_t>(i) * (bytes + 8192 + 448);
            each.push_back(reinterpret_cast<void*>((address + 63) / 64 * 64));
        }
    }
    std::vector<char> memory;
    std::vector<void*> each;
};

// Median seconds in which each of two cores copies what the other one has just written.
double seconds_across(const std::vector<void*>& each, std::size_t bytes) {
    std::atomic<int> arrived{0};
    std::vector<double> samples;
    const auto run = [&](std::size_t core) {
        int awaited = 0;
        const auto meet = [&] {
            awaited += 2;
            arrived.fetch_add(1);
            while (arrived.load() < awaited) {
            }
        };
        for (int round = 0; round < 200; ++round) {
            std::memset(each[core], round, bytes);
            meet();
            const auto begin = Clock::now();
            std::memcpy(each[2 + core], each[1 - core], bytes);
            if (core == 0) samples.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
            meet();
        }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
    return samples[samples.size() / 2];
}

void report(const char* what, std::string_view set, const char* dtype, int n_inputs, std::size_t bytes, bool stream, double seconds) {
    const double moved = static_cast<double>(bytes) * (n_inputs + 1);
    std::printf(
        "{\"what\": \"%s\", \"set\": \"%.*s\", \"dtype\": \"%s\", \"inputs\": %d, \"kib\": %zu, \"stream\": %s, "
        "\"us\": %.2f, \"gb_s\": %.1f}\n",
        what, static_cast<int>(set.size()), set.data(), dtype, n_inputs, bytes / 1024, stream ? "true" : "false", seconds * 1e6,
        moved / seconds / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) seconds_per_case = std::atof(argv[1]);
    for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{64} << 20}) {
        Buffers buffers(5, bytes);
        const auto& each = buffers.each;
        report("memcpy", "libc", "-", 1, bytes, false, median_seconds([&] { std::memcpy(each[4], each[0], bytes); }));
        report("memcpy across", "libc", "-", 1, bytes, false, seconds_across(each, bytes));
        for (const auto set : available_instruction_sets()) {
            if (set == InstructionSet::scalar) continue;
            for (const auto& [dtype, dtype_name] :
                 {std::pair{Dtype::float32, "float32"}, {Dtype::bfloat16, "bfloat16"}, {Dtype::float16, "float16"}}) {
                for (const int n : {1, 2, 4}) {
                    for (const bool stream : {false, true}) {
                        if (stream && bytes < (std::size_t{1} << 20)) continue;
                        const ReduceArgs args{dtype, dtype, Op::sum, 1.0, each.data(), n, &each[4], 1, bytes / item_bytes(dtype), stream};
                        report("reduce", name(set), dtype_name, n, bytes, stream, median_seconds([&] { reduce(args, set); }));
                    }
                }
            }
        }
    }
}
