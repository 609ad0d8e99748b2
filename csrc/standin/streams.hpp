// Streams: work in order, in one thread per stream.
#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace standin {

// Appends work to a stream; the default stream may execute it at once (cuda_runtime.h).
cudaError_t submit(cudaStream_t stream, std::function<void()> work);

// Returns once every stream of this process has done its work.
void synchronize_all();

// The device of a stream, that of this thread for stream 0.
int device_of(cudaStream_t stream);

// Sleeps for a random time, if the settings say so.
void delay();

}  // namespace standin
