#include "point_to_point.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "error.hpp"
#include "futex.hpp"
#include "quiet_thread.hpp"

namespace softs::collective {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t most_bytes = 4 << 20;  // of all rings of a group
constexpr std::uint64_t most_message_bytes = std::uint64_t{1} << 40;
constexpr auto look_every = std::chrono::milliseconds(16);

// Rung by other ranks when they have written or read, and by this process.
struct alignas(line_bytes) Bell {
    std::atomic<std::uint32_t> rung;
};

struct Ring {
    struct alignas(line_bytes) Count {
        std::atomic<std::uint64_t> bytes;
    };
    Count written;
    Count read;
    // Then the bytes.
};

struct Head {
    std::uint64_t bytes;
    std::uint64_t tag;
};

std::size_t ring_bytes(int size) noexcept {
    const auto pairs = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
    return std::clamp<std::size_t>(std::bit_floor(most_bytes / pairs), 1 << 11, 1 << 16);
}

}  // namespace

struct PointToPoint::Post {
    bool is_send = false;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t tag = 0;
    Clock::time_point until;
    std::chrono::nanoseconds timeout{};
    std::shared_ptr<Outcome> outcome;
};

// What is under way with one rank.
struct Peer {
    std::string lost;  // why nothing can come or go any more
    // Out: of the first post, how much is written, its head included.
    std::size_t out_done = 0;
    // In: the message that is being read.
    Head head{};
    std::size_t head_done = 0;
    bool is_placed = false;  // whether it is known where it goes
    std::size_t in_done = 0;
    std::byte* target = nullptr;  // null: into `incoming`, which is kept then
    std::vector<std::byte> incoming;
    std::deque<std::pair<std::uint64_t, std::vector<std::byte>>> kept;  // C2
};

struct PointToPoint::State {
    State(std::shared_ptr<Group> of, Region shared)
        : group(std::move(of)),
          region(std::move(shared)),
          capacity(ring_bytes(group->size())),
          peers(static_cast<std::size_t>(group->size())) {}

    std::shared_ptr<Group> group;
    Region region;
    std::size_t capacity;
    std::vector<Peer> peers;

    std::mutex mutex;
    std::vector<std::pair<int, Post>> given;
    bool closed = false;
    std::thread thread;

    // Only of the thread.
    std::vector<std::deque<Post>> sends{peers.size()};
    std::vector<std::deque<Post>> receives{peers.size()};

    Bell& bell(int rank) const noexcept { return *reinterpret_cast<Bell*>(region.part(rank)); }
    Ring& ring(int from, int to) const noexcept {
        return *reinterpret_cast<Ring*>(region.part(from) + sizeof(Bell) + static_cast<std::size_t>(to) * (sizeof(Ring) + capacity));
    }
    std::byte* bytes_of(Ring& ring) const noexcept { return reinterpret_cast<std::byte*>(&ring + 1); }
    void ring_bell(int rank) const noexcept {
        bell(rank).rung.fetch_add(1, std::memory_order_seq_cst);
        futex_wake_all(bell(rank).rung);
    }

    void end(Post& post, std::exception_ptr error = nullptr) noexcept;
    bool write(int rank);
    bool read(int rank);
    bool begin_message(int rank);
    static bool is_under_way(const Peer& peer, const Post& post) noexcept {
        return peer.is_placed && peer.target != nullptr && peer.target == post.data && peer.head.tag == post.tag;
    }
    void serve_kept(int rank);
    void check(int rank, bool looks);
    void lose(int rank, const std::string& why);
    void copy_out(Ring& ring, std::uint64_t at, std::byte* to, std::size_t bytes) const noexcept;
    bool is_idle() const noexcept;
};

std::size_t PointToPoint::part_bytes(int size) noexcept {
    return sizeof(Bell) + static_cast<std::size_t>(size) * (sizeof(Ring) + ring_bytes(size));
}

