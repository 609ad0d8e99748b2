#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/launch.hpp"
#include "cuda/on_device.hpp"
#include "pack.hpp"

namespace softs::cuda {
namespace {

constexpr int table_items = 64;
constexpr std::uint32_t threads = 256;
constexpr std::uint32_t chunk_items = 8;                            // of one thread at a time: 16 bytes or more on each side
constexpr std::uint64_t tile_items = 4ull * threads * chunk_items;  // of one block

// A parameter of the launch, so that nothing has to be copied to the device first.
struct Table {
    PackItem items[table_items];
    std::uint32_t first_block[table_items + 1];
    int n;
};

// --- Casts. A dtype here is a type of its size; `Brain` is bfloat16. ---

struct Brain {
    std::uint16_t bits;
};

__device__ float widened(float value) {
    return value;
}
__device__ float widened(double value) {
    return __double2float_rn(value);
}
__device__ float widened(__half value) {
    return __half2float(value);
}
__device__ float widened(Brain value) {
    return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}

template <class Out>
__device__ Out narrowed(float value);
template <>
__device__ float narrowed<float>(float value) {
    return value == value ? value : __uint_as_float(0x7fc00000u);
}
template <>
__device__ double narrowed<double>(float value) {
    return static_cast<double>(narrowed<float>(value));
}
template <>
__device__ __half narrowed<__half>(float value) {
    return value == value ? __float2half_rn(value) : __ushort_as_half(0x7e00);
}
template <>
__device__ Brain narrowed<Brain>(float value) {
    const std::uint32_t bits = __float_as_uint(narrowed<float>(value));
    return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <class In, class Out>
__device__ Out cast(In value) {
    return narrowed<Out>(widened(value));
}

// --- Tiles ---

// `chunk_items` items, read and written 16 bytes at a time.
template <class T>
union Chunk {
    static constexpr int words = chunk_items * sizeof(T) / 16 > 0 ? chunk_items * sizeof(T) / 16 : 1;
    uint4 word[words];
    T item[words * 16 / sizeof(T)];
    __device__ Chunk() {}
};

// Shapes: `n` items from item `first` on, any alignment to items; whole 16-byte words where both sides are aligned to
// them. Writers: each thread its own items only. Source and slot do not overlap. A thread has four 16-byte loads under
// way before it stores, because a store between two loads would make the second one wait; for single bytes two, which
// is all that a tile has for it. Casts to float64 go chunk by chunk: their results would fill the registers.
template <class In, class Out, bool bitwise>
__device__ void tile(const PackItem& item, unsigned char* slot, std::uint64_t first, std::uint64_t n) {
    const In* __restrict__ from = static_cast<const In*>(item.source) + first;
    Out* __restrict__ to = reinterpret_cast<Out*>(slot + item.offset) + first;
    const auto value = [](const In& in) {
        if constexpr (bitwise) {
            return in;
        } else {
            return cast<In, Out>(in);
        }
    };
    constexpr std::uint64_t per_chunk = sizeof(In) == 1 ? 16 : chunk_items;
    constexpr std::uint64_t stride = threads * per_chunk;
    constexpr int words = Chunk<In>::words;
    constexpr int at_once = sizeof(In) == 1 ? 2 : (sizeof(Out) == 8 ? 1 : 4 / words);
    std::uint64_t done = 0;
    if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        const auto load = [&](Chunk<In>& in, std::uint64_t i) {
#pragma unroll
            for (int w = 0; w < words; ++w) in.word[w] = __ldcs(reinterpret_cast<const uint4*>(from + i) + w);
        };
        const auto store = [&](const Chunk<In>& in, std::uint64_t i) {
            Chunk<Out> out;
#pragma unroll
            for (std::uint64_t k = 0; k < per_chunk; ++k) out.item[k] = value(in.item[k]);
#pragma unroll
            for (int w = 0; w < Chunk<Out>::words; ++w) reinterpret_cast<uint4*>(to + i)[w] = out.word[w];
        };
        std::uint64_t i = threadIdx.x * per_chunk;
        for (; i + (at_once - 1) * stride + per_chunk <= n; i += at_once * stride) {
            Chunk<In> in[at_once];
#pragma unroll
            for (int c = 0; c < at_once; ++c) load(in[c], i + c * stride);
#pragma unroll
            for (int c = 0; c < at_once; ++c) store(in[c], i + c * stride);
        }
        for (; i + per_chunk <= n; i += stride) {
            Chunk<In> in;
            load(in, i);
            store(in, i);
        }
        done = n / per_chunk * per_chunk;
    }
    for (std::uint64_t i = done + threadIdx.x; i < n; i += threads) to[i] = value(from[i]);
}

template <class In>
__device__ void by_output(const PackItem& item, unsigned char* slot, std::uint64_t first, std::uint64_t n) {
    switch (item.out) {
        case Dtype::float64:
            return tile<In, double, false>(item, slot, first, n);
        case Dtype::float32:
            return tile<In, float, false>(item, slot, first, n);
        case Dtype::float16:
            return tile<In, __half, false>(item, slot, first, n);
        default:
            return tile<In, Brain, false>(item, slot, first, n);
    }
}

// One block per tile of one item.
__global__ void __launch_bounds__(threads, 4) pack_kernel(const __grid_constant__ Table table, unsigned char* slot) {
    int i = 0;
    while (table.first_block[i + 1] <= blockIdx.x) ++i;
    const PackItem& item = table.items[i];
    const std::uint64_t first = (blockIdx.x - table.first_block[i]) * tile_items;
    const std::uint64_t n = min(tile_items, item.count - first);
    if (item.in == item.out) {
        switch (item.in) {
            case Dtype::float64:
            case Dtype::int64:
                return tile<std::uint64_t, std::uint64_t, true>(item, slot, first, n);
            case Dtype::float32:
            case Dtype::int32:
                return tile<std::uint32_t, std::uint32_t, true>(item, slot, first, n);
            case Dtype::float16:
            case Dtype::bfloat16:
            case Dtype::int16:
                return tile<std::uint16_t, std::uint16_t, true>(item, slot, first, n);
            default:
                return tile<std::uint8_t, std::uint8_t, true>(item, slot, first, n);
        }
    }
    switch (item.in) {
        case Dtype::float64:
            return by_output<double>(item, slot, first, n);
        case Dtype::float32:
            return by_output<float>(item, slot, first, n);
        case Dtype::float16:
            return by_output<__half>(item, slot, first, n);
        default:
            return by_output<Brain>(item, slot, first, n);
    }
}

// --- Host code ---

}  // namespace

void load_pack() {
    load(pack_kernel);
}

void pack(const std::vector<PackItem>& items, void* slot, std::uint64_t stream) {
    const OnDevice of_stream(reinterpret_cast<cudaStream_t>(stream));
    cudaPointerAttributes attributes{};
    SOFTS_CHECK(cudaPointerGetAttributes(&attributes, slot));
    if (attributes.type != cudaMemoryTypeDevice) fail(cudaErrorInvalidDevicePointer, "pack");
    const OnDevice here(attributes.device);
    std::size_t next = 0;
    while (next < items.size()) {
        Table table{};
        for (; table.n < table_items && next < items.size(); ++next) {
            const std::uint64_t blocks = (items[next].count + tile_items - 1) / tile_items;
            if (blocks == 0) continue;
            table.items[table.n] = items[next];
            table.first_block[table.n + 1] = table.first_block[table.n] + static_cast<std::uint32_t>(blocks);
            ++table.n;
        }
        if (table.n == 0) break;
        SOFTS_LAUNCH(pack_kernel, table.first_block[table.n], threads, reinterpret_cast<cudaStream_t>(stream), table,
                     static_cast<unsigned char*>(slot));
        SOFTS_CHECK(cudaGetLastError());
    }
}

}  // namespace softs::cuda
