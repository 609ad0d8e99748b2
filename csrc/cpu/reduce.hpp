// Reduction of several buffers into one, element by element, with a scale and a cast fused into the same pass.
//
// Numerics, the same bits on every machine and with every instruction set:
// - Order: ((input 0 + input 1) + input 2) + ..., for every element, at every place. No fused multiply-add, no
//   reassociation.
// - Accumulator: float64 for float64; float32 for float32, float16 and bfloat16; 64-bit integers, modulo 2^64, for
//   integers. `exact_mean` is `mean`, but accumulates float32 in float64, so that it is rounded once.
// - Floats: the accumulator is multiplied by `scale`, for a mean by `scale / n_inputs` (computed in double, rounded
//   once to the accumulator), and rounded to the output's dtype, to nearest, ties to even; float64 to 16 bits goes by
//   float32, as in torch. A NaN among the inputs makes the result NaN, also of minimum and maximum; a result that is
//   NaN is the positive quiet NaN of the output's dtype. Of -0 and +0 minimum and maximum keep the one of the lower
//   index.
// - Integers: sums wrap around. A mean divides exactly and truncates toward zero, like
//   `torch.div(rounding_mode="trunc")`. A scale other than 1 is applied in double (values beyond int64 are clamped,
//   NaN is 0), then truncated. Integer outputs keep the low bits.
// - bool: every byte but 0 is true, results are 0 or 1; sum and maximum are `or`, minimum is `and`, and there is no
//   mean or scale.
//
// The rounding mode and the treatment of subnormals are those of the calling thread; the default gives the above.
//
// Source: own; traffic is n_inputs reads and n_outputs writes per element, the minimum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace softs {

enum class Dtype : std::uint8_t { float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8, boolean };

enum class Op : std::uint8_t { sum, mean, min, max, exact_mean };

constexpr bool is_mean(Op op) noexcept {
    return op == Op::mean || op == Op::exact_mean;
}

// Instruction sets. All give the same bits.
enum class InstructionSet : std::uint8_t { scalar, avx2, avx512, neon };

std::size_t item_bytes(Dtype dtype) noexcept;

struct ReduceArgs {
    Dtype in;
    Dtype out;
    Op op;
    double scale;  // multiplies the result; 1 leaves it
    const void* const* inputs;
    int n_inputs;  // >= 1
    // Each gets the whole result. One may be an input itself where the items of both have one size, else must not
    // overlap any.
    void* const* outputs;
    int n_outputs;      // >= 1
    std::size_t count;  // elements of every buffer; buffers may have any alignment
    // Non-temporal stores: for results that this core will not read soon. Takes effect on outputs of one common
    // alignment.
    bool stream_stores;
};

// Whether `reduce` supports the combination: floats to floats, integers to integers or floats, bool to bool.
bool reduce_supported(Dtype in, Dtype out, Op op) noexcept;

// Reduces with the best instruction set of this machine. Needs `reduce_supported`; writes nothing otherwise.
void reduce(const ReduceArgs& args) noexcept;

// The same with an instruction set of `available_instruction_sets`.
void reduce(const ReduceArgs& args, InstructionSet set) noexcept;

// Instruction sets of this build, and those of them that this machine supports, best first; `scalar` is always among
// them.
std::vector<InstructionSet> compiled_instruction_sets();
std::vector<InstructionSet> available_instruction_sets();

std::string_view name(InstructionSet set) noexcept;

}  // namespace softs
