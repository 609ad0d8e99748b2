// Makes a device the current one of this thread for a scope. Only for sources that are compiled with CUDA.
#pragma once

#include <cuda_runtime.h>

#include "check.hpp"

namespace softs::cuda {

class OnDevice {
  public:
    explicit OnDevice(int device) {
        SOFTS_CHECK(cudaGetDevice(&previous_));
        if (device != previous_) SOFTS_CHECK(cudaSetDevice(device));
        changed_ = device != previous_;
    }
    ~OnDevice() {
        if (changed_) (void)cudaSetDevice(previous_);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

  private:
    int previous_ = 0;
    bool changed_ = false;
};

}  // namespace softs::cuda
