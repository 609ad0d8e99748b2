// Waiting on a word of shared memory.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace softs::collective {

// Waits while the word is `seen`, up to the time-out. May return early.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds at_most) noexcept {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
    const timespec limit{.tv_sec = static_cast<time_t>(seconds.count()), .tv_nsec = static_cast<long>((at_most - seconds).count())};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace softs::collective
