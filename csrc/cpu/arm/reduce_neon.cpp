// NEON, which every AArch64 processor has.
#include <arm_neon.h>

#include <cstring>

#include "cpu/reduce_sets.hpp"

namespace softs {
namespace {

struct Isa {
    static constexpr int bytes = 16;

    template <class Shorts>
    static uint32x4_t widen(Shorts value) noexcept {
        return vmovl_u16(reinterpret_cast<uint16x4_t>(value));
    }
    template <class Words>
    static uint16x4_t narrow(Words value) noexcept {
        return vmovn_u32(reinterpret_cast<uint32x4_t>(value));
    }
    template <class Shorts>
    static float32x4_t from_half(Shorts value) noexcept {
        return vcvt_f32_f16(reinterpret_cast<float16x4_t>(value));
    }
    template <class Floats>
    static float16x4_t to_half(Floats value) noexcept {
        return vcvt_f16_f32(reinterpret_cast<float32x4_t>(value));
    }
    // There is an instruction for this (STNP), but no intrinsic; an ordinary store is correct.
    template <class V>
    static void stream(char* to, V value) noexcept {
        std::memcpy(to, &value, sizeof(V));
    }
    static void stream_fence() noexcept {}
};

}  // namespace
}  // namespace softs

#include "cpu/reduce_vector.hpp"

namespace softs {

bool reduce_neon(const ReduceArgs& args) noexcept {
    return reduce_vector(args);
}

}  // namespace softs
