// The reduce kernels in vectors of the compiler, for any instruction set. A file per instruction set defines `Isa`,
// in an unnamed namespace, and includes this. Everything here has to stay in unnamed namespaces, because code
// compiled for one instruction set must not be linked into code that all machines run. For the same reason nothing of
// the standard library is called here.
//
// Isa defines: the bytes of a vector (`bytes`), how half a vector of 16-bit words becomes a vector of 32-bit ones and
// back (`widen`, `narrow`; the high halves are zero), how float16 becomes float32 and back (`from_half`, `to_half`),
// and how a vector is stored by non-temporal stores (`stream`, `stream_fence`).
//
// Shapes: n_inputs buffers of `count` items, any alignment. Accumulators stay in registers: float for 16 and 32 bits,
// double for 64, integers in their own width, which gives the same as 64 bits modulo 2^bits. Order: inputs by index,
// see reduce.hpp. Writes each output, at an item after all inputs were read there.
#include <cstring>

#include "cpu/reduce.hpp"

namespace softs {
namespace {

template <class T, int items>
struct VectorOf {
    typedef T type __attribute__((vector_size(items * sizeof(T))));
};
template <class T, int items>
using Vector = typename VectorOf<T, items>::type;

constexpr int float_lanes = Isa::bytes / 4;
using Floats = Vector<float, float_lanes>;
using Words = Vector<std::uint32_t, float_lanes>;
using Shorts = Vector<std::uint16_t, float_lanes>;
using Doubles = Vector<double, Isa::bytes / 8>;

#define SOFTS_INLINE [[gnu::always_inline]] static inline

template <class V>
SOFTS_INLINE V load(const char* from) noexcept {
    V value;
    std::memcpy(&value, from, sizeof(V));
    return value;
}

template <bool streaming, class V>
SOFTS_INLINE void save(char* to, V value) noexcept {
    if constexpr (streaming) {
        Isa::stream(to, value);
    } else {
        std::memcpy(to, &value, sizeof(V));
    }
}

// --- Dtypes: the items in memory, and the vector of accumulators of `lanes` items ---

struct Float32 {
    using Acc = Floats;
    static constexpr int lanes = float_lanes;
    static constexpr std::size_t item = 4;
    SOFTS_INLINE Acc get(const char* from) noexcept { return load<Floats>(from); }
    SOFTS_INLINE Floats put(Acc value) noexcept { return value; }
};

// A NaN is the quiet one here, which rounding does not carry beyond its exponent.
SOFTS_INLINE Words rounded_to_bfloat16(Floats value) noexcept {
    const Words bits = reinterpret_cast<Words>(value);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

struct BFloat16 {
    using Acc = Floats;
    static constexpr int lanes = float_lanes;
    static constexpr std::size_t item = 2;
    SOFTS_INLINE Acc get(const char* from) noexcept {
        return reinterpret_cast<Floats>(reinterpret_cast<Words>(Isa::widen(load<Shorts>(from))) << 16);
    }
    SOFTS_INLINE Shorts put(Acc value) noexcept { return reinterpret_cast<Shorts>(Isa::narrow(rounded_to_bfloat16(value) >> 16)); }
};

// bfloat16 on both sides: a whole vector at a time. Items of even and of odd number are widened in place, so that no
// shuffle is needed.
struct FloatPair {
    Floats even, odd;
};

struct BFloat16Pair {
    using Acc = FloatPair;
    static constexpr int lanes = 2 * float_lanes;
    static constexpr std::size_t item = 2;
    SOFTS_INLINE Acc get(const char* from) noexcept {
        const Words bits = load<Words>(from);
        return {reinterpret_cast<Floats>(bits << 16), reinterpret_cast<Floats>(bits & 0xffff0000u)};
    }
    SOFTS_INLINE Words put(Acc value) noexcept {
        return (rounded_to_bfloat16(value.even) >> 16) | (rounded_to_bfloat16(value.odd) & 0xffff0000u);
    }
};

struct Float16 {
    using Acc = Floats;
    static constexpr int lanes = float_lanes;
    static constexpr std::size_t item = 2;
    SOFTS_INLINE Acc get(const char* from) noexcept { return Isa::from_half(load<Shorts>(from)); }
    SOFTS_INLINE Shorts put(Acc value) noexcept { return reinterpret_cast<Shorts>(Isa::to_half(value)); }
};

struct Float64 {
    using Acc = Doubles;
    static constexpr int lanes = Isa::bytes / 8;
    static constexpr std::size_t item = 8;
    SOFTS_INLINE Acc get(const char* from) noexcept { return load<Doubles>(from); }
    SOFTS_INLINE Doubles put(Acc value) noexcept { return value; }
};

// Half a vector of items, accumulated in a whole vector of doubles.
struct Float32Wide {
    using Acc = Doubles;
    using Items = Vector<float, Isa::bytes / 8>;
    static constexpr int lanes = Isa::bytes / 8;
    static constexpr std::size_t item = 4;
    SOFTS_INLINE Acc get(const char* from) noexcept { return __builtin_convertvector(load<Items>(from), Acc); }
    SOFTS_INLINE Items put(Acc value) noexcept { return __builtin_convertvector(value, Items); }
};

template <class T>
struct Integer {
    using Acc = Vector<T, Isa::bytes / sizeof(T)>;
    static constexpr int lanes = Isa::bytes / sizeof(T);
    static constexpr std::size_t item = sizeof(T);
    SOFTS_INLINE Acc get(const char* from) noexcept { return load<Acc>(from); }
    SOFTS_INLINE Acc put(Acc value) noexcept { return value; }
};

struct Bool : Integer<std::uint8_t> {
    SOFTS_INLINE Acc get(const char* from) noexcept { return reinterpret_cast<Acc>(load<Acc>(from) != 0) & 1; }
};

// --- Operations: two accumulators into one, and the last step before the cast ---

SOFTS_INLINE Floats quieted(Floats value) noexcept {
    return value == value ? value : Floats{} + __builtin_nanf("");
}
SOFTS_INLINE Doubles quieted(Doubles value) noexcept {
    return value == value ? value : Doubles{} + __builtin_nan("");
}

template <class V>
struct Factor {
    using type = char;  // integers have none
};
template <>
struct Factor<Floats> {
    using type = float;
};
template <>
struct Factor<FloatPair> {
    using type = float;
};
template <>
struct Factor<Doubles> {
    using type = double;
};
template <class V>
using FactorOf = typename Factor<V>::type;

SOFTS_INLINE Floats finished(Floats value, float factor) noexcept {
    return quieted(value * factor);
}
SOFTS_INLINE Doubles finished(Doubles value, double factor) noexcept {
    return quieted(value * factor);
}
SOFTS_INLINE FloatPair finished(FloatPair value, float factor) noexcept {
    return {finished(value.even, factor), finished(value.odd, factor)};
}
template <class V>
SOFTS_INLINE V finished(V value, char) noexcept {
    return value;
}

struct Sum {
    template <class V>
    SOFTS_INLINE V fold(V a, V b) noexcept {
        return a + b;
    }
};
struct Or {
    template <class V>
    SOFTS_INLINE V fold(V a, V b) noexcept {
        return a | b;
    }
};
struct Min {
    template <class V>
    SOFTS_INLINE V fold(V a, V b) noexcept {
        return ((b < a) | (b != b)) ? b : a;
    }
};
struct Max {
    template <class V>
    SOFTS_INLINE V fold(V a, V b) noexcept {
        return ((b > a) | (b != b)) ? b : a;
    }
};

template <class Operation, class V>
SOFTS_INLINE V folded(V a, V b) noexcept {
    return Operation::fold(a, b);
}
template <class Operation>
SOFTS_INLINE FloatPair folded(FloatPair a, FloatPair b) noexcept {
    return {Operation::fold(a.even, b.even), Operation::fold(a.odd, b.odd)};
}

// --- The loop ---

// Hardware prefetches one stream of reads well, within a page; more streams are prefetched here (measured out of memory:
// two streams become 1.1 to 1.3 times as fast on Emerald Rapids, four of 16-bit items, and of 32-bit items with AVX2, 1.4
// times on Zen 5).
template <std::size_t bytes>
SOFTS_INLINE void prefetch(const char* from) noexcept {
    constexpr std::size_t distance = 1024;
#pragma GCC unroll 8
    for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + distance + at);
}

// Reduces the `vectors` vectors from item `first` on.
template <class In, class Out, class Operation, int vectors, bool streaming>
SOFTS_INLINE void step(const ReduceArgs& args, FactorOf<typename In::Acc> factor, std::size_t first) noexcept {
    constexpr std::size_t read = In::lanes * In::item;
    constexpr std::size_t written = In::lanes * Out::item;
    const bool foresee = vectors > 1 && args.n_inputs > 1;
    typename In::Acc acc[vectors];
    const char* from = static_cast<const char*>(args.inputs[0]) + first * In::item;
    if (foresee) prefetch<vectors * read>(from);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) acc[v] = In::get(from + v * read);
    for (int k = 1; k < args.n_inputs; ++k) {
        from = static_cast<const char*>(args.inputs[k]) + first * In::item;
        if (foresee) prefetch<vectors * read>(from);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) acc[v] = folded<Operation>(acc[v], In::get(from + v * read));
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) acc[v] = finished(acc[v], factor);
    for (int o = 0; o < args.n_outputs; ++o) {
        char* to = static_cast<char*>(args.outputs[o]) + first * Out::item;
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) save<streaming>(to + v * written, Out::put(acc[v]));
    }
}

