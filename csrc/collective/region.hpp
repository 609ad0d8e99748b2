// Memory that all ranks of a group have mapped: one part per rank, and one for a result that all may read.
#pragma once

#include <cstddef>
#include <memory>

#include "mapping.hpp"

namespace softs::collective {

class Region {
  public:
    static std::size_t stride(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096 + 4096 + 640; }
    static std::size_t total(std::size_t bytes, int size) { return stride(bytes) * (static_cast<std::size_t>(size) + 1); }

    Region(std::shared_ptr<Mapping> mapping, std::size_t bytes, int size) : mapping_(std::move(mapping)), bytes_(bytes), size_(size) {}

    std::byte* part(int rank) const noexcept { return mapping_->data() + stride(bytes_) * static_cast<std::size_t>(rank); }
    std::byte* result() const noexcept { return part(size_); }
    std::size_t bytes() const noexcept { return bytes_; }
    int size() const noexcept { return size_; }

  private:
    std::shared_ptr<Mapping> mapping_;
    std::size_t bytes_;
    int size_;
};

}  // namespace softs::collective
