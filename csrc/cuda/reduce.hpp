// Reduction of buffers on CUDA devices, element by element, with a scale and a cast fused into the same pass; the
// same bits as cpu/reduce.hpp on the host.
//
// There are two ways. `reduce_on_device` is one phase of an all-reduce among processes; events order the phases.
// `reduce_together` is all of it in one launch: its blocks wait for those of the other ranks inside the kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/reduce.hpp"

namespace softs::cuda {

struct DeviceReduction {
    Dtype in;
    Dtype out;
    Op op;
    double scale;
};

// Largest number of inputs: the pointers are parameters of the launch.
constexpr int max_device_inputs = 64;

// The memory of each rank, by its addresses in this process. All of it is from cudaMalloc.
struct TogetherRank {
    const void* staged;    // `count` items of `in`; not written while this runs
    void* reduced;         // space for its slice, of `out`; written by that rank only
    std::uint32_t* flags;  // `together_flags` of them; written by all ranks, each its own
};

constexpr int together_blocks = 8;
// By phase, block, and rank that has arrived.
constexpr int together_flags = 2 * together_blocks * max_device_inputs;

struct Together {
    DeviceReduction what;
    std::vector<TogetherRank> ranks;
    int rank;
    void* output;               // `count` items of `out`, on this device, beside all `staged` and `reduced`
    std::uint64_t* missing;     // `together_blocks` words on this device
    std::uint64_t count;        // of the whole
    bool one_shot;              // every rank reduces everything; otherwise its slice, and then copies the slices of all
    std::uint32_t epoch;        // one more than in the launch before; may wrap around
    std::uint64_t deadline_ns;  // of each wait
    const std::uint32_t* stop;  // a word of the host's memory (map_host) that ends waits if it is not 0; or nullptr
};

// One launch, in the order of `stream`, on the device of `output`; returns at once. Inputs and output may have any
// alignment to words, not to items; an input may be the output if the items of both have one size. Needs
// `reduce_supported`, 1 to `max_device_inputs` inputs. Throws Error.
void reduce_on_device(const DeviceReduction& what, const std::vector<const void*>& inputs, void* output, std::uint64_t count,
                      std::uint64_t stream);

// The same for all ranks at once. Every rank must launch it with the same numbers. A block that waits for longer than
// the deadline, or until `stop` is set, records the missing ranks, one bit each, in its word of `missing`, and ends:
// the output is undefined then. Throws Error.
void reduce_together(const Together& together, std::uint64_t stream);

// Parts of `load_kernels`, for the current device.
void load_reduce();
void load_together();

}  // namespace softs::cuda
