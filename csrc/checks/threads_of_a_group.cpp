// Ranks of one group as threads of this process, so that ThreadSanitizer sees all accesses to what they share.
//
// Ranks of a real group map a segment at addresses of their own, which ThreadSanitizer takes for other memory.
// Compiled with -Dmmap=map_once -Dmunmap=unmap_once, all ranks here have each segment at one address.
//
// Each rank has two callers. Both make the same collectives, at once and through the queue, and each exchanges
// messages with its neighbours. Then all reduce a tensor in place, and one rank leaves while messages to it are
// pending. Before, groups of two and of three ranks make collectives of all kinds in changing order, which use the
// same memory in different ways. Prints "done", or what was wrong. ThreadSanitizer reports races itself, and sets the exit code.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "collective/call_queue.hpp"
#include "collective/error.hpp"
#include "collective/group.hpp"
#include "collective/point_to_point.hpp"
#include "cpu/reduce_sets.hpp"

#undef mmap
#undef munmap

namespace {

struct Mapped {
    std::pair<dev_t, ino_t> file;
    int n_users;
};

std::mutex maps_mutex;
std::map<void*, Mapped> maps;

}  // namespace

extern "C" void* mmap(void*, std::size_t, int, int, int, off_t) noexcept;
extern "C" int munmap(void*, std::size_t) noexcept;

extern "C" void* map_once(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
    struct stat found{};
    fstat(fd, &found);
    const std::lock_guard lock(maps_mutex);
    for (auto& [address, mapped] : maps) {
        if (mapped.file != std::pair(found.st_dev, found.st_ino)) continue;
        ++mapped.n_users;
        return address;
    }
    void* const address = mmap(at, bytes, protection, flags, fd, offset);
    if (address != MAP_FAILED) maps[address] = {.file = {found.st_dev, found.st_ino}, .n_users = 1};
    return address;
}

extern "C" int unmap_once(void* address, std::size_t bytes) noexcept {
    const std::lock_guard lock(maps_mutex);
    const auto mapped = maps.find(address);
    if (mapped == maps.end() || --mapped->second.n_users != 0) return 0;
    maps.erase(mapped);
    return munmap(address, bytes);
}

