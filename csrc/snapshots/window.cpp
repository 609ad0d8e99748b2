#include "window.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "collective/error.hpp"
#include "collective/process.hpp"
#include "cpu/copy.hpp"

namespace softs::snapshots {
namespace {

using collective::Error;
using collective::Failure;

std::int64_t now_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

Window::Window(std::size_t n_bytes, std::string_view manifest, const Digest& digest)
    : layout_{.n_bytes = n_bytes, .manifest_bytes = manifest.size()}, forks_(collective::fork_count()) {
    if (!layout_.is_possible()) {
        throw Error(Failure::config, "a window of " + std::to_string(n_bytes) + " bytes with a manifest of " +
                                         std::to_string(manifest.size()) + " is too large; at most " + std::to_string(max_tensor_bytes) +
                                         " and " + std::to_string(max_manifest_bytes) + " are possible");
    }
    const collective::Member self = collective::this_process();
    started_ = self.started;
    segment_ = std::make_shared<collective::Mapping>(collective::Mapping::create(layout_.bytes()));
    segment_->allocate(0, layout_.bytes());
    std::memcpy(segment_->data() + layout_.manifest_at(), manifest.data(), manifest.size());
    Header& header = (new (segment_->data()) Front{})->header;
    header.magic = magic;
    header.n_bytes = layout_.n_bytes;
    header.manifest_bytes = layout_.manifest_bytes;
    header.started = self.started;
    header.pid = self.pid;
    header.uid = geteuid();
    header.digest = digest;
    // SYNC(snapshot-made): pairs with View::View; the header and the manifest are complete.
    header.version.store(format_version, std::memory_order_release);
}

Window::~Window() {
    close();
}

void Window::begin() {
    const std::lock_guard guard(write_mutex_);
    const auto memory = segment();
    Half& half = front(*memory).halves[(version_ + 1) % 2];
    half.sequence.store(2 * (version_ + 1) - 1, std::memory_order_relaxed);
    // SYNC(snapshot-torn): pairs with View::is_unchanged. No byte of the new version becomes visible before the mark.
    // A release fence would do for plain stores; non-temporal ones, in `copy` and memcpy, pass it on x86.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    is_writing_ = true;
}

void Window::write(std::span<const Row> rows) {
    const std::lock_guard guard(write_mutex_);
    const auto memory = segment();
    if (!is_writing_) throw Error(Failure::config, "a window is written to before a version was begun");
    std::size_t total = 0;
    for (const Row& row : rows) {
        if (row.at > layout_.n_bytes || row.bytes > layout_.n_bytes - row.at) {
            throw Error(Failure::config, std::to_string(row.bytes) + " bytes at " + std::to_string(row.at) +
                                             " are outside of a window of " + std::to_string(layout_.n_bytes));
        }
        total += row.bytes;
    }
    std::byte* const data = memory->data() + layout_.data_at(version_ + 1);
    for (const Row& row : rows) copy(data + row.at, row.from, row.bytes, total >= stream_from_bytes);
}

std::uint64_t Window::commit(const Label& label, std::string_view config) {
    const std::lock_guard guard(write_mutex_);
    const auto memory = segment();
    if (!is_writing_) throw Error(Failure::config, "a version of a window is committed before it was begun");
    if (config.size() > max_config_bytes) {
        throw Error(Failure::config, "a config of " + std::to_string(config.size()) + " bytes is too long; at most " +
                                         std::to_string(max_config_bytes) + " are possible");
    }
    const std::uint64_t version = version_ + 1;
    Front& shared = front(*memory);
    Half& half = shared.halves[version % 2];
    half.label = label;
    half.label.published_ns = now_ns();
    half.label.config_bytes = static_cast<std::uint32_t>(config.size());
    std::memcpy(half.config.data(), config.data(), config.size());
    // Non-temporal stores are ordered before the word by this alone.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // SYNC(snapshot-sequence): pairs with View::begin; all bytes of the version are visible before its word.
    half.sequence.store(2 * version, std::memory_order_release);
    // SYNC(snapshot-latest): pairs with View::begin; its half is whole.
    shared.board.latest.store(version, std::memory_order_release);
    version_ = version;
    is_writing_ = false;
    return version;
}

void Window::ask(const View& wanted) {
    const auto memory = segment();
    const std::lock_guard guard(ask_mutex_);
    Asks& asks = front(*memory).asks;
    const std::uint64_t seen = wanted.front().board.latest.load(std::memory_order_acquire);
    const std::size_t count = asks.count.load(std::memory_order_relaxed);
    std::size_t at = 0;
    while (at < count && asks.entries[at].id.load(std::memory_order_relaxed) != wanted.id()) ++at;
    if (at == max_asks) at = next_ask_++ % max_asks;
    // A donor that reads between the two stores sees a version that it never had, or an ask that has been answered:
    // at worst it publishes once more.
    asks.entries[at].seen.store(seen, std::memory_order_relaxed);
    asks.entries[at].id.store(wanted.id(), std::memory_order_relaxed);
    // SYNC(snapshot-asked): pairs with Window::is_asked; the entry is complete.
    asks.count.store(std::max(count, at + 1), std::memory_order_release);
}

bool Window::is_asked(std::span<const std::shared_ptr<const View>> others) const {
    const auto memory = segment();
    const std::uint64_t id = memory->offer().nonce[0];
    const std::uint64_t latest = front(*memory).board.latest.load(std::memory_order_relaxed);
    for (const auto& other : others) {
        const Asks& asks = other->front().asks;
        // SYNC(snapshot-asked): pairs with Window::ask. P4: the count is checked.
        const std::size_t count = std::min<std::size_t>(asks.count.load(std::memory_order_acquire), max_asks);
        for (std::size_t i = 0; i < count; ++i) {
            const Ask& entry = asks.entries[i];
            // An ask is answered by any newer version, so nothing must be taken out of the table.
            if (entry.id.load(std::memory_order_relaxed) == id && entry.seen.load(std::memory_order_relaxed) == latest) return true;
        }
    }
    return false;
}

void Window::close() noexcept {
    // In a fork the segment is the parent's.
    if (forks_ != collective::fork_count()) return;
    const std::lock_guard guard(mutex_);
    if (!segment_) return;
    // SYNC(snapshot-closed): pairs with Remote::is_alive.
    front(*segment_).board.closed.store(1, std::memory_order_release);
    segment_->close_descriptor();
    segment_.reset();
}

Address Window::address() const {
    return {.started = started_, .offer = segment()->offer()};
}

std::shared_ptr<collective::Mapping> Window::segment() const {
    if (forks_ != collective::fork_count()) {
        throw Error(Failure::forked, "a window cannot be used in a fork of the process that made it; make one there");
    }
    const std::lock_guard guard(mutex_);
    if (!segment_) throw Error(Failure::config, "the window is closed");
    return segment_;
}

}  // namespace softs::snapshots
