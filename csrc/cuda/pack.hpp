// Packs and casts tensors into one slot on a CUDA device: one launch for up to 64 tensors.
//
// Casts are those of cpu/reduce.hpp: to nearest, ties to even, float64 to 16 bits by float32, NaN becomes the
// positive quiet one. A tensor that keeps its dtype is copied bit by bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/reduce.hpp"

namespace softs::cuda {

struct PackItem {
    const void* source;    // device memory that the slot's device can read, contiguous, aligned to its items
    std::uint64_t count;   // items
    std::uint64_t offset;  // offset of the items in the slot, bytes
    Dtype in;
    Dtype out;
};

// The fault of a table: an item that leaves the slot, overlaps another or is not aligned, or a cast that is not
// supported. Empty if there is none.
std::string pack_problem(const std::vector<PackItem>& items, std::uint64_t slot_bytes);

// Whether the kernel casts `in` to `out`: any dtype to itself, floats to floats.
bool pack_supported(Dtype in, Dtype out) noexcept;

// Packs a table without a problem into `slot`, in the order of `stream` (a cudaStream_t of the slot's device, 0 for
// the default one); returns at once. Sources must not change until the stream has done the work. Throws Error.
void pack(const std::vector<PackItem>& items, void* slot, std::uint64_t stream);

// Part of `load_kernels`, for the current device.
void load_pack();

}  // namespace softs::cuda
