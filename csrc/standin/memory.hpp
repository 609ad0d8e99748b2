// Memory of the host that devices can use.
#pragma once

#include <cstddef>

namespace standin {

// Whether all of it was registered for use by devices.
bool is_mapped(const void* address, std::size_t bytes);

}  // namespace standin
