// Work in order, in a thread of its own.
#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace standin {

// Puts work at the end of a stream; stream 0 does it at once.
cudaError_t submit(cudaStream_t stream, std::function<void()> work);

// Returns once every stream of this process has done its work.
void synchronize_all();

// The device of a stream, that of this thread for stream 0.
int device_of(cudaStream_t stream);

// A random time, if the environment asks for it.
void delay();

}  // namespace standin
