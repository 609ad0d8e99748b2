#include "average.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "collective/error.hpp"
#include "cpu/copy.hpp"

namespace softs::snapshots {
namespace {

using collective::Error;
using collective::Failure;

constexpr int max_attempts = 3;
constexpr std::size_t block_items = 8192;  // accumulators and products of a block stay in the first cache

struct alignas(64) Block {
    std::array<std::byte, block_items * sizeof(double)> bytes;
};

// --- Sums ---

// The accumulator of a float dtype.
Dtype wide_of(Dtype dtype) noexcept {
    return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
}

void reduce_all(Dtype in, Dtype out, Op op, double scale, std::span<const void* const> inputs, void* output, std::size_t count,
                bool stream = false) noexcept {
    reduce({.in = in,
            .out = out,
            .op = op,
            .scale = scale,
            .inputs = inputs.data(),
            .n_inputs = static_cast<int>(inputs.size()),
            .outputs = &output,
            .n_outputs = 1,
            .count = count,
            .stream_stores = stream});
}

// --- Items that are not finite: all bits of the exponent are set ---

template <class Word>
bool has_exponent(const std::byte* items, std::size_t count, Word exponent) noexcept {
    Word found = 0;
    for (std::size_t i = 0; i < count; ++i) {
        Word bits;
        std::memcpy(&bits, items + i * sizeof bits, sizeof bits);
        found |= static_cast<Word>((bits & exponent) == exponent);
    }
    return found != 0;
}

bool is_each_finite(const std::byte* items, std::size_t count, Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::float64:
            return !has_exponent<std::uint64_t>(items, count, 0x7ff0000000000000u);
        case Dtype::float32:
            return !has_exponent<std::uint32_t>(items, count, 0x7f800000u);
        case Dtype::float16:
            return !has_exponent<std::uint16_t>(items, count, 0x7c00u);
        case Dtype::bfloat16:
            return !has_exponent<std::uint16_t>(items, count, 0x7f80u);
        default:
            return true;
    }
}

// At most `block_items`. The sum of a part of a block for each of its items is finite only if all of them are, and is
// made with the widest registers of this machine; only where it is not, each item is looked at.
bool is_finite(const std::byte* items, std::size_t count, Dtype dtype) noexcept {
    constexpr std::size_t n_parts = 16;
    const Dtype wide = wide_of(dtype);
    const std::size_t part = count / n_parts;
    const std::size_t rest = n_parts * part;
    std::array<const void*, n_parts> parts{};
    for (std::size_t i = 0; i < n_parts; ++i) parts[i] = items + i * part * item_bytes(dtype);
    alignas(64) std::array<std::byte, block_items / n_parts * sizeof(double)> sums;
    if (part > 0) reduce_all(dtype, wide, Op::sum, 1.0, parts, sums.data(), part);
    const bool is_likely = is_each_finite(sums.data(), part, wide) && is_each_finite(items + rest * item_bytes(dtype), count - rest, dtype);
    return is_likely || is_each_finite(items, count, dtype);
}

// Reads the donors once, in blocks, and writes the sums.
class Sum {
  public:
    Sum(std::span<const std::byte* const> donors, std::span<const double> weights, std::byte* scratch, bool stream)
        : donors_(donors), weights_(weights), scratch_(scratch), stream_(stream), inputs_(donors.size()) {}

    // Returns false, and the donor and the place, where a result is not finite.
    bool add(const Run& run, Averaged& found) noexcept {
        const std::size_t item = item_bytes(run.dtype);
        const bool is_float = run.dtype <= Dtype::bfloat16;
        for (std::size_t first = 0; first < run.count; first += block_items) {
            const std::size_t count = std::min(block_items, run.count - first);
            const std::size_t at = run.at + first * item;
            const bool good = is_float ? floats(at, count, run.dtype) : integers(at, count, run.dtype);
            if (!good && run.is_inspected) {
                name_bad(at, count, run.dtype, found);
                return false;
            }
        }
        return true;
    }

  private:
    bool floats(std::size_t at, std::size_t count, Dtype dtype) noexcept {
        const void* source = donors_[0] + at;
        if (donors_.size() > 1 || weights_[0] != 1.0) {
            sum_floats(at, count, dtype);
            source = sums_.bytes.data();
        }
        // In this order: the copy reads memory from front to back, the check finds the block in the caches.
        copy(scratch_ + at, source, count * item_bytes(dtype), stream_);
        return is_finite(static_cast<const std::byte*>(source), count, dtype);
    }

