// The part of CUDA's driver that csrc/cuda uses.
#pragma once

#include "cuda_runtime.h"

using CUstream = cudaStream_t;
using CUdeviceptr_v2 = unsigned long long;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NOT_SUPPORTED = 801 };
enum CUstreamWaitValue_flags { CU_STREAM_WAIT_VALUE_GEQ = 0 };
enum CUstreamWriteValue_flags { CU_STREAM_WRITE_VALUE_DEFAULT = 0 };
using PFN_cuStreamWaitValue32_v11070 = CUresult (*)(CUstream, CUdeviceptr_v2, std::uint32_t, unsigned);
using PFN_cuStreamWriteValue32_v11070 = CUresult (*)(CUstream, CUdeviceptr_v2, std::uint32_t, unsigned);
