// Arithmetic of single elements in a reduction on a device; bit-identical to cpu/reduce.hpp.
//
// No product is an operand of an addition here, so a compiler cannot fuse the two into one rounding.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/check.hpp"
#include "cuda/reduce.hpp"

namespace softs::cuda {
namespace {

// Items of one thread at a time: 8 bytes or more of each buffer.
constexpr int chunk_items = 8;

// bfloat16, and bool: any byte but 0 is true.
struct Brain {
    std::uint16_t bits;
};
struct Bool {
    std::uint8_t byte;
};

template <class In>
using Accumulator =
    std::conditional_t<std::is_same_v<In, double>, double,
                       std::conditional_t<std::is_same_v<In, Bool>, bool, std::conditional_t<std::is_integral_v<In>, std::int64_t, float>>>;

// The last step of a reduction, computed once on the host.
struct Finish {
    Dtype out;
    Op op;
    double factor;  // of floats: scale, divided by n for a mean
    double scale;
    int n;  // divisor of integers
};

// Number of items at a time.
template <int n>
using Width = std::integral_constant<int, n>;

template <class Acc, class In>
__device__ Acc widened(In value) {
    if constexpr (std::is_same_v<In, __half>) {
        return __half2float(value);
    } else if constexpr (std::is_same_v<In, Brain>) {
        return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
    } else if constexpr (std::is_same_v<In, Bool>) {
        return value.byte != 0;
    } else {
        return static_cast<Acc>(value);
    }
}

template <class Acc>
__device__ Acc folded(Acc a, Acc b, Op op) {
    if (op == Op::min) return b < a || b != b ? b : a;
    if (op == Op::max) return b > a || b != b ? b : a;
    if constexpr (std::is_same_v<Acc, bool>) {
        return a || b;
    } else if constexpr (std::is_same_v<Acc, std::int64_t>) {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
        return a + b;
    }
}

__device__ inline std::int64_t truncated(double value) {
    if (value != value) return 0;
    if (value >= 0x1p63) return 0x7fffffffffffffffll;
    if (value < -0x1p63) return -0x7fffffffffffffffll - 1;
    return static_cast<std::int64_t>(value);
}

__device__ inline float quiet_nan() {
    return __uint_as_float(0x7fc00000u);
}

// To nearest, ties to even; NaN becomes the positive quiet one; integers keep the low bits.
template <class Out, class Acc>
__device__ Out narrowed(Acc value) {
    if constexpr (std::is_same_v<Out, Bool>) {
        return {static_cast<std::uint8_t>(value)};
    } else if constexpr (std::is_same_v<Out, __half>) {
        const float wide = static_cast<float>(value);
        return wide == wide ? __float2half_rn(wide) : __ushort_as_half(0x7e00);
    } else if constexpr (std::is_same_v<Out, Brain>) {
        const float wide = static_cast<float>(value);
        const std::uint32_t bits = __float_as_uint(wide == wide ? wide : quiet_nan());
        return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
    } else if constexpr (std::is_same_v<Out, float>) {
        return value == value ? static_cast<float>(value) : quiet_nan();
    } else if constexpr (std::is_same_v<Out, double>) {
        return value == value ? static_cast<double>(value) : static_cast<double>(quiet_nan());
    } else {
        return static_cast<Out>(value);
    }
}

template <class Out, class Acc>
__device__ Out finished(Acc acc, const Finish& finish) {
    if constexpr (std::is_same_v<Acc, bool>) {
        return narrowed<Out>(acc);
    } else if constexpr (std::is_same_v<Acc, std::int64_t> && std::is_integral_v<Out>) {
        if (finish.scale == 1.0) return narrowed<Out>(finish.n == 1 ? acc : acc / finish.n);
        return narrowed<Out>(truncated(static_cast<double>(acc) * finish.scale / finish.n));
    } else if constexpr (std::is_same_v<Acc, std::int64_t>) {
        return narrowed<Out>(static_cast<double>(acc) * finish.scale / finish.n);
    } else {
        return narrowed<Out>(acc * static_cast<Acc>(finish.factor));
    }
}

// `n` items, read and written in the largest words if they are a whole chunk.
template <class T, int n>
union Items {
    using Word = std::conditional_t<sizeof(T) == 1, std::uint64_t, uint4>;
    static constexpr int words = n * sizeof(T) / sizeof(Word);
    Word word[words > 0 ? words : 1];
    T item[n];

