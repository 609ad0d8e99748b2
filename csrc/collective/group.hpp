// A group: processes of one host that make the same collective calls in the same order, over memory that all of them
// have mapped.
//
// Every wait has a deadline. A rank that is dead, stopped, late or has left causes an Error{peer_lost} on the others
// that names it; the group is then broken for good, and `rebuild` makes a new one, in new memory, of the remaining
// ranks.
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
#include <utility>
#include <vector>

#include "control.hpp"
#include "cpu/reduce.hpp"
#include "mapping.hpp"
#include "process.hpp"
#include "region.hpp"
#include "shared_tensor.hpp"

namespace softs::collective {

enum class Kind : std::uint8_t { barrier, all_reduce, reduce_scatter, all_gather, broadcast, exchange, share, all_to_all, scatter };
constexpr std::size_t n_kinds = 9;

struct Metric {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;  // of the tensors, not of the traffic
    std::chrono::nanoseconds total{};
    std::chrono::nanoseconds waiting{};  // part of it spent waiting for other ranks
};

// Settings that are the same on all ranks.
struct Settings {
    std::chrono::nanoseconds timeout{};
    // Called regularly during a wait; throws to interrupt it (a signal).
    std::function<void()> interrupted;
};

// How calls are executed; the same on every rank.
struct Schedule {
    std::size_t one_shot_bytes = 0;  // up to this size every rank reduces everything: one wait instead of two
    std::size_t chunk_bytes = 0;     // longer calls are done in chunks, so that staged data stays in the caches
};

// A part of the elements of a call; the pieces need not be contiguous.
struct Piece {
    std::byte* data;
    std::size_t count;
};

// A reduction without its addresses.
struct Reduction {
    Dtype dtype;
    Op op;
    double scale;
};

class Group {
  public:
    // The segment that rank 0 makes and offers. Throws Error{segment}, Error{config}.
    static Mapping create_segment(int size, std::size_t slot_bytes);

    // Joins. `segment` is that of rank 0, `members` are the processes of all ranks. Does not wait.
    Group(int rank, std::vector<Member> members, Mapping segment, std::size_t slot_bytes, Settings settings);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group();

    // All of these return false, without any transfer, where the ranks make different calls (kind, tag, dtype,
    // counts): false on every rank, and the group stays usable. They throw Error{peer_lost}, Error{config} after
    // `close`, Error{forked}. `tag` stands for everything else that must be the same.
    bool barrier(std::uint64_t tag);
    // In place, over all pieces. A rank that does not take the result keeps its pieces as they are. `shared` is what the
    // group knows of a single piece: it may have all ranks map that, and reduce it without staging.
    bool all_reduce(std::span<const Piece> pieces, const Reduction& reduction, std::uint64_t tag, bool takes = true,
                    SharedTensor* shared = nullptr);
    // Rank r gets the reduction of in[r] of all ranks, in `out`.
    bool reduce_scatter(std::span<const Piece> in, std::byte* out, const Reduction& reduction, std::uint64_t tag);
    // Below, pieces are in bytes.
    // out[r] gets what rank r provides; `in` may be the own one of these. One without memory is not taken.
    bool all_gather(const std::byte* in, std::span<const Piece> out, std::uint64_t tag);
    // `eager`: the root returns once the bytes are published, if they fit into one chunk. Its next call must be `confirm`.
    bool broadcast(std::byte* data, std::size_t bytes, int root, std::uint64_t tag, bool eager = false);
    // Ends an eager broadcast of this rank, if there is one: waits until all ranks have made their call.
    bool confirm();
    bool is_unconfirmed() const noexcept { return is_unconfirmed_; }
    // Rank r gets in[r] of the root; other ranks have no `in`.
    bool scatter(std::span<const Piece> in, const Piece& out, int root, std::uint64_t tag);
    // in[r] goes to rank r, and out[r] comes from it. False too where a rank sends another number of bytes than the other
    // one expects.
    bool all_to_all(std::span<const Piece> in, std::span<const Piece> out, std::uint64_t tag);

    // The text of each rank, truncated to `exchange_bytes`. Every rank must call it.
    std::vector<std::string> exchange(std::string_view said);
    static constexpr std::size_t exchange_bytes = 1 << 15;

    // Memory that all ranks share, `bytes` for each and as much for a result; nothing where the ranks request
    // different sizes.
    std::optional<Region> share(std::size_t bytes);
    // Reduces `count` elements from `offset` of every rank's part, in place: into every part, or into the result
    // only, there on request by non-temporal stores.
    bool all_reduce(const Region& region, std::size_t offset, std::size_t count, bool into_result, bool stream, const Reduction& reduction,
                    std::uint64_t tag);

