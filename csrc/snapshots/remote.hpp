// The segment of another process, mapped for reading alone.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "collective/mapping.hpp"
#include "collective/process.hpp"
#include "format.hpp"

namespace softs::snapshots {

// Where a segment is, as its owner says it.
struct Address {
    std::uint64_t started = 0;  // of the owner's process
    collective::Offer offer;
};

// A version that was seen, with its label.
struct Seen {
    std::uint64_t version = 0;  // 0: none yet
    Label label;
    std::string config;
};

// A segment that is checked and mapped. Others keep it as long as they read it.
class View {
  public:
    // Throws Error{segment} where the segment cannot be opened, or is malformed.
    explicit View(const Address& address);

    const Front& front() const noexcept { return *reinterpret_cast<const Front*>(mapping_.data()); }
    const Layout& layout() const noexcept { return layout_; }
    const Digest& digest() const noexcept { return digest_; }
    std::uint64_t id() const noexcept { return mapping_.offer().nonce[0]; }
    std::string_view manifest() const noexcept;
    const std::byte* data(std::uint64_t version) const noexcept { return mapping_.data() + layout_.data_at(version); }

    // Rule P3. `begin` returns the newest version, 0 if there is none yet; nothing if the words do not fit, as when
    // the owner has gone on meanwhile. `is_unchanged` is asked after the last byte was read.
    std::optional<std::uint64_t> begin() const noexcept;
    bool is_unchanged(std::uint64_t version) const noexcept;

    // The label of a half, as it is now; confirmed by `is_unchanged` like its data.
    Seen label(std::uint64_t version) const;

  private:
    collective::Mapping mapping_;
    Layout layout_;
    Digest digest_{};
};

class Remote {
  public:
    explicit Remote(const Address& address);

    // The newest version. Throws Error{segment} where the words of the segment never fit, Error{config} after
    // `close`, Error{forked}.
    Seen header() const;

    // Whether a newer version may come: its process runs, and has not closed it.
    bool is_alive() const;

    void close() noexcept;

    // Throws Error{config} after `close`, Error{forked}.
    std::shared_ptr<const View> view() const;

    int pid() const noexcept { return pid_; }

  private:
    int pid_;
    unsigned forks_;
    mutable std::mutex mutex_;  // guards the two below
    std::shared_ptr<const View> view_;
    std::shared_ptr<const collective::Watch> watch_;
};

}  // namespace softs::snapshots