// Reduces fewer items than a vector has, through a whole vector.
template <class In, class Out, class Operation>
[[gnu::noinline]] static void part(const ReduceArgs& args, FactorOf<typename In::Acc> factor, std::size_t first,
                                   std::size_t items) noexcept {
    char block[In::lanes * In::item] = {};
    typename In::Acc acc{};
    for (int k = 0; k < args.n_inputs; ++k) {
        std::memcpy(block, static_cast<const char*>(args.inputs[k]) + first * In::item, items * In::item);
        const auto input = In::get(block);
        acc = k == 0 ? input : folded<Operation>(acc, input);
    }
    const auto result = Out::put(finished(acc, factor));
    for (int o = 0; o < args.n_outputs; ++o) {
        std::memcpy(static_cast<char*>(args.outputs[o]) + first * Out::item, &result, items * Out::item);
    }
}

template <class In, class Out, class Operation, bool streaming>
[[gnu::noinline]] static void loop(const ReduceArgs& args, FactorOf<typename In::Acc> factor, std::size_t first) noexcept {
    constexpr std::size_t block = 4 * In::lanes;
    for (; args.count - first >= block; first += block) step<In, Out, Operation, 4, streaming>(args, factor, first);
    for (; args.count - first >= In::lanes; first += In::lanes) step<In, Out, Operation, 1, streaming>(args, factor, first);
    if (first < args.count) part<In, Out, Operation>(args, factor, first, args.count - first);
}

