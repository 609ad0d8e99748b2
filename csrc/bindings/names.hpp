// Dtypes and operations by their names in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "cpu/reduce.hpp"

namespace softs {

template <class T, std::size_t N>
T named(const std::array<std::pair<std::string_view, T>, N>& table, std::string_view what, std::string_view name) {
    for (const auto& [known, value] : table) {
        if (known == name) return value;
    }
    throw pybind11::value_error("unknown " + std::string(what) + " \"" + std::string(name) + '"');
}

inline constexpr std::array<std::pair<std::string_view, Dtype>, 10> dtypes{{
    {"float64", Dtype::float64},
    {"float32", Dtype::float32},
    {"float16", Dtype::float16},
    {"bfloat16", Dtype::bfloat16},
    {"int64", Dtype::int64},
    {"int32", Dtype::int32},
    {"int16", Dtype::int16},
    {"int8", Dtype::int8},
    {"uint8", Dtype::uint8},
    {"bool", Dtype::boolean},
}};

inline constexpr std::array<std::pair<std::string_view, Op>, 5> ops{{
    {"sum", Op::sum},
    {"mean", Op::mean},
    {"min", Op::min},
    {"max", Op::max},
    {"exact_mean", Op::exact_mean},
}};

}  // namespace softs
