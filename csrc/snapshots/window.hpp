// The owner's side of a snapshot segment: it publishes versions of its tensors, and asks others for newer ones.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "collective/mapping.hpp"
#include "format.hpp"
#include "remote.hpp"

namespace softs::snapshots {

// Bytes of a tensor, and their place in a half.
struct Row {
    const std::byte* from;
    std::size_t at;
    std::size_t bytes;
};

class Window {
  public:
    // Makes the segment, and allocates all its memory. Throws Error{segment}, Error{config}.
    Window(std::size_t n_bytes, std::string_view manifest, const Digest& digest);
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    ~Window();

    // Publishes a version in steps, from any threads, one at a time; returns its number. A version that was begun and
    // not committed is replaced by the next one; readers never see it.
    // Throw Error{config} for rows outside of the half, a config that is too long, a step without `begin`, and after
    // `close`; Error{forked}.
    void begin();
    void write(std::span<const Row> rows);
    std::uint64_t commit(const Label& label, std::string_view config);

    // Says in this window that its owner wants a newer version of `wanted` than the newest.
    void ask(const View& wanted);

    // Whether one of `others` asks for a newer version than the newest of this window.
    bool is_asked(std::span<const std::shared_ptr<const View>> others) const;

    // Others cannot open it from now on; those that have keep what was published.
    void close() noexcept;

    Address address() const;

  private:
    // The segment, as long as it is open. Throws Error{config}, Error{forked}.
    std::shared_ptr<collective::Mapping> segment() const;
    static Front& front(const collective::Mapping& segment) noexcept { return *reinterpret_cast<Front*>(segment.data()); }

    Layout layout_;
    unsigned forks_;
    std::uint64_t started_ = 0;
    mutable std::mutex mutex_;  // guards `segment_`
    std::shared_ptr<collective::Mapping> segment_;
    std::mutex write_mutex_;  // one call of begin, write and commit at a time; guards the two below
    bool is_writing_ = false;
    std::uint64_t version_ = 0;  // newest that was committed
    std::mutex ask_mutex_;       // guards the entries of `Asks` and the one below
    std::size_t next_ask_ = 0;   // entry that is replaced next, once all are in use
};

}  // namespace softs::snapshots