    // One rounding to the dtype, at the end; the products and sums are of the accumulator's.
    void sum_floats(std::size_t at, std::size_t count, Dtype dtype) noexcept {
        const Dtype wide = wide_of(dtype);
        void* const sums = sums_.bytes.data();
        void* const products = products_.bytes.data();
        for (std::size_t d = 0; d < donors_.size(); ++d) {
            const void* const items = donors_[d] + at;
            reduce_all(dtype, wide, Op::sum, weights_[d], {&items, 1}, d == 0 ? sums : products, count);
            const std::array<const void*, 2> both{sums, products};
            if (d > 0) reduce_all(wide, wide, Op::sum, 1.0, both, sums, count);
        }
        const void* const source = sums;
        if (dtype != wide) reduce_all(wide, dtype, Op::sum, 1.0, {&source, 1}, products, count);
        if (dtype != wide) std::memcpy(sums, products, count * item_bytes(dtype));
    }

    bool integers(std::size_t at, std::size_t count, Dtype dtype) noexcept {
        for (std::size_t d = 0; d < donors_.size(); ++d) inputs_[d] = donors_[d] + at;
        reduce_all(dtype, dtype, Op::max, 1.0, inputs_, scratch_ + at, count, stream_);
        return true;
    }

    void name_bad(std::size_t at, std::size_t count, Dtype dtype, Averaged& found) const noexcept {
        const std::size_t item = item_bytes(dtype);
        found.donor = -1;
        found.at = at;
        for (std::size_t i = 0; i < count; ++i) {
            for (std::size_t d = 0; d < donors_.size(); ++d) {
                if (is_each_finite(donors_[d] + at + i * item, 1, dtype)) continue;
                found.donor = static_cast<int>(d);
                found.at = at + i * item;
                return;
            }
        }
    }

    std::span<const std::byte* const> donors_;
    std::span<const double> weights_;
    std::byte* scratch_;
    bool stream_;
    std::vector<const void*> inputs_;
    Block sums_, products_;
};

Averaged attempt(std::span<const std::shared_ptr<const View>> donors, std::span<const double> weights, std::span<const Run> runs,
                 std::byte* scratch, bool stream) {
    Averaged result{.outcome = Outcome::torn, .seen = {}};
    std::vector<const std::byte*> halves;
    for (const auto& donor : donors) {
        const auto version = donor->begin();
        if (!version) return result;
        if (*version == 0) return {.outcome = Outcome::nothing_yet, .seen = {}};
        result.seen.push_back(donor->label(*version));
        halves.push_back(donor->data(*version));
    }
    Sum sum(halves, weights, scratch, stream);
    const bool is_all_finite = std::ranges::all_of(runs, [&](const Run& run) { return sum.add(run, result); });
    // Each half is confirmed after the last read of any of them.
    for (std::size_t d = 0; d < donors.size(); ++d) {
        if (!donors[d]->is_unchanged(result.seen[d].version) || result.seen[d].label.config_bytes > max_config_bytes) return result;
    }
    result.outcome = is_all_finite ? Outcome::complete : Outcome::not_finite;
    return result;
}

}  // namespace

Averaged average(std::span<const std::shared_ptr<const View>> donors, std::span<const double> weights, std::span<const Run> runs,
                 std::byte* scratch) {
    if (donors.empty() || donors.size() != weights.size()) throw Error(Failure::config, "need a weight for each of one or more donors");
    for (const Run& run : runs) {
        for (const auto& donor : donors) {
            if (run.at + run.count * item_bytes(run.dtype) > donor->layout().n_bytes) {
                throw Error(Failure::segment,
                            "the window of a donor has " + std::to_string(donor->layout().n_bytes) + " bytes, fewer than its digest says");
            }
        }
    }
    std::size_t total = 0;
    for (const Run& run : runs) total += run.count * item_bytes(run.dtype);
    Averaged result{.outcome = Outcome::torn, .seen = {}};
    for (int i = 0; i < max_attempts && result.outcome == Outcome::torn; ++i) {
        result = attempt(donors, weights, runs, scratch, total >= stream_from_bytes);
    }
    return result;
}

}  // namespace softs::snapshots
