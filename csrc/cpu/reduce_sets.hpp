// The implementations behind `reduce`, one per instruction set.
#pragma once

#include "reduce.hpp"

namespace softs {

// Supports every combination, and is the reference of the others.
void reduce_scalar(const ReduceArgs& args) noexcept;

// These leave rare combinations, such as integers with a scale, to the scalar one: they write nothing and return
// false.
bool reduce_avx2(const ReduceArgs& args) noexcept;
bool reduce_avx512(const ReduceArgs& args) noexcept;
bool reduce_neon(const ReduceArgs& args) noexcept;

}  // namespace softs
