#include "cpu/reduce_sets.hpp"

namespace softs {
bool reduce_avx2(const ReduceArgs&) noexcept { return false; }
}  // namespace softs