namespace softs {

// The loops without vector instructions, which ThreadSanitizer sees.
bool reduce_avx2(const ReduceArgs&) noexcept {
    return false;
}
bool reduce_avx512(const ReduceArgs&) noexcept {
    return false;
}

namespace collective {
namespace {

using namespace std::chrono_literals;

constexpr int n_ranks = 3;
constexpr int n_callers = 2;
constexpr int n_rounds = 60;
constexpr std::size_t slot_bytes = 8192;
// Several chunks; several times around a ring.
constexpr std::size_t n_floats = 10'000;
constexpr std::size_t most_message = 200'000;

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::_Exit(1);
}

// The text of the error of a call; empty if there is none.
std::string error_of(const Outcome& outcome) {
    check(outcome.wait(60s), "a call ends");
    try {
        check(outcome.differences().empty(), "all ranks make one call");
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

struct Meeting {
    explicit Meeting(int size) : size(size), made(size), left(size) {}

    const int size;
    std::optional<Offer> offer;
    std::barrier<> made;
    std::barrier<> left;
};

std::shared_ptr<Group> join(int rank, Meeting& meeting) {
    std::optional<Mapping> segment;
    if (rank == 0) {
        segment = Group::create_segment(meeting.size, slot_bytes);
        meeting.offer = segment->offer();
    }
    meeting.made.arrive_and_wait();
    if (rank != 0) segment = Mapping::open(*meeting.offer);
    const std::vector<Member> members(static_cast<std::size_t>(meeting.size), this_process());
    return std::make_shared<Group>(rank, members, std::move(*segment), slot_bytes, Settings{.timeout = 60s, .interrupted = [] {}});
}

// Collectives in an order, and of sizes, that all ranks draw alike; most fit into one chunk or a few.
void change_calls(int rank, Meeting& meeting) {
    const std::shared_ptr<Group> group = join(rank, meeting);
    const auto n = static_cast<std::size_t>(meeting.size);
    constexpr Reduction sum{.dtype = Dtype::float32, .op = Op::sum, .scale = 1.0};
    group->set_schedule({.one_shot_bytes = slot_bytes / 4, .chunk_bytes = slot_bytes / 2});
    std::minstd_rand drawn(1);
    for (int round = 0; round < 40 * n_rounds; ++round) {
        const auto kind = drawn() % 6;
        const std::size_t count = 1 + drawn() % (drawn() % 2 == 0 ? 100 : 5000);
        // What rank `from` has for rank `to`.
        const auto value = [&](std::size_t from, std::size_t to) {
            return static_cast<float>(round % 1000 + 10 * static_cast<int>(from) + static_cast<int>(to));
        };
        std::vector<float> in(n * count), out(n * count, -1.0F), want;
        const auto cut = [&](std::vector<float>& whole, std::size_t item) {
            std::vector<Piece> pieces;
            for (std::size_t to = 0; to < n; ++to)
                pieces.push_back({reinterpret_cast<std::byte*>(&whole[to * count]), count * sizeof(float) / item});
            return pieces;
        };
        const auto own = static_cast<std::size_t>(rank);
        for (std::size_t to = 0; to < n; ++to) std::fill_n(&in[to * count], count, value(own, to));
        const auto total = [&](std::size_t to) {
            float result = 0;
            for (std::size_t from = 0; from < n; ++from) result += value(from, to);
            return result;
        };
        bool agreed = false;
        if (kind == 0) {
            out = in;
            agreed = group->all_reduce(cut(out, sizeof(float)), sum, 0);
            for (std::size_t to = 0; to < n; ++to) want.insert(want.end(), count, total(to));
        } else if (kind == 1) {
            out.resize(count);
            agreed = group->reduce_scatter(cut(in, sizeof(float)), reinterpret_cast<std::byte*>(out.data()), sum, 0);
            want.assign(count, total(own));
        } else if (kind == 2) {
            agreed = group->all_gather(reinterpret_cast<const std::byte*>(in.data()), cut(out, 1), 0);
            for (std::size_t from = 0; from < n; ++from) want.insert(want.end(), count, value(from, 0));
        } else if (kind == 3) {
            agreed = group->all_to_all(cut(in, 1), cut(out, 1), 0);
            for (std::size_t from = 0; from < n; ++from) want.insert(want.end(), count, value(from, own));
        } else if (kind == 4) {
            const std::size_t root = static_cast<std::size_t>(round) % n;
            out = in;
            agreed = group->broadcast(reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(float), static_cast<int>(root), 0);
            for (std::size_t to = 0; to < n; ++to) want.insert(want.end(), count, value(root, to));
        } else {
            agreed = group->barrier(0);
            want = out;
        }
        check(agreed, "all ranks make one call");
        check(out == want, "the result of one of many calls");
    }
    meeting.left.arrive_and_wait();
}

void call(CallQueue& queue, bool at_once, std::vector<float>& tensor) {
    const CallQueue::Call call{
        .run =
            [&](Group& group) {
                const std::array pieces{Piece{.data = reinterpret_cast<std::byte*>(tensor.data()), .count = tensor.size()}};
                return group.all_reduce(pieces, {.dtype = Dtype::float32, .op = Op::sum, .scale = 1.0}, 0);
            },
        .described = [] { return std::string("all_reduce"); },
        .timeout = 60s};
    if (at_once) {
        if (const auto differences = queue.make(call)) {
            check(differences->empty(), "all ranks make one call");
            return;
        }
    }
    check(error_of(*queue.submit(call)).empty(), "a queued call ends well");
}

void run_caller(int rank, int caller, CallQueue& queue, PointToPoint& messages) {
    const auto tag = static_cast<std::uint32_t>(caller);
    const int to = (rank + 1) % n_ranks;
    const int from = (rank + n_ranks - 1) % n_ranks;
    for (int round = 0; round < n_rounds; ++round) {
        const std::size_t bytes = static_cast<std::size_t>(round * 7919 + caller * 104'729) % most_message;
        std::vector<std::byte> out(bytes, static_cast<std::byte>(rank + round));
        std::vector<std::byte> in(bytes);
        const auto sent = messages.send(to, out.data(), bytes, tag, 60s);
        std::vector<float> tensor(n_floats, static_cast<float>(rank + 1));
        call(queue, round % 2 == caller, tensor);
        for (const float value : tensor) check(value == 6.0F, "the sum over all ranks");
        const auto received = messages.receive(from, in.data(), bytes, tag, 60s);
        check(error_of(*received).empty() && error_of(*sent).empty(), "a message comes and goes");
        for (const std::byte byte : in) check(byte == static_cast<std::byte>(from + round), "what the neighbour sent");
    }
}

// A tensor that all ranks map after three calls.
void reduce_in_place(int rank, Group& group) {
    constexpr std::size_t bytes = n_floats * sizeof(float);
    const int fd = memfd_create("tensor", 0);
    check(ftruncate(fd, bytes) == 0, "memory of a tensor");
    auto* const floats = static_cast<float*>(map_once(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    auto* const data = reinterpret_cast<std::byte*>(floats);
    const auto shared = std::make_shared<SharedTensor>();
    for (int round = 0; round < n_rounds; ++round) {
        std::fill_n(floats, n_floats, static_cast<float>(rank + round));
        if (shared->seen()) shared->move(data, bytes, fd);
        const std::array pieces{Piece{.data = data, .count = n_floats}};
        check(group.all_reduce(pieces, {.dtype = Dtype::float32, .op = Op::sum, .scale = 1.0}, 0, true, shared.get()), "one call");
        for (std::size_t i = 0; i < n_floats; ++i) check(floats[i] == static_cast<float>(3 * round + 3), "the sum over all ranks");
    }
    check(group.n_in_place() == n_rounds - 3, "most calls are in place");
    group.barrier(0);
    unmap_once(floats, bytes);
    close(fd);
}

void run_rank(int rank, Meeting& meeting) {
    const std::shared_ptr<Group> group = join(rank, meeting);
    CallQueue queue(group);
    PointToPoint messages(group, *group->share(PointToPoint::part_bytes(n_ranks)));
    std::vector<std::thread> callers;
    for (int caller = 0; caller < n_callers; ++caller) {
        callers.emplace_back([&, caller] { run_caller(rank, caller, queue, messages); });
    }
    for (std::thread& caller : callers) caller.join();
    reduce_in_place(rank, *group);

    // The last rank leaves; messages to it and from it are pending.
    std::byte byte{};
    meeting.left.arrive_and_wait();
    if (rank == n_ranks - 1) {
        messages.close();
        queue.close();
        group->close();
        return;
    }
    check(error_of(*messages.receive(n_ranks - 1, &byte, 1, 9, 60s)).find("has closed the group") != std::string::npos,
          "a rank that leaves is named");
    const auto pending = messages.receive(1 - rank, &byte, 1, 9, 60s);
    messages.close();
    check(error_of(*pending).find("closed") != std::string::npos, "what is pending ends");
}

}  // namespace
}  // namespace collective
}  // namespace softs

int main() {
    using namespace softs::collective;
    const auto run = [](int size, void (*part)(int, Meeting&)) {
        Meeting meeting(size);
        std::vector<std::thread> ranks;
        for (int rank = 0; rank < size; ++rank) ranks.emplace_back([&meeting, part, rank] { part(rank, meeting); });
        for (std::thread& rank : ranks) rank.join();
    };
    run(2, change_calls);
    run(n_ranks, change_calls);
    run(n_ranks, run_rank);
    if (!maps.empty()) std::puts("memory is left");
    std::puts("done");
}
