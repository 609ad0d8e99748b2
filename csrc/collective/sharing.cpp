// Shared regions of a group, and the group that replaces a broken one.
#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>

#include "call.hpp"
#include "error.hpp"

namespace softs::collective {
namespace {

using namespace std::chrono_literals;

// These waits are rare, so a long poll interval is enough.
constexpr auto look_every = 1ms;

}  // namespace

std::optional<Region> Group::share(std::size_t bytes) {
    const Call call(*this, Kind::share, bytes);
    const std::size_t total = Region::total(bytes, size());
    if (total / Region::stride(bytes) != static_cast<std::size_t>(size()) + 1 || total > std::size_t{1} << 46) {
        throw Error(Failure::config,
                    "a bucket of " + std::to_string(bytes) + " bytes for each of " + std::to_string(size()) + " ranks is too large");
    }
    if (!begin(Kind::share, bytes)) return std::nullopt;

    std::optional<Mapping> memory;
    std::string problem;
    const auto attempt = [&](auto&& part) {
        if (!problem.empty()) return;
        try {
            part();
        } catch (const Error& error) {
            problem = error.what();
        }
    };
    // Rank 0 makes it, all open it, each allocates its own part (near its own processor); then all know whether all
    // succeeded.
    if (rank_ == 0) {
        attempt([&] {
            memory = Mapping::create(total);
            make_offer(memory->offer());
        });
    }
    of(rank_).offering.failed.store(problem.empty() ? 0 : 1, std::memory_order_relaxed);
    publish();
    await_all();
    if (rank_ != 0) {
        attempt([&] {
            if (of(0).offering.failed.load(std::memory_order_relaxed) != 0) throw Error(Failure::segment, "rank 0 could not create it");
            Offer offer = offer_of(0);
            offer.bytes = total;
            memory = Mapping::open(offer);
        });
    }
    attempt([&] {
        memory->allocate(Region::stride(bytes) * static_cast<std::size_t>(rank_), Region::stride(bytes));
        if (rank_ == 0) memory->allocate(Region::stride(bytes) * static_cast<std::size_t>(size()), Region::stride(bytes));
    });
    if (const std::string failed = failed_ranks(!problem.empty()); !failed.empty()) {
        throw Error(Failure::segment, "no bucket of " + std::to_string(total) + " bytes: rank " + failed + " could not take its part" +
                                          (problem.empty() ? "" : "; here: " + problem));
    }
    memory->close_descriptor();
    return Region(std::make_shared<Mapping>(std::move(*memory)), bytes, size());
}

// The ranks of which a part of a call has failed; two epochs.
std::string Group::failed_ranks(bool has_failed) {
    of(rank_).offering.failed.store(has_failed ? 1 : 0, std::memory_order_relaxed);
    publish();
    await_all();
    std::string failed;
    for (int rank = 0; rank < size(); ++rank) {
        if (of(rank).offering.failed.load(std::memory_order_relaxed) != 0) failed += (failed.empty() ? "" : ", ") + std::to_string(rank);
    }
    // No rank writes its next result before all have read this one.
    publish();
    await_all();
    return failed;
}

// The lowest and the highest word of this call's tensor.
std::pair<std::uint32_t, std::uint32_t> Group::shared_words() const noexcept {
    std::pair<std::uint32_t, std::uint32_t> bounds{UINT32_MAX, 0};
    for (int rank = 0; rank < size(); ++rank) {
        const std::uint32_t word = of(rank).flags.shared[calls_ & 1].load(std::memory_order_relaxed);
        bounds = {std::min(bounds.first, word), std::max(bounds.second, word)};
    }
    return bounds;
}

// Has each rank open the memory of all, if all have moved theirs; whether all ranks have done so. Two epochs, always.
bool Group::map_all(SharedTensor* shared, bool all_moved) {
    bool has_failed = !all_moved;
    if (all_moved) {
        try {
            std::vector<Offer> offers;
            for (int rank = 0; rank < size(); ++rank) {
                offers.push_back(offer_of(rank));
                offers.back().bytes = shared->offer().bytes;
            }
            shared->open(offers, rank_);
        } catch (const std::exception&) {
            has_failed = true;
        }
    }
    const bool is_mapped = failed_ranks(has_failed).empty();
    if (is_mapped) {
        shared->set_number(SharedTensor::first_number + n_shared_++);
        std::erase_if(shared_, [](const auto& one) { return one.expired(); });
        shared_.push_back(shared->weak_from_this());
    } else if (all_moved) {
        shared->forget();
    }
    return is_mapped;
}

void Group::make_offer(const Offer& offer) noexcept {
    Offering& own = of(rank_).offering;
    own.fd.store(static_cast<std::uint32_t>(offer.fd), std::memory_order_relaxed);
    own.nonce[0].store(offer.nonce[0], std::memory_order_relaxed);
    own.nonce[1].store(offer.nonce[1], std::memory_order_relaxed);
}

Offer Group::offer_of(int rank) const noexcept {
    const Offering& theirs = of(rank).offering;
    // The process is known; only the descriptor in it comes from memory of other ranks.
    return {.pid = watch_.members()[static_cast<std::size_t>(rank)].pid,
            .fd = static_cast<std::int32_t>(theirs.fd.load(std::memory_order_relaxed)),
            .nonce = {theirs.nonce[0].load(std::memory_order_relaxed), theirs.nonce[1].load(std::memory_order_relaxed)}};
}

std::uint64_t Group::await_survivors() {
    std::atomic<std::uint64_t>& decided = reinterpret_cast<Shared*>(segment_.data())->survivors;
    const auto deadline = Clock::now() + settings_.timeout;
    of(rank_).offering.rejoin.store(1, std::memory_order_release);
    while (decided.load(std::memory_order_acquire) == 0) {
        std::uint64_t here = 0;
        bool complete = true;
        for (int rank = 0; rank < size(); ++rank) {
            const bool rejoins = of(rank).offering.rejoin.load(std::memory_order_acquire) == 1;
            const bool left = of(rank).flags.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(State::left);
            if (rank != rank_ && (watch_.ended(rank) || left)) continue;
            if (rejoins) here |= std::uint64_t{1} << rank;
            complete = complete && rejoins;
        }
        if (complete || Clock::now() >= deadline) {
            // The first decision counts for all.
            std::uint64_t undecided = 0;
            decided.compare_exchange_strong(undecided, here, std::memory_order_acq_rel);
            break;
        }
        settings_.interrupted();
        std::this_thread::sleep_for(look_every);
    }
    const std::uint64_t all = size() == max_ranks ? ~std::uint64_t{0} : (std::uint64_t{1} << size()) - 1;
    return decided.load(std::memory_order_acquire) & all;
}

std::unique_ptr<Group> Group::rebuild() {
    const std::lock_guard guard(mutex_);
    if (closed_ || forks_ != fork_count()) check_usable();
    if (broken_.empty()) {
        broken_ = "this rank rebuilds its group";
        announce_end(State::gave_up, "it rebuilds the group");
    }
    const std::uint64_t survivors = await_survivors();
    if ((survivors >> rank_ & 1) == 0) {
        throw Error(Failure::peer_lost,
                    "the others rebuilt the group without rank " + std::to_string(rank_) + ", which came too late; start a new group");
    }
    std::vector<Member> members;
    for (int rank = 0; rank < size(); ++rank) {
        if ((survivors >> rank & 1) != 0) members.push_back(watch_.members()[static_cast<std::size_t>(rank)]);
    }
    const int first = std::countr_zero(survivors);
    const int new_rank = std::popcount(survivors & ((std::uint64_t{1} << rank_) - 1));
    const int new_size = static_cast<int>(members.size());
    if (rank_ == first) {
        Mapping memory = create_segment(new_size, slot_bytes());
        make_offer(memory.offer());
        of(rank_).offering.ready.store(1, std::memory_order_release);
        auto group = std::make_unique<Group>(new_rank, std::move(members), std::move(memory), slot_bytes(), settings_);
        group->set_schedule(schedule_);
        return group;
    }
    const auto deadline = Clock::now() + settings_.timeout;
    while (of(first).offering.ready.load(std::memory_order_acquire) == 0) {
        if (watch_.ended(first) || Clock::now() >= deadline) {
            throw Error(Failure::peer_lost, watch_.describe(first) + " did not make the new group; start one by a rendezvous");
        }
        settings_.interrupted();
        std::this_thread::sleep_for(look_every);
    }
    Offer offer = offer_of(first);
    offer.bytes = Layout{.size = new_size, .slot_bytes = slot_bytes()}.bytes();
    auto group = std::make_unique<Group>(new_rank, std::move(members), Mapping::open(offer), slot_bytes(), settings_);
    group->set_schedule(schedule_);
    return group;
}

}  // namespace softs::collective
