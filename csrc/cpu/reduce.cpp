#include "reduce.hpp"

#include "features.hpp"
#include "reduce_sets.hpp"

namespace softs {
namespace {

bool is_float(Dtype dtype) noexcept {
    return dtype <= Dtype::bfloat16;
}

}  // namespace

std::size_t item_bytes(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::float64:
        case Dtype::int64:
            return 8;
        case Dtype::float32:
        case Dtype::int32:
            return 4;
        case Dtype::float16:
        case Dtype::bfloat16:
        case Dtype::int16:
            return 2;
        case Dtype::int8:
        case Dtype::uint8:
        case Dtype::boolean:
            return 1;
    }
    return 0;
}

bool reduce_supported(Dtype in, Dtype out, Op op) noexcept {
    if (in == Dtype::boolean || out == Dtype::boolean) return in == out && !is_mean(op);
    return !is_float(in) || is_float(out);
}

std::vector<InstructionSet> compiled_instruction_sets() {
#if defined(__x86_64__)
    return {InstructionSet::avx512, InstructionSet::avx2, InstructionSet::scalar};
#elif defined(__aarch64__)
    return {InstructionSet::neon, InstructionSet::scalar};
#else
    return {InstructionSet::scalar};
#endif
}

std::vector<InstructionSet> available_instruction_sets() {
    auto sets = compiled_instruction_sets();
    std::erase_if(sets, [](InstructionSet set) { return !runs_here(set); });
    return sets;
}

std::string_view name(InstructionSet set) noexcept {
    switch (set) {
        case InstructionSet::scalar:
            return "scalar";
        case InstructionSet::avx2:
            return "avx2";
        case InstructionSet::avx512:
            return "avx512";
        case InstructionSet::neon:
            return "neon";
    }
    return "";
}

void reduce(const ReduceArgs& args, InstructionSet set) noexcept {
    if (!reduce_supported(args.in, args.out, args.op)) return;
    bool done = false;
#if defined(__x86_64__)
    if (set == InstructionSet::avx512) done = reduce_avx512(args);
    if (set == InstructionSet::avx2) done = reduce_avx2(args);
#elif defined(__aarch64__)
    if (set == InstructionSet::neon) done = reduce_neon(args);
#endif
    if (!done) reduce_scalar(args);
}

void reduce(const ReduceArgs& args) noexcept {
    static const InstructionSet best = available_instruction_sets().front();
    reduce(args, best);
}

}  // namespace softs