// Number of items to reduce before every output is at a multiple of `alignment`; negative if there is no such item.
static std::ptrdiff_t items_to_alignment(const ReduceArgs& args, std::size_t item, std::size_t alignment) noexcept {
    const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(args.outputs[0]) % alignment;
    for (int o = 1; o < args.n_outputs; ++o) {
        if (reinterpret_cast<std::uintptr_t>(args.outputs[o]) % alignment != misplaced) return -1;
    }
    const std::size_t missing = (alignment - misplaced) % alignment;
    return missing % item == 0 ? static_cast<std::ptrdiff_t>(missing / item) : -1;
}

template <class In, class Out, class Operation>
static bool run(const ReduceArgs& args) noexcept {
    const double scale = is_mean(args.op) ? args.scale / args.n_inputs : args.scale;
    const auto factor = static_cast<FactorOf<typename In::Acc>>(scale);
    const std::ptrdiff_t head = args.stream_stores ? items_to_alignment(args, Out::item, In::lanes * Out::item) : -1;
    if (head < 0) {
        loop<In, Out, Operation, false>(args, factor, 0);
        return true;
    }
    const std::size_t first = static_cast<std::size_t>(head) < args.count ? static_cast<std::size_t>(head) : args.count;
    if (first > 0) part<In, Out, Operation>(args, factor, 0, first);
    loop<In, Out, Operation, true>(args, factor, first);
    Isa::stream_fence();
    return true;
}

// --- From the arguments to a loop ---

template <class In, class Out>
static bool by_operation(const ReduceArgs& args) noexcept {
    if (args.op == Op::min) return run<In, Out, Min>(args);
    if (args.op == Op::max) return run<In, Out, Max>(args);
    return run<In, Out, Sum>(args);
}

template <class In>
static bool by_output(const ReduceArgs& args) noexcept {
    if (args.out == Dtype::float32) return by_operation<In, Float32>(args);
    if (args.out == Dtype::bfloat16) return by_operation<In, BFloat16>(args);
    if (args.out == Dtype::float16) return by_operation<In, Float16>(args);
    return false;
}

template <class Signed, class Unsigned>
static bool integers(const ReduceArgs& args) noexcept {
    if (args.out != args.in || is_mean(args.op) || args.scale != 1.0) return false;
    if (args.op == Op::min) return run<Integer<Signed>, Integer<Signed>, Min>(args);
    if (args.op == Op::max) return run<Integer<Signed>, Integer<Signed>, Max>(args);
    return run<Integer<Unsigned>, Integer<Unsigned>, Sum>(args);  // unsigned, because they wrap around
}

// Returns false, and writes nothing, for combinations that are left to the scalar kernel.
static bool reduce_vector(const ReduceArgs& args) noexcept {
    switch (args.in) {
        case Dtype::float64:
            return args.out == Dtype::float64 && by_operation<Float64, Float64>(args);
        case Dtype::float32:
            if (args.op != Op::exact_mean) return by_output<Float32>(args);
            return args.out == Dtype::float32 && run<Float32Wide, Float32Wide, Sum>(args);
        case Dtype::float16:
            return by_output<Float16>(args);
        case Dtype::bfloat16:
            return args.out == Dtype::bfloat16 ? by_operation<BFloat16Pair, BFloat16Pair>(args) : by_output<BFloat16>(args);
        case Dtype::int64:
            return integers<std::int64_t, std::uint64_t>(args);
        case Dtype::int32:
            return integers<std::int32_t, std::uint32_t>(args);
        case Dtype::int16:
            return integers<std::int16_t, std::uint16_t>(args);
        case Dtype::int8:
            return integers<std::int8_t, std::uint8_t>(args);
        case Dtype::uint8:
            return integers<std::uint8_t, std::uint8_t>(args);
        case Dtype::boolean:
            return args.op == Op::min ? run<Bool, Bool, Min>(args) : run<Bool, Bool, Or>(args);
    }
    return false;
}

#undef SOFTS_INLINE

}  // namespace
}  // namespace softs
