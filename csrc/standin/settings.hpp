// Settings of the stand-in from the environment, read once.
#pragma once

#include "cuda_runtime.h"

namespace standin {

struct Settings {
    int devices;
    int delay_us;
    bool ipc;
    bool peers;
    bool false_peers;
    bool words;
    bool late_default;
};
const Settings& settings();

// The current device of this thread; 0 where it has none.
int current_device();

// Gives a thread without a context that of device 0, as all calls of CUDA do that need one.
void need_context();

// Sets the last error of this thread; returns it.
cudaError_t failed(cudaError_t error);

}  // namespace standin
