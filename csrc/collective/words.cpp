#include "words.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>

#include "error.hpp"

namespace softs::collective {
namespace {

constexpr int look_every = 50;  // ms
constexpr int forever = -1;

// By difference, because counts wrap around.
bool is_behind(std::uint32_t word, std::uint32_t wanted) {
    return static_cast<std::int32_t>(word - wanted) < 0;
}

}  // namespace

struct Words::Watchdog {
    explicit Watchdog(std::shared_ptr<Group> of) : group(std::move(of)), bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        if (bell < 0) throw Error(Failure::segment, std::string("cannot watch streams: ") + std::strerror(errno));
        // Signals are for the threads of the program.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            thread = std::thread([this] { run(); });
        } catch (const std::system_error& error) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            ::close(bell);
            throw Error(Failure::segment, std::string("cannot watch streams: ") + error.what());
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    ~Watchdog() {
        ended.store(true, std::memory_order_relaxed);
        ring();
        thread.join();
        ::close(bell);
    }

    void ring() const noexcept { (void)!eventfd_write(bell, 1); }

    // A rank of this process is not watched: its streams do not wait for it.
    bool is_other(int rank) const noexcept { return rank != group->rank(); }

    bool behind(int rank) const noexcept {
        // SYNC(collective-word): pairs with `raise`, and with the write of the rank's stream.
        const auto word = group->of(rank).word.reached.load(std::memory_order_acquire);
        return is_other(rank) && is_behind(word, wanted.load(std::memory_order_seq_cst));
    }
    bool any_behind() const noexcept {
        for (int rank = 0; rank < group->size(); ++rank) {
            if (behind(rank)) return true;
        }
        return false;
    }

    void raise(int rank) noexcept {
        raised.fetch_or(std::uint64_t{1} << rank, std::memory_order_relaxed);
        // W4: known before any stream goes on by it.
        group->of(group->rank()).drain.drained.store(1, std::memory_order_release);
        auto& word = group->of(rank).word.reached;
        auto known = word.load(std::memory_order_relaxed);
        const auto value = wanted.load(std::memory_order_seq_cst);
        // SYNC(collective-word): pairs with `behind`, and with the waits of streams. W5: never lowers it.
        while (is_behind(known, value) && !word.compare_exchange_weak(known, value, std::memory_order_release, std::memory_order_relaxed)) {
        }
    }

    // Raises what W3 says; whether it has to be done again.
    bool look() noexcept {
        bool broken = false;
        std::uint64_t dead = 0;
        for (int rank = 0; rank < group->size(); ++rank) {
            broken = broken || group->given_up_by(rank);
            if (is_other(rank) && group->watch().ended(rank)) dead |= std::uint64_t{1} << rank;
        }
        if (!broken && dead == 0) return false;
        group->of(group->rank()).drain.stop.store(1, std::memory_order_release);
        for (int rank = 0; rank < group->size(); ++rank) {
            if (behind(rank) && (broken || (dead >> rank & 1) != 0)) raise(rank);
        }
        return true;
    }

    void run() noexcept {
        pthread_setname_np(pthread_self(), "softs-words");
        std::array<pollfd, max_ranks + 1> entries;
        auto before = wanted.load(std::memory_order_seq_cst);
        while (!ended.load(std::memory_order_relaxed)) {
            const bool again = look();
            // Blocked only if nothing is wanted: a stream may wait for a rank that breaks the group without an end of
            // its process, which no descriptor tells. Sequentially consistent with `want`: either this sees the new
            // value, or `want` sees that this sleeps.
            sleeps.store(true, std::memory_order_seq_cst);
            const auto now = wanted.load(std::memory_order_seq_cst);
            const bool quiet = !again && now == before && !any_behind();
            if (!quiet) sleeps.store(false, std::memory_order_seq_cst);
            before = now;
            nfds_t n = 0;
            entries[n++] = {.fd = bell, .events = POLLIN, .revents = 0};
            for (int rank = 0; rank < group->size(); ++rank) {
                // The descriptor of a process that has ended stays readable.
                if (is_other(rank) && !group->watch().ended(rank)) {
                    entries[n++] = {.fd = group->watch().descriptor(rank), .events = POLLIN, .revents = 0};
                }
            }
            poll(entries.data(), n, quiet ? forever : look_every);
            sleeps.store(false, std::memory_order_seq_cst);
            eventfd_t rung = 0;
            (void)!eventfd_read(bell, &rung);
        }
    }

    const std::shared_ptr<Group> group;
    const int bell;
    std::atomic<std::uint32_t> wanted{first_epoch};
    std::atomic<std::uint64_t> raised{0};
    std::atomic<bool> sleeps{false};
    std::atomic<bool> ended{false};
    std::thread thread;
};

Words::Words(std::shared_ptr<Group> group)
    : group_(std::move(group)), watchdog_(std::make_unique<Watchdog>(group_)), forks_(fork_count()) {}

Words::~Words() {
    if (watchdog_ == nullptr) return;
    group_->close();
    (void)watchdog_.release();
}

std::uint32_t Words::own() const noexcept {
    return group_->of(group_->rank()).word.reached.load(std::memory_order_acquire);
}

void Words::set_own(std::uint32_t value) noexcept {
    group_->of(group_->rank()).word.reached.store(value, std::memory_order_release);
}

void Words::want(std::uint32_t value) noexcept {
    if (watchdog_ == nullptr) return;
    watchdog_->wanted.store(value, std::memory_order_seq_cst);
    if (watchdog_->sleeps.exchange(false, std::memory_order_seq_cst)) watchdog_->ring();
}

std::vector<int> Words::undone() const {
    std::vector<int> ranks;
    for (int rank = 0; watchdog_ != nullptr && rank < group_->size(); ++rank) {
        // Behind before raised: `raise` stores them in the opposite order, so a word that it is raising is in one of them.
        const bool behind = watchdog_->behind(rank);
        if (behind || (watchdog_->raised.load(std::memory_order_relaxed) >> rank & 1) != 0) ranks.push_back(rank);
    }
    return ranks;
}

bool Words::drained() const noexcept {
    for (int rank = 0; rank < group_->size(); ++rank) {
        if (group_->of(rank).drain.drained.load(std::memory_order_acquire) != 0) return true;
    }
    return false;
}

void Words::close() noexcept {
    // In a fork there is no such thread.
    if (forks_ != fork_count()) (void)watchdog_.release();
    watchdog_.reset();
}

}  // namespace softs::collective
