// Makes a device the current one of this thread for a scope. Only for sources that are compiled with CUDA.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "device.hpp"

namespace softs::cuda {

// By contexts of the driver. `cudaSetDevice` would do for a thread that has a current device, but a thread of ours may
// have none, and to set "the one before" would make a context on device 0, of some 500 MB, in each process.
class OnDevice {
  public:
    explicit OnDevice(int device);
    // The device of a stream; for the default stream, the current one of this thread.
    explicit OnDevice(cudaStream_t stream);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

  private:
    bool pushed_ = false;
};

}  // namespace softs::cuda