    // Tells the others at once that this rank cannot continue; throws Error{peer_lost} if another one has said so before.
    void give_up(const std::string& why);
    // Marks all other ranks as ones that gave up, so that calls end on all ranks, be they pending or yet to come. From any
    // thread, beside a call of this rank: it takes no lock. No rank may need the group any more.
    void end(const std::string& why) noexcept;
    // A new group of the remaining ranks that call this before the time is over; ranks keep their order.
    // Throws Error{peer_lost} if this rank came too late for the others.
    std::unique_ptr<Group> rebuild();

    void close() noexcept;
    bool closed() const noexcept { return closed_; }
    void set_schedule(const Schedule& schedule);
    // How long the slowest rank is waited for, in each step of a call that is not running yet.
    void set_timeout(std::chrono::nanoseconds timeout);
    const Schedule& schedule() const noexcept { return schedule_; }
    std::array<Metric, n_kinds> metrics();
    // Reductions of tensors that all ranks have mapped.
    std::uint64_t n_in_place();
    int rank() const noexcept { return rank_; }
    int size() const noexcept { return layout_.size; }
    std::size_t slot_bytes() const noexcept { return layout_.slot_bytes; }
    // Empty while the group works.
    std::string broken();
    // Ranks that this one gave up.
    std::vector<int> lost();
    // Ranks with processes that have ended, whatever they did before.
    std::vector<int> ended();
    // A rank by number and process, with the state of the process.
    std::string describe(int rank) const { return watch_.describe(rank); }
    // The processes of all ranks, and their descriptors.
    const Watch& watch() const noexcept { return watch_; }
    // Why nothing comes from a rank any more; empty while it takes part. Also from a thread that is in no call.
    std::string departed(int rank) const;
    // Whether a rank has broken the group. Also from a thread that is in no call.
    bool given_up_by(int rank) const noexcept;
    // The lines of a rank; the collectives of this class use neither `word` nor `drain`.
    Rank& of(int rank) const noexcept;
    // The memory with the lines of all ranks: whole pages.
    std::span<std::byte> control() const noexcept { return {segment_.data(), layout_.staging_at()}; }

  private:
    class Call;
    using Clock = std::chrono::steady_clock;

    // Staging memory for an epoch: a rank's own; what it stages for all others; what one rank stages for another, in cells
    // of so many bytes. A core that has read lines of another one's cache has them, so what a rank writes next is where it
    // has read what that rank gave it: else each line would have to be fetched, or taken from the reader, before it is written.
    std::byte* area(int rank, std::uint32_t epoch) const noexcept { return segment_.data() + layout_.area_at(rank, epoch & 1); }
    std::byte* brought(int rank, std::uint32_t epoch) const noexcept {
        return size() == 2 ? given(rank, 1 - rank, epoch, 0) : area(rank, epoch);
    }
    std::byte* given(int from, int to, std::uint32_t epoch, std::size_t bytes) const noexcept {
        if ((epoch & 2) != 0) std::swap(from, to);
        return area(from, epoch) + static_cast<std::size_t>(to) * bytes;
    }
    std::uint32_t next_epoch() const noexcept { return epoch_ + 1; }

    void check_usable() const;
    void check_root(int root) const;
    bool begin(Kind kind, std::uint64_t hash, std::uint32_t shared = SharedTensor::staged);
    void announce(Kind kind, std::uint64_t hash, std::uint32_t shared = SharedTensor::staged) noexcept;
    bool agreed();
    void publish() noexcept;
    void await_all();
    bool reduce_agreed(std::span<const Piece> pieces, std::size_t count, const Reduction& reduction, std::uint64_t hash, bool takes,
                       SharedTensor* shared, std::uint32_t word);
    std::pair<std::uint32_t, std::uint32_t> shared_words() const noexcept;
    bool map_all(SharedTensor* shared, bool all_moved);
    void reduce_parts(std::span<std::byte* const> parts, std::byte* into, std::size_t count, const Reduction& reduction, bool stream);
    std::string failed_ranks(bool has_failed);
    bool reached(int rank) const noexcept;
    void await(int rank);
    void sleep(int rank);
    void check_awaited();
    std::string notice_of(int rank) const;
    [[noreturn]] void give_up_on(std::uint64_t ranks, const std::string& why);
    void announce_end(State state, const std::string& why) noexcept;
    void mark(int rank, State state, std::uint64_t lost, const std::string& why) noexcept;
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
    std::mutex mutex_;  // held during a call
    unsigned forks_;
    bool closed_ = false;
    std::string broken_;
    std::uint64_t lost_ = 0;
    std::uint32_t epoch_ = first_epoch;
    std::uint64_t calls_ = 0;
    std::uint32_t n_shared_ = 0;  // tensors that all ranks have mapped, ever
    std::vector<std::weak_ptr<SharedTensor>> shared_;
    std::uint64_t n_in_place_ = 0;
    bool is_unconfirmed_ = false;
    std::array<Metric, n_kinds> metrics_{};
    std::chrono::nanoseconds waited_{};
    std::vector<std::byte> scratch_;  // small results for pieces that are not contiguous
    Clock::duration spin_for_;        // how long to spin for an epoch before a wait
};

}  // namespace softs::collective
