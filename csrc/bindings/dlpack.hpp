// The part of DLPack that is needed to export memory as a tensor.
//
// Source: the DLPack C ABI, version 0.8 (dlpack.h); a capsule named "dltensor" holds a DLManagedTensor until a
// consumer takes it.
#pragma once

#include <cstdint>

namespace softs::dlpack {

enum DeviceType : std::int32_t { cpu = 1, cuda = 2 };

struct Device {
    std::int32_t type;
    std::int32_t id;
};
struct DataType {
    std::uint8_t code;  // 0 int, 1 uint, 2 float, 4 bfloat, 6 bool
    std::uint8_t bits;
    std::uint16_t lanes;
};
struct Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in items
    std::uint64_t byte_offset;
};
struct ManagedTensor {
    Tensor tensor;
    void* context;
    void (*deleter)(ManagedTensor* self);
};

}  // namespace softs::dlpack
