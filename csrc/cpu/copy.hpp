// Copies of tensors that are larger than the caches.
#pragma once

#include <cstring>

#include "reduce.hpp"

namespace softs {

// From this size on, non-temporal stores are faster: the memory that is overwritten is not read first (measured, see
// docs/snapshots.md).
constexpr std::size_t stream_from_bytes = std::size_t{1} << 22;

// Copies bytes; `stream` says that all copies of the call together are large. The target is visible to other
// processes only after a fence.
inline void copy(void* to, const void* from, std::size_t bytes, bool stream) noexcept {
    constexpr std::size_t smallest = 2048;  // shorter ones would wait for the fence that follows them
    if (!stream || bytes < smallest) {
        std::memcpy(to, from, bytes);
        return;
    }
    // The sum of one input is a copy, with the widest stores of this machine.
    reduce({.in = Dtype::uint8,
            .out = Dtype::uint8,
            .op = Op::sum,
            .scale = 1.0,
            .inputs = &from,
            .n_inputs = 1,
            .outputs = &to,
            .n_outputs = 1,
            .count = bytes,
            .stream_stores = true});
}

}  // namespace softs
