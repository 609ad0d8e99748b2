// What the environment says of the devices that there are, read once.
#pragma once

#include "cuda_runtime.h"

namespace standin {

struct Settings {
    int devices;
    int delay_us;
    bool ipc;
    bool peers;
};
const Settings& settings();

// The device that is current in this thread.
int current_device();

// Remembers an error as the last one of this thread; returns it.
cudaError_t failed(cudaError_t error);

}  // namespace standin