PointToPoint::PointToPoint(std::shared_ptr<Group> group, Region region) : forks_(fork_count()) {
    if (region.bytes() < part_bytes(group->size()) || region.size() != group->size()) {
        throw Error(Failure::config, "the region belongs to another group");
    }
    state_ = std::make_shared<State>(std::move(group), std::move(region));
}

std::shared_ptr<const Outcome> PointToPoint::send(int rank, const std::byte* data, std::size_t bytes, std::uint32_t tag,
                                                  std::chrono::nanoseconds timeout) {
    return give(rank, {.is_send = true,
                       .data = const_cast<std::byte*>(data),
                       .bytes = bytes,
                       .tag = tag,
                       .until = Clock::now() + timeout,
                       .timeout = timeout,
                       .outcome = nullptr});
}

std::shared_ptr<const Outcome> PointToPoint::receive(int rank, std::byte* data, std::size_t bytes, std::uint32_t tag,
                                                     std::chrono::nanoseconds timeout) {
    return give(rank, {.is_send = false,
                       .data = data,
                       .bytes = bytes,
                       .tag = tag,
                       .until = Clock::now() + timeout,
                       .timeout = timeout,
                       .outcome = nullptr});
}

std::shared_ptr<const Outcome> PointToPoint::give(int rank, Post post) {
    State& state = *state_;
    if (forks_ != fork_count()) {
        throw Error(Failure::forked, "this group belongs to the process that made it; make one of the forked process's own");
    }
    if (rank < 0 || rank >= state.group->size() || rank == state.group->rank()) {
        throw Error(Failure::config,
                    "there is no other rank " + std::to_string(rank) + " in a group of " + std::to_string(state.group->size()));
    }
    post.outcome = std::make_shared<Outcome>();
    const std::shared_ptr<const Outcome> outcome = post.outcome;
    const std::lock_guard lock(state.mutex);
    if (state.closed) throw Error(Failure::config, "the group is closed");
    if (!state.thread.joinable()) {
        state.thread = thread_without_signals([held = state_] { work(*held); });
    }
    state.given.emplace_back(rank, std::move(post));
    state.ring_bell(state.group->rank());
    return outcome;
}

void PointToPoint::State::end(Post& post, std::exception_ptr error) noexcept {
    post.outcome->error_ = std::move(error);
    post.outcome->end();
}

void PointToPoint::State::copy_out(Ring& ring, std::uint64_t at, std::byte* to, std::size_t bytes) const noexcept {
    const std::size_t first = std::min(bytes, capacity - at % capacity);
    std::memcpy(to, bytes_of(ring) + at % capacity, first);
    std::memcpy(to + first, bytes_of(ring), bytes - first);
}

// Writes what fits into the ring of a rank; returns whether anything did.
bool PointToPoint::State::write(int rank) {
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    std::deque<Post>& posts = sends[static_cast<std::size_t>(rank)];
    Ring& there = ring(group->rank(), rank);
    bool moved = false;
    while (!posts.empty()) {
        Post& post = posts.front();
        const Head head{.bytes = post.bytes, .tag = post.tag};
        const std::uint64_t written = there.written.bytes.load(std::memory_order_relaxed);
        const std::uint64_t used = written - there.read.bytes.load(std::memory_order_acquire);
        std::size_t room = used <= capacity ? capacity - used : 0;
        std::uint64_t at = written;
        while (room != 0 && peer.out_done < sizeof head + post.bytes) {
            const bool in_head = peer.out_done < sizeof head;
            const std::byte* const from =
                in_head ? reinterpret_cast<const std::byte*>(&head) + peer.out_done : post.data + (peer.out_done - sizeof head);
            const std::size_t left = (in_head ? sizeof head : sizeof head + post.bytes) - peer.out_done;
            const std::size_t part = std::min({room, left, capacity - at % capacity});
            std::memcpy(bytes_of(there) + at % capacity, from, part);
            at += part;
            room -= part;
            peer.out_done += part;
        }
        if (at == written) break;
        there.written.bytes.store(at, std::memory_order_release);
        moved = true;
        if (peer.out_done < sizeof head + post.bytes) break;
        peer.out_done = 0;
        end(post);
        posts.pop_front();
    }
    if (moved) ring_bell(rank);
    return moved;
}

