// Flags between devices, and the clock of their deadlines. Under nvcc these are single instructions.
//
// A flag is stored after everything that it announces, and loaded before everything that it permits, across devices
// and processes. A flag may also be a word of the host's memory, which the host stores.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#if !defined(__CUDACC__)
#include <sched.h>
#include <time.h>
#endif

namespace softs::cuda {
namespace {

__device__ inline void store_flag(std::uint32_t* flag, std::uint32_t value) {
    // SYNC(together-flag): pairs with load_flag.
#if defined(__CUDACC__)
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#else
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
#endif
}

__device__ inline std::uint32_t load_flag(const std::uint32_t* flag) {
    // SYNC(together-flag): pairs with store_flag.
#if defined(__CUDACC__)
    std::uint32_t value = 0;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
#else
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
#endif
}

// Sets bits of a word that only threads of this block write.
__device__ inline void set_bits(std::uint64_t* word, std::uint64_t bits) {
#if defined(__CUDACC__)
    atomicOr(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(bits));
#else
    __atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
#endif
}

// The word, as of the last barrier of the block.
__device__ inline std::uint64_t bits_of(const std::uint64_t* word) {
#if defined(__CUDACC__)
    return *static_cast<const volatile std::uint64_t*>(word);
#else
    return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

// Nanoseconds since a fixed time; comparable on one device only.
__device__ inline std::uint64_t nanoseconds() {
#if defined(__CUDACC__)
    std::uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#else
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec);
#endif
}

// Pause between two loads of a flag.
__device__ inline void let_others_run() {
#if defined(__CUDACC__)
    __nanosleep(20);
#else
    sched_yield();
#endif
}

}  // namespace
}  // namespace softs::cuda
