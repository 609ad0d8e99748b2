// All of an all-reduce in one launch: blocks of all ranks wait for each other by flags in memory that all of them have mapped.
//
// Rules:
// - T1 one writer: flag [phase][block][r] in the memory of rank q is stored by rank r only, and waited for by rank q only.
// - T2 a flag holds the epoch of the launch, which grows; compared by difference, for it wraps around. So nothing is ever reset, and who is
//   ahead by a launch does no harm.
// - T3 block b reads of the others' slices only what block b has written there: one flag per block is enough.
// - T4 what is staged for a launch, and the slices, are written again two launches later at the earliest. A rank launches only when its
// launch
//   before has ended, so who waits for epoch e knows that all have ended e - 1, and no longer read what belongs to it.
// - T5 every wait has a deadline. Who waits in vain says for whom, and ends; no block waits for a block of its own rank.
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
constexpr unsigned threads = 4;  // each is a thread of the host
#endif

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
    int out_bytes;
    bool one_shot;
    bool aligned;
};

// Says to the same block of all ranks that this one is here, and waits for theirs; false if one does not come.
// What any thread of the block wrote before is seen by all threads of the others after.
__device__ bool meet(const Plan& plan, int phase) {
    const auto flag = [&](int of, int by) {
        return plan.flags[of] + (static_cast<unsigned>(phase) * together_blocks + blockIdx.x) * max_device_inputs + by;
    };
    std::uint64_t* const missing = plan.missing + blockIdx.x;
    __syncthreads();
    for (int other = static_cast<int>(threadIdx.x); other < plan.size; other += static_cast<int>(blockDim.x)) {
        store_flag(flag(other, plan.rank), plan.epoch);
    }
    const std::uint64_t start = nanoseconds();
    for (int other = static_cast<int>(threadIdx.x); other < plan.size; other += static_cast<int>(blockDim.x)) {
        while (static_cast<std::int32_t>(load_flag(flag(plan.rank, other)) - plan.epoch) < 0) {
            if (nanoseconds() - start > plan.deadline_ns) {
                set_bits(missing, std::uint64_t{1} << other);
                break;
            }
            let_others_run();
        }
    }
    __syncthreads();
    return bits_of(missing) == 0;
}

// `count` items chunk by chunk, dealt to the threads of all blocks: the same way on every rank, however its memory is aligned.
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

// Shapes, accumulators and order: those of `reduce_kernel`. Who writes: `output`, and `reduced` of this rank, each thread its own items;
// `staged` nobody. `reduced` of others is read after the second meeting.
template <class In>
__global__ void __launch_bounds__(threads) together_kernel(const __grid_constant__ Plan plan) {
    if (threadIdx.x == 0) plan.missing[blockIdx.x] = 0;
    if (!meet(plan, 0)) return;
    const std::uint64_t first = plan.one_shot ? 0 : plan.first[plan.rank];
    const std::uint64_t own = plan.one_shot ? plan.count : plan.first[plan.rank + 1] - first;
    void* const to = plan.one_shot ? plan.output : plan.reduced[plan.rank];
    each_chunk(plan, own, [&](std::uint64_t at, auto width) {
        reduce_items<In, decltype(width)::value>(plan.staged, plan.size, first + at, plan.finish, to, at);
    });
    if (plan.one_shot || !meet(plan, 1)) return;
    for (int step = 0; step < plan.size; ++step) {
        // Each begins with its own, so that not all read from one.
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

void reduce_together(const Together& together, std::uint64_t stream) {
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
    plan.out_bytes = static_cast<int>(item_bytes(together.what.out));
    plan.one_shot = together.one_shot;
    // By the count alone, which all ranks share.
    const std::uint64_t of_block = std::uint64_t{threads} * chunk_items;
    const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>((plan.count + of_block - 1) / of_block, 1, together_blocks));
    by_input(together.what.in, [&](auto in) {
        using In = typename decltype(in)::type;
        SOFTS_LAUNCH_TOGETHER(together_kernel<In>, blocks, threads, reinterpret_cast<cudaStream_t>(stream), plan);
    });
    SOFTS_CHECK(cudaGetLastError());
}

}  // namespace softs::cuda