    __device__ Items() {}
    __device__ void read(const void* base, std::uint64_t at) {
        if constexpr (n == chunk_items) {
            const Word* from = reinterpret_cast<const Word*>(static_cast<const T*>(base) + at);
            for (int w = 0; w < words; ++w) word[w] = from[w];
        } else {
            item[0] = static_cast<const T*>(base)[at];
        }
    }
    __device__ void write(void* base, std::uint64_t at) const {
        if constexpr (n == chunk_items) {
            Word* to = reinterpret_cast<Word*>(static_cast<T*>(base) + at);
            for (int w = 0; w < words; ++w) to[w] = word[w];
        } else {
            static_cast<T*>(base)[at] = item[0];
        }
    }
};

template <class Out, int n, class Acc>
__device__ void store(const Acc* acc, const Finish& finish, void* output, std::uint64_t at) {
    Items<Out, n> out;
    for (int k = 0; k < n; ++k) out.item[k] = finished<Out>(acc[k], finish);
    out.write(output, at);
}

// Items `at` to `at + n` of all inputs, by index, into items `to` to `to + n` of the output. Every input is read
// before the output is written.
template <class In, int n>
__device__ void reduce_items(const void* const* inputs, int n_inputs, std::uint64_t at, const Finish& finish, void* output,
                             std::uint64_t to) {
    using Acc = Accumulator<In>;
    Acc acc[n];
    Items<In, n> in;
    in.read(inputs[0], at);
    for (int k = 0; k < n; ++k) acc[k] = widened<Acc>(in.item[k]);
    for (int i = 1; i < n_inputs; ++i) {
        in.read(inputs[i], at);
        for (int k = 0; k < n; ++k) acc[k] = folded(acc[k], widened<Acc>(in.item[k]), finish.op);
    }
    if constexpr (std::is_same_v<Acc, bool>) {
        store<Bool, n>(acc, finish, output, to);
    } else {
        switch (finish.out) {
            case Dtype::float64:
                return store<double, n>(acc, finish, output, to);
            case Dtype::float32:
                return store<float, n>(acc, finish, output, to);
            case Dtype::float16:
                return store<__half, n>(acc, finish, output, to);
            case Dtype::bfloat16:
                return store<Brain, n>(acc, finish, output, to);
            default:
                break;
        }
        if constexpr (std::is_same_v<Acc, std::int64_t>) {
            switch (finish.out) {
                case Dtype::int64:
                    return store<std::int64_t, n>(acc, finish, output, to);
                case Dtype::int32:
                    return store<std::int32_t, n>(acc, finish, output, to);
                case Dtype::int16:
                    return store<std::int16_t, n>(acc, finish, output, to);
                case Dtype::int8:
                    return store<std::int8_t, n>(acc, finish, output, to);
                default:
                    return store<std::uint8_t, n>(acc, finish, output, to);
            }
        }
    }
}

template <class T, int n>
__device__ void move_items(const void* from, std::uint64_t at, void* output, std::uint64_t to) {
    Items<T, n> items;
    items.read(from, at);
    items.write(output, to);
}

// --- Host code ---

template <class T>
struct Type {
    using type = T;
};

// Calls `use` with the type of the inputs' items.
template <class Use>
void by_input(Dtype in, Use use) {
    switch (in) {
        case Dtype::float64:
            return use(Type<double>());
        case Dtype::float32:
            return use(Type<float>());
        case Dtype::float16:
            return use(Type<__half>());
        case Dtype::bfloat16:
            return use(Type<Brain>());
        case Dtype::int64:
            return use(Type<std::int64_t>());
        case Dtype::int32:
            return use(Type<std::int32_t>());
        case Dtype::int16:
            return use(Type<std::int16_t>());
        case Dtype::int8:
            return use(Type<std::int8_t>());
        case Dtype::uint8:
            return use(Type<std::uint8_t>());
        case Dtype::boolean:
            return use(Type<Bool>());
    }
}

// Calls `use` for each type that inputs may have.
template <class Use>
void each_input(Use use) {
    for (int in = 0; in <= static_cast<int>(Dtype::boolean); ++in) by_input(static_cast<Dtype>(in), use);
}

// To the largest words.
inline bool is_aligned(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % sizeof(uint4) == 0;
}

inline int device_to_work_on(const void* output) {
    const auto device = device_of(output);
    if (!device) fail(cudaErrorInvalidDevicePointer, "reduce");
    return *device;
}

inline Finish finish_of(const DeviceReduction& what, int n_inputs) {
    const int n = what.op == Op::mean ? n_inputs : 1;
    return {what.out, what.op, what.scale / n, what.scale, n};
}

}  // namespace
}  // namespace softs::cuda
