#include "reduce.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/launch.hpp"
#include "cuda/on_device.hpp"
#include "reduce_items.cuh"

namespace softs::cuda {
namespace {

constexpr unsigned threads = 256;
// Enough to fill the largest device; each block takes every `most_blocks`-th part.
constexpr std::uint64_t most_blocks = 2048;

// A parameter of the launch, so that nothing has to be copied to the device first.
struct Inputs {
    const void* at[max_device_inputs];
    int n;
};

// Shapes: `count` items of every input and of the output, in chunks of `n` (aligned to words if n is `chunk_items`).
// Accumulators: those of cpu/reduce.hpp. Order: input 0, 1, 2, ... for every item. Writers: each thread its own
// items, after it has read them.
template <class In, int n>
__global__ void __launch_bounds__(threads)
    reduce_kernel(const __grid_constant__ Inputs inputs, const Finish finish, void* output, std::uint64_t count) {
    const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x * n;
    std::uint64_t at = (static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * n;
    for (; at + n <= count; at += stride) reduce_items<In, n>(inputs.at, inputs.n, at, finish, output, at);
    // The remainder is done by the thread of the next chunk.
    for (; at < count; ++at) reduce_items<In, 1>(inputs.at, inputs.n, at, finish, output, at);
}

template <class In>
void launch(const Inputs& inputs, const Finish& finish, void* output, std::uint64_t count, cudaStream_t stream) {
    bool aligned = is_aligned(output);
    for (int i = 0; i < inputs.n; ++i) aligned = aligned && is_aligned(inputs.at[i]);
    const std::uint64_t of_block = threads * (aligned ? chunk_items : 1u);
    const auto blocks = static_cast<unsigned>(std::min((count + of_block - 1) / of_block, most_blocks));
    if (aligned) {
        SOFTS_LAUNCH((reduce_kernel<In, chunk_items>), blocks, threads, stream, inputs, finish, output, count);
    } else {
        SOFTS_LAUNCH((reduce_kernel<In, 1>), blocks, threads, stream, inputs, finish, output, count);
    }
}

}  // namespace

void load_reduce() {
    each_input([](auto in) {
        using In = typename decltype(in)::type;
        load(reduce_kernel<In, chunk_items>);
        load(reduce_kernel<In, 1>);
    });
}

void reduce_on_device(const DeviceReduction& what, const std::vector<const void*>& inputs, void* output, std::uint64_t count,
                      std::uint64_t stream) {
    if (count == 0) return;
    const OnDevice of_stream(reinterpret_cast<cudaStream_t>(stream));
    const OnDevice here(device_to_work_on(output));
    Inputs all{};
    all.n = static_cast<int>(inputs.size());
    std::copy(inputs.begin(), inputs.end(), all.at);
    const Finish finish = finish_of(what, all.n);
    by_input(what.in,
             [&](auto in) { launch<typename decltype(in)::type>(all, finish, output, count, reinterpret_cast<cudaStream_t>(stream)); });
    SOFTS_CHECK(cudaGetLastError());
}

}  // namespace softs::cuda
