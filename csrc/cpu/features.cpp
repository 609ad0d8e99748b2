// By the instruction itself: __builtin_cpu_supports needs a library that not every compiler brings (zig has none).
#include "features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdint>

namespace softs {
namespace {

#if defined(__x86_64__)
constexpr std::uint64_t sse_and_avx = 0b110;
constexpr std::uint64_t masks_and_upper_halves = 0b1110'0000;

constexpr bool has_bits(std::uint64_t value, std::uint64_t bits) noexcept {
    return (value & bits) == bits;
}

// The registers that the operating system saves at a switch of threads (XCR0).
std::uint64_t saved_registers() noexcept {
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return std::uint64_t{high} << 32 | low;
}

bool has_avx2() noexcept {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_bits(c, bit_OSXSAVE | bit_AVX | bit_F16C)) return false;
    if (!has_bits(saved_registers(), sse_and_avx)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && has_bits(b, bit_AVX2);
}

bool has_avx512() noexcept {
    if (!has_avx2() || !has_bits(saved_registers(), masks_and_upper_halves)) return false;
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && has_bits(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL);
}
#endif

}  // namespace

bool runs_here(InstructionSet set) noexcept {
    switch (set) {
        case InstructionSet::scalar:
            return true;
#if defined(__x86_64__)
        case InstructionSet::avx2:
            return has_avx2();
        case InstructionSet::avx512:
            return has_avx512();
#elif defined(__aarch64__)
        case InstructionSet::neon:
            return true;
#endif
        default:
            return false;
    }
}

}  // namespace softs
