// The part of CUDA's driver that csrc/cuda uses.
#pragma once

#include "cuda_runtime.h"

using CUstream = cudaStream_t;
using CUdeviceptr_v2 = unsigned long long;
using CUdevice_v1 = int;
using CUcontext = struct StandinContext*;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_INVALID_DEVICE = 101, CUDA_ERROR_NOT_SUPPORTED = 801 };
enum CUstreamWaitValue_flags { CU_STREAM_WAIT_VALUE_GEQ = 0 };
enum CUstreamWriteValue_flags { CU_STREAM_WRITE_VALUE_DEFAULT = 0 };
using PFN_cuStreamWaitValue32_v11070 = CUresult (*)(CUstream, CUdeviceptr_v2, std::uint32_t, unsigned);
using PFN_cuStreamWriteValue32_v11070 = CUresult (*)(CUstream, CUdeviceptr_v2, std::uint32_t, unsigned);
using PFN_cuInit_v2000 = CUresult (*)(unsigned);
using PFN_cuDeviceGet_v2000 = CUresult (*)(CUdevice_v1*, int);
using PFN_cuDevicePrimaryCtxRetain_v7000 = CUresult (*)(CUcontext*, CUdevice_v1);
using PFN_cuStreamGetCtx_v9020 = CUresult (*)(CUstream, CUcontext*);
using PFN_cuCtxGetCurrent_v4000 = CUresult (*)(CUcontext*);
using PFN_cuCtxPushCurrent_v4000 = CUresult (*)(CUcontext);
using PFN_cuCtxPopCurrent_v4000 = CUresult (*)(CUcontext*);
