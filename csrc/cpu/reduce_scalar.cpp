// The reduce kernel in plain C++: every combination, block by block. Inputs are folded one after the other into a
// block of accumulators, which is then finished and stored.
//
// Writes `count` items of every output, each block after all inputs of the block were read.
#include <algorithm>
#include <cstring>
#include <limits>

#include "half.hpp"
#include "reduce_sets.hpp"

namespace softs {
namespace {

constexpr std::size_t block_items = 256;

// --- Items in memory, and their accumulators ---

struct Half {
    std::uint16_t bits;
};
struct Brain {
    std::uint16_t bits;
};
struct Bool {
    std::uint8_t byte;
};

template <class T>
T item(const void* base, std::size_t i) noexcept {
    T value;
    std::memcpy(&value, static_cast<const char*>(base) + i * sizeof(T), sizeof(T));
    return value;
}

template <class Acc, class T>
Acc widened(T value) noexcept {
    return static_cast<Acc>(value);
}
template <>
float widened<float>(Half value) noexcept {
    return float_from_half(value.bits);
}
template <>
float widened<float>(Brain value) noexcept {
    return float_from_bfloat16(value.bits);
}
template <>
bool widened<bool>(Bool value) noexcept {
    return value.byte != 0;
}

template <class T, class Acc>
T narrowed(Acc value) noexcept {
    return static_cast<T>(value);
}
template <class T, class Acc>
    requires std::numeric_limits<T>::is_iec559
T narrowed(Acc value) noexcept {
    return value == value ? static_cast<T>(value) : std::numeric_limits<T>::quiet_NaN();
}
template <class T, class Acc>
    requires std::is_same_v<T, Half>
T narrowed(Acc value) noexcept {
    return {half_from_float(static_cast<float>(value))};
}
template <class T, class Acc>
    requires std::is_same_v<T, Brain>
T narrowed(Acc value) noexcept {
    return {bfloat16_from_float(static_cast<float>(value))};
}
template <class T, class Acc>
    requires std::is_same_v<T, Bool>
T narrowed(Acc value) noexcept {
    return {static_cast<std::uint8_t>(value)};
}

// --- Folding ---

template <class Acc>
Acc added(Acc a, Acc b) noexcept {
    return a + b;
}
template <>
std::int64_t added(std::int64_t a, std::int64_t b) noexcept {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
template <>
bool added(bool a, bool b) noexcept {
    return a || b;
}

template <class Acc>
bool is_nan(Acc value) noexcept {
    return value != value;
}

template <class T, class Acc>
void fold(Acc* acc, const void* input, std::size_t first, std::size_t n, Op op) noexcept {
    for (std::size_t i = 0; i < n; ++i) {
        const Acc b = widened<Acc>(item<T>(input, first + i));
        const Acc a = acc[i];
        if (op == Op::min) {
            acc[i] = (b < a || is_nan(b)) ? b : a;
        } else if (op == Op::max) {
            acc[i] = (b > a || is_nan(b)) ? b : a;
        } else {
            acc[i] = added(a, b);
        }
    }
}

template <class T, class Acc>
void start(Acc* acc, const void* input, std::size_t first, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) acc[i] = widened<Acc>(item<T>(input, first + i));
}

// --- Finishing ---

std::int64_t truncated(double value) noexcept {
    if (value != value) return 0;
    if (value >= 0x1p63) return std::numeric_limits<std::int64_t>::max();
    if (value < -0x1p63) return std::numeric_limits<std::int64_t>::min();
    return static_cast<std::int64_t>(value);
}

template <class T, class Acc>
T finished(Acc acc, const ReduceArgs& args) noexcept {
    if constexpr (std::is_same_v<Acc, bool>) {
        return narrowed<T>(acc);
    } else if constexpr (std::is_same_v<Acc, std::int64_t>) {
        const int n = is_mean(args.op) ? args.n_inputs : 1;
        if constexpr (std::numeric_limits<T>::is_integer) {
            return narrowed<T>(args.scale == 1.0 ? acc / n : truncated(static_cast<double>(acc) * args.scale / n));
        } else {
            return narrowed<T>(static_cast<double>(acc) * args.scale / n);
        }
    } else {
        const int n = is_mean(args.op) ? args.n_inputs : 1;
        return narrowed<T>(acc * static_cast<Acc>(args.scale / n));
    }
}

template <class T, class Acc>
void store(const Acc* acc, const ReduceArgs& args, std::size_t first, std::size_t n) noexcept {
    T block[block_items];
    for (std::size_t i = 0; i < n; ++i) block[i] = finished<T>(acc[i], args);
    for (int o = 0; o < args.n_outputs; ++o) {
        std::memcpy(static_cast<char*>(args.outputs[o]) + first * sizeof(T), block, n * sizeof(T));
    }
}

template <class In, class Acc>
void run(const ReduceArgs& args) noexcept {
    for (std::size_t first = 0; first < args.count; first += block_items) {
        const std::size_t n = std::min(block_items, args.count - first);
        Acc acc[block_items];
        start<In>(acc, args.inputs[0], first, n);
        for (int k = 1; k < args.n_inputs; ++k) fold<In>(acc, args.inputs[k], first, n, args.op);
        if constexpr (std::is_same_v<Acc, bool>) {
            store<Bool>(acc, args, first, n);
        } else {
            switch (args.out) {
                case Dtype::float64:
                    store<double>(acc, args, first, n);
                    break;
                case Dtype::float32:
                    store<float>(acc, args, first, n);
                    break;
                case Dtype::float16:
                    store<Half>(acc, args, first, n);
                    break;
                case Dtype::bfloat16:
                    store<Brain>(acc, args, first, n);
                    break;
                default:
                    if constexpr (std::is_same_v<Acc, std::int64_t>) {
                        switch (args.out) {
                            case Dtype::int64:
                                store<std::int64_t>(acc, args, first, n);
                                break;
                            case Dtype::int32:
                                store<std::int32_t>(acc, args, first, n);
                                break;
                            case Dtype::int16:
                                store<std::int16_t>(acc, args, first, n);
                                break;
                            case Dtype::int8:
                                store<std::int8_t>(acc, args, first, n);
                                break;
                            default:
                                store<std::uint8_t>(acc, args, first, n);
                                break;
                        }
                    }
                    break;
            }
        }
    }
}

}  // namespace

void reduce_scalar(const ReduceArgs& args) noexcept {
    switch (args.in) {
        case Dtype::float64:
            return run<double, double>(args);
        case Dtype::float32:
            return args.op == Op::exact_mean ? run<float, double>(args) : run<float, float>(args);
        case Dtype::float16:
            return run<Half, float>(args);
        case Dtype::bfloat16:
            return run<Brain, float>(args);
        case Dtype::int64:
            return run<std::int64_t, std::int64_t>(args);
        case Dtype::int32:
            return run<std::int32_t, std::int64_t>(args);
        case Dtype::int16:
            return run<std::int16_t, std::int64_t>(args);
        case Dtype::int8:
            return run<std::int8_t, std::int64_t>(args);
        case Dtype::uint8:
            return run<std::uint8_t, std::int64_t>(args);
        case Dtype::boolean:
            return run<Bool, bool>(args);
    }
}

}  // namespace softs
