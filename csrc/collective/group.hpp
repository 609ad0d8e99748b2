// Processes of one host that do the same collective calls in the same order, over memory that all of them have mapped.
//
// Every wait has a deadline. A rank that is dead, stopped, late or gone gives the others an Error{peer_lost} that names it; the group is
// then broken for good, and `rebuild` makes a new one, in new memory, of those who are left.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "control.hpp"
#include "cpu/reduce.hpp"
#include "mapping.hpp"
#include "process.hpp"
#include "region.hpp"

namespace softs::collective {

enum class Kind : std::uint8_t { barrier, all_reduce, reduce_scatter, all_gather, broadcast, exchange, share };
constexpr std::size_t n_kinds = 7;

struct Metric {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;  // of the tensors, not of the traffic
    std::chrono::nanoseconds total{};
    std::chrono::nanoseconds waiting{};  // of it, for other ranks
};

// What all ranks must agree upon.
struct Settings {
    std::chrono::nanoseconds timeout{};
    // Called every now and then while waiting; throws to stop it (a signal).
    std::function<void()> interrupted;
};

// How a call is done; the same on every rank.
struct Schedule {
    std::size_t one_shot_bytes = 0;  // up to here every rank reduces everything: one wait instead of two
    std::size_t chunk_bytes = 0;     // more is done piece by piece, so that what is staged stays in the caches
};

// Elements that need not lie together: the pieces of one call are reduced as if they did.
struct Piece {
    std::byte* data;
    std::size_t count;
};

// What a reduction does, apart from where.
struct Reduction {
    Dtype dtype;
    Op op;
    double scale;
};

class Group {
  public:
    // The segment that rank 0 makes and offers. Throws Error{segment}, Error{config}.
    static Mapping create_segment(int size, std::size_t slot_bytes);

    // Joins. `segment` is that of rank 0, `members` are the processes of all ranks. Does not wait for anybody.
    Group(int rank, std::vector<Member> members, Mapping segment, std::size_t slot_bytes, Settings settings);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group();

    // All of these return false, having moved nothing, where the ranks are not doing the same (kind, tag, dtype, counts): false on every
    // rank, and the group goes on. They throw Error{peer_lost}, Error{config} after `close`, Error{forked}.
    // `tag` stands for whatever else must be the same.
    bool barrier(std::uint64_t tag);
    // In place, over all pieces.
    bool all_reduce(std::span<const Piece> pieces, const Reduction& reduction, std::uint64_t tag);
    // Rank r gets elements bounds[r] to bounds[r + 1] of the reduction of `in`.
    bool reduce_scatter(const std::byte* in, std::span<const std::size_t> bounds, std::byte* out, const Reduction& reduction,
                        std::uint64_t tag);
    // Rank r brings bytes bounds[r] to bounds[r + 1] of `out`; `in` may be where they go.
    bool all_gather(const std::byte* in, std::span<const std::size_t> bounds, std::byte* out, std::uint64_t tag);
    bool broadcast(std::byte* data, std::size_t bytes, int root, std::uint64_t tag);

    // What each rank says, cut off at `exchange_bytes`. Every rank must call it.
    std::vector<std::string> exchange(std::string_view said);
    static constexpr std::size_t exchange_bytes = 1 << 15;

    // Memory of all ranks together, `bytes` for each and as much for a result; nothing where the ranks ask for different amounts.
    std::optional<Region> share(std::size_t bytes);
    // Reduces `count` elements from `offset` of every rank's part, in place: into every part, or into the result only, there if
    // asked for past the caches.
    bool all_reduce(const Region& region, std::size_t offset, std::size_t count, bool into_result, bool stream, const Reduction& reduction,
                    std::uint64_t tag);

    // Tells the others, now, that this rank cannot go on.
    void give_up(const std::string& why);
    // A new group of those who are left and call this before the time is over; ranks keep their order.
    // Throws Error{peer_lost} if this rank came too late for the others.
    std::unique_ptr<Group> rebuild();

    void close() noexcept;
    bool closed() const noexcept { return closed_; }
    void set_schedule(const Schedule& schedule);
    const Schedule& schedule() const noexcept { return schedule_; }
    std::array<Metric, n_kinds> metrics();
    int rank() const noexcept { return rank_; }
    int size() const noexcept { return layout_.size; }
    std::size_t slot_bytes() const noexcept { return layout_.slot_bytes; }
    // Empty while the group works.
    std::string broken();
    // Ranks that this one had to give up.
    std::vector<int> lost();
    // Ranks whose processes have ended, whatever they did before.
    std::vector<int> ended();
    // A rank by number and process, with the state that the kernel knows.
    std::string describe(int rank) const { return watch_.describe(rank); }

  private:
    class Call;
    using Clock = std::chrono::steady_clock;

    Rank& of(int rank) const noexcept;
    std::byte* brought(int rank, std::uint32_t half) const noexcept { return segment_.data() + layout_.brought_at(rank, half); }
    std::byte* result(std::uint32_t half) const noexcept { return segment_.data() + layout_.result_at(half); }
    // The half that is written for the next epoch to be published.
    std::uint32_t next_half() const noexcept { return (epoch_ + 1) & 1; }

    void check_usable() const;
    bool begin(Kind kind, std::uint64_t hash);
    void publish() noexcept;
    void await_all();
    bool reached(int rank) const noexcept;
    void await(int rank);
    void sleep(int rank);
    void check_awaited();
    std::string notice_of(int rank) const;
    [[noreturn]] void give_up_on(std::uint64_t ranks, const std::string& why);
    void announce_end(State state, const std::string& why) noexcept;
    void call_interrupted();

    std::uint64_t await_survivors();
    void make_offer(const Offer& offer) noexcept;
    Offer offer_of(int rank) const noexcept;

    int rank_;
    Layout layout_;
    Mapping segment_;
    Watch watch_;
    Settings settings_;
    Schedule schedule_;
    std::mutex mutex_;  // held for the length of a call
    unsigned forks_;
    bool closed_ = false;
    std::string broken_;
    std::uint64_t lost_ = 0;
    std::uint32_t epoch_ = first_epoch;
    std::uint64_t calls_ = 0;
    std::array<Metric, n_kinds> metrics_{};
    std::chrono::nanoseconds waited_{};
    std::vector<std::byte> scratch_;  // small results for pieces that do not lie together
    Clock::duration look_for_;        // how long to look for an epoch before sleeping
};

}  // namespace softs::collective
