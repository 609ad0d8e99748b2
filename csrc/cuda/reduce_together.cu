// An all-reduce in one launch: blocks of all ranks wait for each other by flags in memory that all of them have
// mapped.
//
// Rules:
// - T1 one writer: flag [phase][block][r] in the memory of rank q is stored by rank r only, and waited for by rank q
//   only.
// - T2 a flag holds the epoch of the launch, which grows; compared by difference, because it wraps around. So nothing
//   is ever reset, and a rank that is ahead by a launch does no harm.
// - T3 block b reads only those parts of other ranks' slices that their block b wrote: one flag per block is enough.
// - T4 the staged data of a launch, and the slices, are overwritten two launches later at the earliest. A rank
//   launches only after its previous launch has ended, so a rank that waits for epoch e knows that all have ended the
//   epoch before it, and no longer read its data.
// - T5 every wait has a deadline, and ends before if the host's watchdog sets `stop` (collective/words.hpp), which it
//   does when a rank has ended. A block that waits in vain records the missing rank, and ends; no block waits for a
//   block of its own rank.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/launch.hpp"
#include "cuda/on_device.hpp"
#include "reduce.hpp"
#include "reduce_items.cuh"
#include "signal.cuh"

namespace softs::cuda {
namespace {

#if defined(__CUDACC__)
constexpr unsigned threads = 512;
#else
constexpr unsigned threads = 4;  // each is a host thread
#endif

constexpr std::uint64_t look_every_ns = 100000;

struct Plan {
    const void* staged[max_device_inputs];
    void* reduced[max_device_inputs];
    std::uint32_t* flags[max_device_inputs];
    std::uint64_t first[max_device_inputs + 1];  // bounds of the slices
    int rank;
    int size;
    Finish finish;
    void* output;
    std::uint64_t* missing;
    std::uint64_t count;
    std::uint32_t epoch;
    std::uint64_t deadline_ns;
    const std::uint32_t* stop;
    int out_bytes;
    bool one_shot;
    bool aligned;
};

// Signals the same block of all ranks that this one has arrived, and waits for theirs; false if one does not arrive.
// Earlier writes of any thread of the block are then visible to all threads of the other blocks.
__device__ bool arrive_and_wait(const Plan& plan, int phase) {
    const auto flag = [&](int of, int by) {
        return plan.flags[of] + (static_cast<unsigned>(phase) * together_blocks + blockIdx.x) * max_device_inputs + by;
    };
    std::uint64_t* const missing = plan.missing + blockIdx.x;
    __syncthreads();
    for (int other = static_cast<int>(threadIdx.x); other < plan.size; other += static_cast<int>(blockDim.x)) {
        store_flag(flag(other, plan.rank), plan.epoch);
    }
    const std::uint64_t start = nanoseconds();
    std::uint64_t next_look = start + look_every_ns;
    for (int other = static_cast<int>(threadIdx.x); other < plan.size; other += static_cast<int>(blockDim.x)) {
        while (static_cast<std::int32_t>(load_flag(flag(plan.rank, other)) - plan.epoch) < 0) {
            const std::uint64_t now = nanoseconds();
            bool stopped = false;
            // Rarely, because the word is behind the bus.
            if (plan.stop != nullptr && now > next_look) {
                stopped = load_flag(plan.stop) != 0;
                next_look = now + look_every_ns;
            }
            if (stopped || now - start > plan.deadline_ns) {
                set_bits(missing, std::uint64_t{1} << other);
                break;
            }
            let_others_run();
        }
    }
    __syncthreads();
    return bits_of(missing) == 0;
}

// `count` items in chunks, distributed over the threads of all blocks: the same way on every rank, however its memory
// is aligned.
template <class Use>
__device__ void each_chunk(const Plan& plan, std::uint64_t count, Use use) {
    const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x * chunk_items;
    std::uint64_t at = (static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * chunk_items;
    for (; at < count; at += stride) {
        if (plan.aligned && at + chunk_items <= count) {
            use(at, Width<chunk_items>());
        } else {
            for (std::uint64_t one = at; one < at + chunk_items && one < count; ++one) use(one, Width<1>());
        }
    }
}

// Shapes, accumulators and order: those of `reduce_kernel`. Writers: `output`, and `reduced` of this rank, each
// thread its own items; `staged` is not written. `reduced` of other ranks is read after the second barrier.
template <class In>
__global__ void __launch_bounds__(threads) together_kernel(const __grid_constant__ Plan plan) {
    if (threadIdx.x == 0) plan.missing[blockIdx.x] = 0;
    if (!arrive_and_wait(plan, 0)) return;
    const std::uint64_t first = plan.one_shot ? 0 : plan.first[plan.rank];
    const std::uint64_t own = plan.one_shot ? plan.count : plan.first[plan.rank + 1] - first;
    void* const to = plan.one_shot ? plan.output : plan.reduced[plan.rank];
    each_chunk(plan, own, [&](std::uint64_t at, auto width) {
        reduce_items<In, decltype(width)::value>(plan.staged, plan.size, first + at, plan.finish, to, at);
    });
    if (plan.one_shot || !arrive_and_wait(plan, 1)) return;
    for (int step = 0; step < plan.size; ++step) {
        // Each rank begins with its own slice, so that not all read from one rank.
        const int other = (plan.rank + step) % plan.size;
        const std::uint64_t begin = plan.first[other];
        each_chunk(plan, plan.first[other + 1] - begin, [&](std::uint64_t at, auto width) {
            constexpr int n = decltype(width)::value;
            if (plan.out_bytes == 1) return move_items<std::uint8_t, n>(plan.reduced[other], at, plan.output, begin + at);
            if (plan.out_bytes == 2) return move_items<std::uint16_t, n>(plan.reduced[other], at, plan.output, begin + at);
            if (plan.out_bytes == 4) return move_items<std::uint32_t, n>(plan.reduced[other], at, plan.output, begin + at);
            return move_items<std::uint64_t, n>(plan.reduced[other], at, plan.output, begin + at);
        });
    }
}

// First element of a rank's slice: whole lines of 128 bytes, so that no two ranks read parts of one.
std::uint64_t slice_begin(std::uint64_t count, Dtype in, int rank, int size) {
    const std::uint64_t step = 128 / item_bytes(in);
    const std::uint64_t steps = (count + step - 1) / step;
    return std::min(count, steps * static_cast<std::uint64_t>(rank) / static_cast<std::uint64_t>(size) * step);
}

}  // namespace

void load_together() {
    each_input([](auto in) { load(together_kernel<typename decltype(in)::type>); });
}

void reduce_together(const Together& together, std::uint64_t stream) {
    const OnDevice of_stream(reinterpret_cast<cudaStream_t>(stream));
    const OnDevice here(device_to_work_on(together.output));
    Plan plan{};
    plan.aligned = is_aligned(together.output);
    plan.size = static_cast<int>(together.ranks.size());
    for (int rank = 0; rank < plan.size; ++rank) {
        const TogetherRank& of = together.ranks[static_cast<std::size_t>(rank)];
        plan.aligned = plan.aligned && is_aligned(of.staged) && is_aligned(of.reduced);
        plan.staged[rank] = of.staged;
        plan.reduced[rank] = of.reduced;
        plan.flags[rank] = of.flags;
        plan.first[rank + 1] = slice_begin(together.count, together.what.in, rank + 1, plan.size);
    }
    plan.rank = together.rank;
    plan.finish = finish_of(together.what, plan.size);
    plan.output = together.output;
    plan.missing = together.missing;
    plan.count = together.count;
    plan.epoch = together.epoch;
    plan.deadline_ns = together.deadline_ns;
    plan.stop = together.stop;
    plan.out_bytes = static_cast<int>(item_bytes(together.what.out));
    plan.one_shot = together.one_shot;
    // From the count only, which all ranks share.
    const std::uint64_t of_block = std::uint64_t{threads} * chunk_items;
    const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>((plan.count + of_block - 1) / of_block, 1, together_blocks));
    by_input(together.what.in, [&](auto in) {
        using In = typename decltype(in)::type;
        SOFTS_LAUNCH_TOGETHER(together_kernel<In>, blocks, threads, reinterpret_cast<cudaStream_t>(stream), plan);
    });
    SOFTS_CHECK(cudaGetLastError());
}

}  // namespace softs::cuda
