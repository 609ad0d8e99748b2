// The part of CUDA's float16 that csrc/cuda uses; conversions are those of the reduce kernels.
#pragma once

#include <cstdint>

#include "cpu/half.hpp"

struct __half {
    std::uint16_t bits;
};

inline float __half2float(__half value) {
    return softs::float_from_half(value.bits);
}
inline __half __float2half_rn(float value) {
    return {softs::half_from_float(value)};
}
inline __half __ushort_as_half(unsigned short bits) {
    return {bits};
}
