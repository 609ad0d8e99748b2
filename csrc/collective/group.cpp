// Joining, flags, waits and errors of a group. The collectives are in collectives.cpp, new memory and new groups in
// sharing.cpp.
#include "group.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "error.hpp"
#include "futex.hpp"

namespace softs::collective {
namespace {

using namespace std::chrono_literals;

constexpr auto shortest_look = 2us;
// Longer than a rank that comes after some lines of Python together with a late wake-up: a wait that blocked counts as
// long as that took, and no spin would follow it.
constexpr auto longest_look = 200us;
constexpr auto first_slice = 1ms;
constexpr auto longest_slice = 16ms;
constexpr auto interrupt_every = 50ms;

void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

std::string seconds(std::chrono::nanoseconds time) {
    const auto tenths = (std::chrono::duration_cast<std::chrono::milliseconds>(time).count() + 50) / 100;
    return std::to_string(tenths / 10) + '.' + std::to_string(tenths % 10) + " s";
}

}  // namespace

Mapping Group::create_segment(int size, std::size_t slot_bytes) {
    if (size < 1 || size > max_ranks) {
        throw Error(Failure::config, "a group of " + std::to_string(size) + " ranks: 1 to " + std::to_string(max_ranks) + " are possible");
    }
    const Layout layout{.size = size, .slot_bytes = slot_bytes};
    Mapping segment = Mapping::create(layout.bytes());
    segment.allocate(0, layout.bytes());
    new (segment.data()) Shared{};
    auto* const ranks = reinterpret_cast<Rank*>(segment.data() + layout.ranks_at());
    for (int rank = 0; rank < size; ++rank) {
        new (ranks + rank) Rank{};
        ranks[rank].flags.epoch.store(first_epoch, std::memory_order_relaxed);
        ranks[rank].word.reached.store(first_epoch, std::memory_order_relaxed);
    }
    return segment;
}

Group::Group(int rank, std::vector<Member> members, Mapping segment, std::size_t slot_bytes, Settings settings)
    : rank_(rank),
      layout_{.size = static_cast<int>(members.size()), .slot_bytes = slot_bytes},
      segment_(std::move(segment)),
      watch_(std::move(members), rank),
      settings_(std::move(settings)),
      schedule_{.one_shot_bytes = 1 << 15, .chunk_bytes = slot_bytes},
      forks_(fork_count()),
      spin_for_(shortest_look) {
    if (rank < 0 || rank >= size()) {
        throw Error(Failure::config, "rank " + std::to_string(rank) + " in a group of " + std::to_string(size()));
    }
    if (segment_.bytes() != layout_.bytes()) {
        throw Error(Failure::config, "the group's memory has " + std::to_string(segment_.bytes()) + " bytes, not the " +
                                         std::to_string(layout_.bytes()) + " of " + std::to_string(size()) +
                                         " ranks; give every rank the same size and staging_bytes");
    }
}

Group::~Group() {
    close();
}

void Group::close() noexcept {
    // In a fork the flags and the lock are the parent's.
    if (forks_ != fork_count()) return;
    const std::lock_guard guard(mutex_);
    if (!closed_ && broken_.empty()) announce_end(State::left, "");
    closed_ = true;
    segment_.close_descriptor();
}

void Group::set_schedule(const Schedule& schedule) {
    const std::lock_guard guard(mutex_);
    schedule_ = schedule;
    schedule_.chunk_bytes = std::clamp(schedule.chunk_bytes / line_bytes * line_bytes, line_bytes, layout_.slot_bytes);
    schedule_.one_shot_bytes = std::min(schedule.one_shot_bytes, schedule_.chunk_bytes);
}

void Group::set_timeout(std::chrono::nanoseconds timeout) {
    const std::lock_guard guard(mutex_);
    settings_.timeout = timeout;
}

std::array<Metric, n_kinds> Group::metrics() {
    const std::lock_guard guard(mutex_);
    return metrics_;
}

std::uint64_t Group::n_in_place() {
    const std::lock_guard guard(mutex_);
    return n_in_place_;
}

std::string Group::broken() {
    const std::lock_guard guard(mutex_);
    return broken_;
}

std::vector<int> Group::lost() {
    const std::lock_guard guard(mutex_);
    std::vector<int> ranks;
    for (int rank = 0; rank < size(); ++rank) {
        if ((lost_ >> rank & 1) != 0) ranks.push_back(rank);
    }
    return ranks;
}

std::vector<int> Group::ended() {
    const std::lock_guard guard(mutex_);
    std::vector<int> ranks;
    for (int rank = 0; rank < size(); ++rank) {
        if (watch_.ended(rank)) ranks.push_back(rank);
    }
    return ranks;
}

bool Group::given_up_by(int rank) const noexcept {
    return of(rank).flags.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(State::gave_up);
}

Rank& Group::of(int rank) const noexcept {
    return reinterpret_cast<Rank*>(segment_.data() + layout_.ranks_at())[rank];
}

void Group::check_usable() const {
    if (forks_ != fork_count()) {
        throw Error(Failure::forked, "this group belongs to the process that made it; make one of the forked process's own");
    }
    if (closed_) throw Error(Failure::config, "the group is closed");
    if (!broken_.empty()) throw Error(Failure::peer_lost, broken_);
}

bool Group::begin(Kind kind, std::uint64_t hash, std::uint32_t shared) {
    announce(kind, hash, shared);
    return agreed();
}

void Group::announce(Kind kind, std::uint64_t hash, std::uint32_t shared) noexcept {
    // Calls of different kinds never match, whatever their hashes.
    hash = hash << 8 | static_cast<std::uint64_t>(kind) | 0x80;
    of(rank_).flags.call[++calls_ & 1].store(hash, std::memory_order_relaxed);
    of(rank_).flags.shared[calls_ & 1].store(shared, std::memory_order_relaxed);
    publish();
}

bool Group::agreed() {
    await_all();
    // A rank that takes part has opened the segment.
    if (calls_ == 1) segment_.close_descriptor();
    const auto call_of = [&](int rank) { return of(rank).flags.call[calls_ & 1].load(std::memory_order_relaxed); };
    for (int rank = 0; rank < size(); ++rank) {
        if (call_of(rank) != call_of(rank_)) return false;
    }
    return true;
}

void Group::publish() noexcept {
    Rank& own = of(rank_);
    // SYNC(collective-epoch): pairs with reached. Sequentially consistent with `sleep`: either this sees the waiting
    // rank, or that rank sees this.
    own.flags.epoch.store(++epoch_, std::memory_order_seq_cst);
    if (own.sleepers.count.load(std::memory_order_seq_cst) != 0) futex_wake_all(own.flags.epoch);
}

bool Group::reached(int rank) const noexcept {
    // SYNC(collective-epoch): pairs with publish. By difference, because the count wraps around.
    const std::uint32_t there = of(rank).flags.epoch.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(there - epoch_) >= 0;
}

void Group::await_all() {
    for (int rank = 0; rank < size(); ++rank) {
        if (rank != rank_ && !reached(rank)) await(rank);
    }
}

void Group::await(int rank) {
    const auto start = Clock::now();
    auto now = start;
    bool there = false;
    while (!there && now - start < spin_for_) {
        for (int spin = 0; spin < 16 && !there; ++spin) {
            pause();
            there = reached(rank);
        }
        now = Clock::now();
        // The awaited rank may need this core.
        if (!there && now - start > shortest_look) sched_yield();
    }
    if (!there) {
        sleep(rank);
        now = Clock::now();
    }
    const auto waited = now - start;
    waited_ += waited;
    // A rank that blocks is woken late, and delays others: if a longer spin would have avoided that, the next spin is
    // longer.
    spin_for_ = waited <= longest_look ? std::max<Clock::duration>(spin_for_, std::min<Clock::duration>(2 * waited, longest_look))
                                       : std::max<Clock::duration>(spin_for_ / 2, shortest_look);
}

void Group::sleep(int rank) {
    Rank& awaited = of(rank);
    const auto start = Clock::now();
    const auto deadline = start + settings_.timeout;
    auto asked = start;
    std::chrono::nanoseconds slice = first_slice;
    while (!reached(rank)) {
        awaited.sleepers.count.fetch_add(1, std::memory_order_seq_cst);
        const std::uint32_t seen = awaited.flags.epoch.load(std::memory_order_seq_cst);
        if (static_cast<std::int32_t>(seen - epoch_) < 0) futex_wait(awaited.flags.epoch, seen, slice);
        awaited.sleepers.count.fetch_sub(1, std::memory_order_seq_cst);
        if (reached(rank)) return;
        check_awaited();
        const auto now = Clock::now();
        if (now >= deadline) {
            std::uint64_t late = 0;
            std::string names;
            for (int other = 0; other < size(); ++other) {
                if (other == rank_ || reached(other)) continue;
                late |= std::uint64_t{1} << other;
                names += (names.empty() ? "" : ", ") + watch_.describe(other);
            }
            if (late == 0) continue;
            give_up_on(late, "waited " + seconds(settings_.timeout) + " for " + names);
        }
        if (now - asked >= interrupt_every) {
            call_interrupted();
            asked = now;
        }
        slice = std::min<std::chrono::nanoseconds>(slice * 2, std::min<std::chrono::nanoseconds>(longest_slice, deadline - now));
    }
}

void Group::check_awaited() {
    for (int rank = 0; rank < size(); ++rank) {
        if (rank == rank_ || reached(rank)) continue;
        const std::string why = departed(rank);
        // It may have arrived and then ended or left, as is right after the last call.
        if (why.empty() || reached(rank)) continue;
        give_up_on(given_up_by(rank) ? of(rank).notice.lost.load(std::memory_order_relaxed) : std::uint64_t{1} << rank, why);
    }
}

std::string Group::departed(int rank) const {
    const auto state = static_cast<State>(of(rank).flags.state.load(std::memory_order_acquire));
    // The state that it recorded before it ended tells more than its end.
    if (state == State::left) return watch_.describe(rank) + " has closed the group";
    if (state != State::working) return "rank " + std::to_string(rank) + " gave up: " + notice_of(rank);
    return watch_.ended(rank) ? watch_.describe(rank) + " has ended" : "";
}

std::string Group::notice_of(int rank) const {
    std::array<char, sizeof(Notice::text) + 1> text{};
    std::memcpy(text.data(), of(rank).notice.text.data(), sizeof(Notice::text));
    std::string notice = text.data();
    // Any bytes are possible here; they become a part of an error message.
    for (char& letter : notice) {
        if (letter < ' ' || letter > '~') letter = '?';
    }
    return notice;
}

void Group::give_up_on(std::uint64_t ranks, const std::string& why) {
    lost_ |= ranks;
    broken_ = why + "; the group of " + std::to_string(size()) + " is broken";
    announce_end(State::gave_up, why);
    throw Error(Failure::peer_lost, broken_);
}

void Group::give_up(const std::string& why) {
    const std::lock_guard guard(mutex_);
    check_usable();
    // What this rank has seen may follow from what another one did: the first reason is the cause.
    for (int rank = 0; rank < size(); ++rank) {
        if (rank != rank_ && given_up_by(rank)) give_up_on(of(rank).notice.lost.load(std::memory_order_relaxed), departed(rank));
    }
    broken_ = "this rank gave up: " + why;
    announce_end(State::gave_up, why);
}

void Group::announce_end(State state, const std::string& why) noexcept {
    mark(rank_, state, lost_, why);
    for (const auto& one : std::exchange(shared_, {})) {
        if (const auto shared = one.lock()) shared->forget();
    }
    // Ranks that wait for another rank may learn this only from this one.
    for (int rank = 0; rank < size(); ++rank) futex_wake_all(of(rank).flags.epoch);
}

void Group::end(const std::string& why) noexcept {
    if (forks_ != fork_count()) return;
    for (int rank = 0; rank < size(); ++rank) {
        if (rank != rank_) mark(rank, State::gave_up, 0, why);
    }
    for (int rank = 0; rank < size(); ++rank) futex_wake_all(of(rank).flags.epoch);
}

void Group::mark(int rank, State state, std::uint64_t lost, const std::string& why) noexcept {
    Rank& marked = of(rank);
    marked.notice.text = {};
    marked.notice.lost.store(lost, std::memory_order_relaxed);
    std::memcpy(marked.notice.text.data(), why.data(), std::min(why.size(), sizeof(Notice::text) - 1));
    marked.flags.state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
}

void Group::call_interrupted() {
    try {
        settings_.interrupted();
    } catch (...) {
        broken_ = "this rank was interrupted in the middle of a call";
        announce_end(State::gave_up, "interrupted");
        throw;
    }
}

}  // namespace softs::collective
