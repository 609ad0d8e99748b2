// A tensor of the caller that all ranks reduce in place, once each has mapped the memory of all.
//
// In each call with the tensor a rank says how far it is, by a word beside the hash of the call. All ranks have the words of
// all before anything is transferred, so all take the same step:
//
// | words of all ranks          | step                                                                  |
// |-----------------------------|-----------------------------------------------------------------------|
// | at least `wanted`           | each moves its memory to where others can open it, before a later call |
// | `moved`                     | each opens the memory of all; if one cannot, none tries again          |
// | the same number             | they reduce in place                                                  |
// | else                        | they stage                                                            |
//
// A rank that has its memory elsewhere than all others know (a tensor that was made anew, on this rank alone) ends that for
// good: each of them finds its own memory unknown to the other, and refuses from then on.
//
// M1: other ranks write to the memory of a rank between the agreement and the last epoch of a call alone. If the call fails
// there, a rank that was stopped may write later. So a rank of which a call has failed puts other memory with the same
// contents in the place of its own before the caller learns of the failure.
// M2: the descriptor and the mapping are the caller's (torch's). They are used while a call keeps the tensor alive, and
// only if the descriptor is still that of the file: the caller may have given the tensor other memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "mapping.hpp"

namespace softs::collective {

class SharedTensor : public std::enable_shared_from_this<SharedTensor> {
  public:
    enum Word : std::uint32_t { staged, wanted, moved, first_number };

    // Counts a call with the tensor; whether its memory shall be moved now, by `move` or `refuse`.
    bool seen() noexcept;
    // The tensor is in a mapping of whole pages of a file. Gives it memory of a file of its own, which takes nothing from
    // /dev/shm. No other thread may use the tensor. Throws Error{segment}; the tensor is as it was then.
    void move(std::byte* data, std::size_t bytes, int fd);
    // Ends it for good.
    void refuse() noexcept { word_.store(refused, std::memory_order_relaxed); }
    // In a fork: what it writes is its own from now on.
    void part_from_parent() noexcept;

    // The rest is for a call of the group, which one thread makes at a time.

    // What this rank says in a call with a tensor at `data`.
    std::uint32_t word(const std::byte* data, std::size_t bytes) noexcept;
    // By the words of all ranks: whether all want it moved, or one has other memory than the others know.
    void learn(std::uint32_t lowest, std::uint32_t highest) noexcept;
    Offer offer() const noexcept { return {.fd = fd_, .bytes = data_.size(), .nonce = file_}; }
    // Opens the memory of all ranks, in their order. Throws Error{segment}.
    void open(const std::vector<Offer>& offers, int own_rank);
    void set_number(std::uint32_t number) noexcept { word_.store(number, std::memory_order_relaxed); }
    std::span<std::byte* const> parts() const noexcept { return parts_; }
    // Releases the memory of other ranks, for good.
    void forget() noexcept;
    // As M1 says. False where there is no memory for that.
    bool withdraw() noexcept;

  private:
    static constexpr std::uint32_t refused = UINT32_MAX;
    static constexpr int seen_often = 3;  // the buckets of DistributedDataParallel are made anew after its first step

    bool is_there() const noexcept;

    std::atomic<std::uint32_t> word_{staged};
    std::atomic<bool> is_due_{false};
    int n_seen_ = 0;
    std::span<std::byte> data_;
    int fd_ = -1;
    std::array<std::uint64_t, 2> file_{};  // inode and device
    std::vector<Mapping> opened_;
    std::vector<std::byte*> parts_;
};

}  // namespace softs::collective
