// Weighted sums of snapshots of several processes, read directly from their segments.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpu/reduce.hpp"
#include "remote.hpp"

namespace softs::snapshots {

// Items of one dtype that lie one after another, padding included. Those that are not inspected may be infinite or NaN.
struct Run {
    std::size_t at;
    std::size_t count;
    Dtype dtype;
    bool is_inspected;
};

enum class Outcome : std::uint8_t {
    complete,
    torn,         // a donor published over what was read, at each attempt
    nothing_yet,  // a donor has not published
    not_finite,
};

struct Averaged {
    Outcome outcome;
    // Of the first item that is not finite: a donor that has it, negative if the sum exceeds its dtype; and its offset
    // in a half.
    int donor = -1;
    std::size_t at = 0;
    std::vector<Seen> seen;  // versions that were read; if complete
};

// Sums into `scratch`, of the size of a half; a donor may turn out to have published over what was read, so nothing is
// summed into live tensors. At most three attempts.
//
// Floats are sum of weight * item, in the order of the donors, in float32 (float64 for float64), rounded once to the
// dtype; integers and bool are the largest. One donor with the weight 1 is a copy.
Averaged average(std::span<const std::shared_ptr<const View>> donors, std::span<const double> weights, std::span<const Run> runs,
                 std::byte* scratch);

}  // namespace softs::snapshots
