// Conversion of float16 and bfloat16 to float32 and back, in plain C++. Rounds to nearest, ties to even; a NaN
// becomes the positive quiet one.
#pragma once

#include <bit>
#include <cstdint>

namespace softs {

constexpr std::uint32_t quiet_nan_bits = 0x7fc00000u;

inline float float_from_bfloat16(std::uint16_t bits) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t bfloat16_from_float(float value) noexcept {
    const auto bits = value == value ? std::bit_cast<std::uint32_t>(value) : quiet_nan_bits;
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float float_from_half(std::uint16_t bits) noexcept {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude < 0x0400u) {  // zero or subnormal: a multiple of 2^-24
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
    }
    const std::uint32_t rebias = magnitude < 0x7c00u ? 0x38000000u : 0x70000000u;  // infinity and NaN keep the highest exponent
    return std::bit_cast<float>(((magnitude << 13) + rebias) | sign);
}

inline std::uint16_t half_from_float(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7e00u;
    if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65536 and more
    if (magnitude < 0x38800000u) {
        // Below 2^-14 a half counts in 2^-24, the last place of 0.5: the addition rounds.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f)));
    }
    magnitude += 0x0fffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
}

}  // namespace softs
