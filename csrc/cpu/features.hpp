// What this processor and its operating system can run.
#pragma once

#include "reduce.hpp"

namespace softs {

// Whether code of this instruction set can run here; false for those of other processors.
bool runs_here(InstructionSet set) noexcept;

}  // namespace softs
