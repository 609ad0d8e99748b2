// The kernels of this folder, all at once.
#include "device.hpp"
#include "on_device.hpp"
#include "pack.hpp"
#include "reduce.hpp"

namespace softs::cuda {

void load_kernels(int device) {
    const OnDevice here(device);
    load_pack();
    load_reduce();
    load_together();
}

}  // namespace softs::cuda
