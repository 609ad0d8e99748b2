#include <algorithm>

#include "pack.hpp"

namespace softs::cuda {

bool pack_supported(Dtype in, Dtype out) noexcept {
    return in == out || (in <= Dtype::bfloat16 && out <= Dtype::bfloat16);
}

std::string pack_problem(const std::vector<PackItem>& items, std::uint64_t slot_bytes) {
    struct Extent {
        std::uint64_t begin, end;
        std::size_t index;
    };
    std::vector<Extent> extents;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const PackItem& item = items[i];
        const std::string name = "item " + std::to_string(i);
        const std::uint64_t size = item_bytes(item.out);
        if (!pack_supported(item.in, item.out)) return name + " has a cast that there is not: need floats, or the same dtype on both sides";
        if (item.offset > slot_bytes || item.count > (slot_bytes - item.offset) / size) {
            return name + " leaves the slot: need " + std::to_string(item.count) + " x " + std::to_string(size) + " bytes at " +
                   std::to_string(item.offset) + ", have " + std::to_string(slot_bytes);
        }
        if (item.offset % size != 0 || reinterpret_cast<std::uintptr_t>(item.source) % item_bytes(item.in) != 0) {
            return name + " is not aligned to its items";
        }
        if (item.count > 0) extents.push_back({item.offset, item.offset + item.count * size, i});
    }
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < extents.size(); ++i) {
        if (extents[i].begin < extents[i - 1].end) {
            return "item " + std::to_string(extents[i].index) + " overlaps item " + std::to_string(extents[i - 1].index);
        }
    }
    return {};
}

}  // namespace softs::cuda
