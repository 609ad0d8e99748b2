#include "remote.hpp"

#include <unistd.h>

#include <cstring>
#include <vector>

#include "collective/error.hpp"

namespace softs::snapshots {
namespace {

using collective::Error;
using collective::Failure;

[[noreturn]] void refuse(int pid, const std::string& why) {
    throw Error(Failure::segment, "snapshot segment of process " + std::to_string(pid) + " is malformed: " + why);
}

collective::Mapping opened(const Address& address) {
    const Layout largest{.n_bytes = max_tensor_bytes, .manifest_bytes = max_manifest_bytes};
    if (address.offer.bytes < sizeof(Front) || address.offer.bytes > largest.bytes()) {
        refuse(address.offer.pid, "it would have " + std::to_string(address.offer.bytes) + " bytes; need " + std::to_string(sizeof(Front)) +
                                      " to " + std::to_string(largest.bytes()));
    }
    collective::Mapping mapping = collective::Mapping::open(address.offer, collective::Access::read_only);
    mapping.close_descriptor();
    return mapping;
}

}  // namespace

View::View(const Address& address) : mapping_(opened(address)) {
    const Header& header = front().header;
    const int pid = address.offer.pid;
    // SYNC(snapshot-made): pairs with Window::Window.
    const std::uint32_t version = header.version.load(std::memory_order_acquire);
    if (header.magic != magic) refuse(pid, "it has another magic number");
    if (version != format_version) {
        refuse(pid, "it has format " + std::to_string(version) + ", this process knows " + std::to_string(format_version));
    }
    if (header.uid != geteuid()) refuse(pid, "it says that it belongs to user " + std::to_string(header.uid));
    if (header.pid != pid || header.started != address.started) refuse(pid, "it says that it belongs to another process");
    layout_ = {.n_bytes = header.n_bytes, .manifest_bytes = header.manifest_bytes};
    if (!layout_.is_possible() || layout_.bytes() != mapping_.bytes()) {
        refuse(pid, "it has " + std::to_string(mapping_.bytes()) + " bytes, which does not fit tensors of " +
                        std::to_string(layout_.n_bytes) + " and a manifest of " + std::to_string(layout_.manifest_bytes));
    }
    digest_ = header.digest;
}

std::string_view View::manifest() const noexcept {
    return {reinterpret_cast<const char*>(mapping_.data() + layout_.manifest_at()), layout_.manifest_bytes};
}

std::optional<std::uint64_t> View::begin() const noexcept {
    // SYNC(snapshot-latest): pairs with Window::commit; the half of this version was whole.
    const std::uint64_t version = front().board.latest.load(std::memory_order_acquire);
    if (version == 0) return 0;
    // SYNC(snapshot-sequence): pairs with Window::commit. It is 2v only if all bytes of v are visible from here on
    // (P2), and another word if the owner is two versions further already.
    const std::uint64_t sequence = front().halves[version % 2].sequence.load(std::memory_order_acquire);
    if (sequence != 2 * version) return std::nullopt;
    return version;
}

bool View::is_unchanged(std::uint64_t version) const noexcept {
    // SYNC(snapshot-torn): pairs with the fence of Window::begin. If one byte that was read is of a later version, the
    // mark that precedes that byte is visible here. The fence keeps all loads of data before the load of the word.
    std::atomic_thread_fence(std::memory_order_acquire);
    return front().halves[version % 2].sequence.load(std::memory_order_relaxed) == 2 * version;
}

Seen View::label(std::uint64_t version) const {
    const Half& half = front().halves[version % 2];
    Seen seen{.version = version, .label = half.label, .config = {}};
    // P4: a length that does not fit is cut here, and refused where it is confirmed.
    seen.config.assign(half.config.data(), std::min<std::size_t>(seen.label.config_bytes, max_config_bytes));
    return seen;
}

Remote::Remote(const Address& address)
    : pid_(address.offer.pid),
      forks_(collective::fork_count()),
      view_(std::make_shared<const View>(address)),
      watch_(std::make_shared<const collective::Watch>(
          std::vector<collective::Member>{{.pid = address.offer.pid, .started = address.started}}, -1)) {}

std::shared_ptr<const View> Remote::view() const {
    if (forks_ != collective::fork_count()) {
        throw Error(Failure::forked, "a remote window cannot be used in a fork of the process that opened it; open it there");
    }
    const std::lock_guard guard(mutex_);
    if (!view_) throw Error(Failure::config, "the remote window of process " + std::to_string(pid_) + " is closed");
    return view_;
}

Seen Remote::header() const {
    const auto seen_from = view();
    // An owner overtakes this only by publishing twice meanwhile.
    constexpr int tries = 1000;
    for (int i = 0; i < tries; ++i) {
        const auto version = seen_from->begin();
        if (!version) continue;
        if (*version == 0) return {};
        Seen seen = seen_from->label(*version);
        if (!seen_from->is_unchanged(*version)) continue;
        if (seen.label.config_bytes > max_config_bytes) refuse(pid_, "a config has " + std::to_string(seen.label.config_bytes) + " bytes");
        return seen;
    }
    refuse(pid_, "the number of its newest version and the sequence word of that half never fit");
}

bool Remote::is_alive() const {
    const auto seen_from = view();
    std::shared_ptr<const collective::Watch> watch;
    {
        const std::lock_guard guard(mutex_);
        watch = watch_;
    }
    // SYNC(snapshot-closed): pairs with Window::close; what was published before it is visible.
    return watch && !watch->ended(0) && seen_from->front().board.closed.load(std::memory_order_acquire) == 0;
}

void Remote::close() noexcept {
    const std::lock_guard guard(mutex_);
    view_.reset();
    watch_.reset();
}

}  // namespace softs::snapshots
