// Functions of the driver that the stand-in has.
#pragma once

#include <cudaTypedefs.h>

namespace standin {

CUresult write_word(CUstream stream, CUdeviceptr_v2 address, std::uint32_t value, unsigned flags);
CUresult wait_for_word(CUstream stream, CUdeviceptr_v2 address, std::uint32_t value, unsigned flags);

CUresult initialize(unsigned flags);
CUresult get_device(CUdevice_v1* device, int ordinal);
CUresult retain_primary(CUcontext* context, CUdevice_v1 device);
CUresult context_of(CUstream stream, CUcontext* context);
CUresult get_current(CUcontext* context);
CUresult push_current(CUcontext context);
CUresult pop_current(CUcontext* context);

}  // namespace standin