// Finds where a message goes once its head has been read. False: nothing waits for it, nor for a later one.
bool PointToPoint::State::begin_message(int rank) {
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    std::deque<Post>& posts = receives[static_cast<std::size_t>(rank)];
    if (posts.empty()) return false;
    const auto found = std::find_if(posts.begin(), posts.end(), [&](const Post& post) { return post.tag == peer.head.tag; });
    peer.in_done = 0;
    peer.target = found != posts.end() && found->bytes == peer.head.bytes ? found->data : nullptr;
    if (peer.target == nullptr) {
        if (peer.head.bytes > most_message_bytes) {
            lose(rank, group->describe(rank) + " sent a message of " + std::to_string(peer.head.bytes) + " bytes");
            return false;
        }
    }
    peer.is_placed = true;
    return true;
}

// Reads what is in the ring of a rank; returns whether anything was.
bool PointToPoint::State::read(int rank) {
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    std::deque<Post>& posts = receives[static_cast<std::size_t>(rank)];
    Ring& there = ring(rank, group->rank());
    bool moved = false;
    while (peer.lost.empty()) {
        std::uint64_t at = there.read.bytes.load(std::memory_order_relaxed);
        const std::uint64_t available = std::min<std::uint64_t>(there.written.bytes.load(std::memory_order_acquire) - at, capacity);
        if (peer.head_done < sizeof peer.head) {
            const std::size_t part = std::min<std::size_t>(available, sizeof peer.head - peer.head_done);
            if (part == 0 || posts.empty()) break;
            copy_out(there, at, reinterpret_cast<std::byte*>(&peer.head) + peer.head_done, part);
            peer.head_done += part;
            there.read.bytes.store(at + part, std::memory_order_release);
            moved = true;
            continue;
        }
        if (!peer.is_placed && !begin_message(rank)) break;
        const std::size_t part = std::min<std::size_t>(available, peer.head.bytes - peer.in_done);
        if (part == 0 && peer.in_done < peer.head.bytes) break;
        // Memory grows with what arrives, and not with what was announced (C3).
        if (peer.target == nullptr) peer.incoming.resize(peer.in_done + part);
        copy_out(there, at, (peer.target != nullptr ? peer.target : peer.incoming.data()) + peer.in_done, part);
        peer.in_done += part;
        there.read.bytes.store(at + part, std::memory_order_release);
        moved = moved || part != 0;
        if (peer.in_done < peer.head.bytes) continue;
        peer.head_done = 0;
        if (peer.target != nullptr) {
            const auto found = std::find_if(posts.begin(), posts.end(),
                                            [&](const Post& post) { return post.data == peer.target && post.tag == peer.head.tag; });
            end(*found);
            posts.erase(found);
            peer.is_placed = false;
        } else {
            peer.is_placed = false;
            peer.kept.emplace_back(peer.head.tag, std::move(peer.incoming));
            peer.incoming = {};
            serve_kept(rank);
        }
        moved = true;
    }
    if (moved) ring_bell(rank);
    return moved;
}

// Gives messages that are kept to those that wait for them.
void PointToPoint::State::serve_kept(int rank) {
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    std::deque<Post>& posts = receives[static_cast<std::size_t>(rank)];
    for (auto post = posts.begin(); post != posts.end();) {
        const auto found = std::find_if(peer.kept.begin(), peer.kept.end(), [&](const auto& one) { return one.first == post->tag; });
        if (is_under_way(peer, *post) || found == peer.kept.end()) {
            ++post;
            continue;
        }
        std::exception_ptr error;
        if (found->second.size() == post->bytes) {
            if (post->bytes != 0) std::memcpy(post->data, found->second.data(), post->bytes);
        } else {
            error = std::make_exception_ptr(Error(Failure::config, "rank " + std::to_string(rank) + " sent " +
                                                                       std::to_string(found->second.size()) + " bytes, and " +
                                                                       std::to_string(post->bytes) + " are received"));
        }
        peer.kept.erase(found);
        end(*post, error);
        post = posts.erase(post);
    }
}

