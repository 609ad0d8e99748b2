// AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

#include "cpu/reduce_sets.hpp"

namespace softs {
namespace {

struct Isa {
    static constexpr int bytes = 64;

    // The compiler removes the masks; without them GCC 12 warns about its own header.
    template <class Shorts>
    static __m512i widen(Shorts value) noexcept {
        return _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(value));
    }
    template <class Words>
    static __m256i narrow(Words value) noexcept {
        return _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(value));
    }
    template <class Shorts>
    static __m512 from_half(Shorts value) noexcept {
        return _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(value));
    }
    template <class Floats>
    static __m256i to_half(Floats value) noexcept {
        return _mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT);
    }
    template <class V>
    static void stream(char* to, V value) noexcept {
        if constexpr (sizeof(V) == 64) {
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(value));
        } else {
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
        }
    }
    static void stream_fence() noexcept { _mm_sfence(); }
};

}  // namespace
}  // namespace softs

#include "cpu/reduce_vector.hpp"

namespace softs {

bool reduce_avx512(const ReduceArgs& args) noexcept {
    return reduce_vector(args);
}

}  // namespace softs
