// AVX2 and F16C.
#include <immintrin.h>

#include "cpu/reduce_sets.hpp"

namespace softs {
namespace {

struct Isa {
    static constexpr int bytes = 32;

    template <class Shorts>
    static __m256i widen(Shorts value) noexcept {
        return _mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(value));
    }
    template <class Words>
    static __m128i narrow(Words value) noexcept {
        const auto words = reinterpret_cast<__m256i>(value);
        return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    }
    template <class Shorts>
    static __m256 from_half(Shorts value) noexcept {
        return _mm256_cvtph_ps(reinterpret_cast<__m128i>(value));
    }
    template <class Floats>
    static __m128i to_half(Floats value) noexcept {
        return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    }
    template <class V>
    static void stream(char* to, V value) noexcept {
        if constexpr (sizeof(V) == 32) {
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
        } else {
            _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
        }
    }
    static void stream_fence() noexcept { _mm_sfence(); }
};

}  // namespace
}  // namespace softs

#include "cpu/reduce_vector.hpp"

namespace softs {

bool reduce_avx2(const ReduceArgs& args) noexcept {
    return reduce_vector(args);
}

}  // namespace softs