void PointToPoint::State::lose(int rank, const std::string& why) {
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    if (peer.lost.empty()) peer.lost = why;
    const auto error = std::make_exception_ptr(Error(Failure::peer_lost, peer.lost));
    for (auto* posts : {&sends[static_cast<std::size_t>(rank)], &receives[static_cast<std::size_t>(rank)]}) {
        for (Post& post : *posts) end(post, error);
        posts->clear();
    }
}

// Ends what is too late, or waits for a rank that is gone.
void PointToPoint::State::check(int rank, bool looks) {
    std::deque<Post>& out = sends[static_cast<std::size_t>(rank)];
    std::deque<Post>& in = receives[static_cast<std::size_t>(rank)];
    if (out.empty() && in.empty()) return;
    if (!peers[static_cast<std::size_t>(rank)].lost.empty()) return lose(rank, "");
    if (!looks) return;
    // What has begun cannot be taken back, so nothing can follow it; what has not can.
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    const auto now = Clock::now();
    for (auto* posts : {&out, &in}) {
        for (auto post = posts->begin(); post != posts->end();) {
            if (now < post->until) {
                ++post;
                continue;
            }
            const std::string late = "Timed out: waited " +
                                     std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(post->timeout).count()) +
                                     " ms for " + group->describe(rank);
            if (post->is_send ? post == out.begin() && peer.out_done != 0 : is_under_way(peer, *post)) return lose(rank, late);
            end(*post, std::make_exception_ptr(Error(Failure::peer_lost, late)));
            post = posts->erase(post);
        }
    }
    const std::string why = group->departed(rank);
    if (why.empty() || read(rank)) return;
    lose(rank, why);
}

bool PointToPoint::State::is_idle() const noexcept {
    const auto empty = [](const auto& posts) { return posts.empty(); };
    return std::all_of(sends.begin(), sends.end(), empty) && std::all_of(receives.begin(), receives.end(), empty);
}

void PointToPoint::work(State& state) noexcept {
    const int own = state.group->rank();
    auto looked = Clock::now();
    while (true) {
        const std::uint32_t seen = state.bell(own).rung.load(std::memory_order_seq_cst);
        {
            const std::lock_guard lock(state.mutex);
            for (auto& [rank, post] : state.given) {
                const auto at = static_cast<std::size_t>(rank);
                (post.is_send ? state.sends : state.receives)[at].push_back(std::move(post));
            }
            state.given.clear();
            if (state.closed) {
                for (int rank = 0; rank < state.group->size(); ++rank) state.lose(rank, "the group is closed");
                return;
            }
        }
        const bool looks = Clock::now() - looked >= look_every;
        if (looks) looked = Clock::now();
        bool moved = false;
        for (int rank = 0; rank < state.group->size(); ++rank) {
            if (rank == own) continue;
            state.serve_kept(rank);
            moved = state.write(rank) || moved;
            moved = state.read(rank) || moved;
            state.check(rank, looks);
        }
        if (!moved) futex_wait(state.bell(own).rung, seen, state.is_idle() ? std::chrono::hours(1) : std::chrono::nanoseconds(look_every));
    }
}

void PointToPoint::close() noexcept {
    if (forks_ != fork_count()) return;
    std::thread thread;
    {
        const std::lock_guard lock(state_->mutex);
        state_->closed = true;
        thread = std::move(state_->thread);
    }
    state_->ring_bell(state_->group->rank());
    if (thread.joinable()) thread.join();
}

void PointToPoint::abandon() noexcept {
    if (forks_ != fork_count()) return;
    const std::lock_guard lock(state_->mutex);
    if (state_->thread.joinable()) state_->thread.detach();
}

}  // namespace softs::collective
