"""Floats stored in fewer bytes: bit by bit what torch makes of them, and as near as the dtype allows."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softs_fast import ConfigError, TensorSpec
from softs_fast.codecs import Cast

WIDE = ["float64", "float32", "float16", "bfloat16"]
NARROW = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
PAIRS = [
    (dtype, stored)
    for dtype in WIDE
    for stored in NARROW
    if getattr(torch, stored).itemsize < getattr(torch, dtype).itemsize
]
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    math.inf,
    -math.inf,
    math.nan,
    1e-45,
    -1e-40,
    6e-8,
    3e-8,
    2.0**-9,
    2.0**-10,
    2.0**-17,
]
SPECIAL += [448.0, 464.0, 465.0, 57344.0, 61440.0, 65504.0, 65519.0, 65520.0, -70000.0, 3.38e38, -3.4e38]


def reference(values: torch.Tensor, stored: str) -> torch.Tensor:
    """What torch makes of it, given that what is finite stays finite."""
    dtype = getattr(torch, stored)
    largest = torch.finfo(dtype).max
    finite = values.clamp(-largest, largest)
    if dtype != torch.float8_e4m3fn:
        finite = torch.where(values.isinf(), values, finite)
    return finite.to(dtype)


def bits(tensor: torch.Tensor) -> list[int]:
    """The bits of each element; all NaN are alike."""
    nan = tensor.isnan() if tensor.dtype.itemsize > 1 else tensor.float().isnan()
    whole: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return [
        -999 if is_nan else int(bit)
        for bit, is_nan in zip(
            tensor.contiguous().view(whole[tensor.dtype.itemsize]).flatten(), nan.flatten(), strict=True
        )
    ]


@pytest.mark.parametrize(("dtype", "stored"), PAIRS)
def test_bits_are_those_of_torch(dtype: str, stored: str) -> None:
    for n in (0, 1, 2, 7, 31, 64, 9000):
        check_bits(dtype, stored, n)


def check_bits(dtype: str, stored: str, n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    scales = 10.0 ** torch.randint(-9, 9, (n,), generator=generator)
    # From float32, as torch rounds twice on the way from float64.
    values = (torch.randn(n, generator=generator) * scales).to(getattr(torch, dtype))
    spec = TensorSpec("x", (n,), dtype, codec=Cast(stored))
    data = spec.encode(values)
    assert len(data) == spec.nbytes == n * getattr(torch, stored).itemsize
    wanted = reference(values, stored)
    decoded = spec.decode(data)
    assert decoded.dtype is values.dtype
    if n:
        assert bits(torch.frombuffer(bytearray(data), dtype=wanted.dtype)) == bits(wanted)
        assert bits(decoded) == bits(wanted.to(values.dtype))


@pytest.mark.parametrize(("dtype", "stored"), PAIRS)
def test_values_out_of_the_ordinary(dtype: str, stored: str) -> None:
    values = torch.tensor(SPECIAL, dtype=torch.float64).to(torch.float32).to(getattr(torch, dtype))
    spec = TensorSpec("x", values.shape, dtype, codec=f"cast:{stored}")
    decoded = spec.decode(spec.encode(values))
    assert bits(decoded) == bits(reference(values, stored).to(values.dtype))
    assert decoded.isfinite()[values.isfinite()].all(), "what is finite stays finite"
    assert decoded[values.isnan()].isnan().all()


@pytest.mark.parametrize(
    ("stored", "mantissa_bits", "denormal"),
    [
        ("bfloat16", 7, 0.0),
        ("float16", 10, 2.0**-24),
        ("float8_e4m3fn", 3, 2.0**-9),
        ("float8_e5m2", 2, 2.0**-16),
    ],
)
def test_the_error_is_within_its_bound(stored: str, mantissa_bits: int, denormal: float) -> None:
    values = torch.linspace(-440, 440, 100_001)
    spec = TensorSpec("x", values.shape, "float32", codec=f"cast:{stored}")
    error = (spec.decode(spec.encode(values)).double() - values.double()).abs()
    bound = torch.maximum(values.double().abs() * 2.0 ** -(mantissa_bits + 1), torch.tensor(denormal / 2))
    assert (error <= bound).all()
    # And no better than it must be: the bound is met.
    assert (error / bound.clamp(min=1e-30)).max() > 0.85


@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 3), st.booleans())
def test_shapes_and_strides(rows: int, columns: int, step: int, is_array: bool) -> None:
    wide = torch.arange(float(rows * columns * step)).reshape(columns, rows * step)
    values: Any = wide[:, ::step].t()
    spec = TensorSpec("x", (rows, columns), "float32", codec="cast:float16")
    given_values = values.numpy() if is_array else values
    decoded = spec.decode(spec.encode(torch.as_tensor(given_values)))
    assert torch.equal(decoded, values.half().float())


def test_a_tensor_that_is_cast_already() -> None:
    values = torch.randn(3, 4)
    for stored in ("bfloat16", "float8_e5m2"):
        spec = TensorSpec("x", (3, 4), "float32", codec=f"cast:{stored}")
        narrow = values.to(getattr(torch, stored))
        assert torch.equal(spec.decode(spec.encode(narrow)), narrow.float())
    spec = TensorSpec("x", (), "float32", codec="cast:float16")
    assert spec.decode(spec.encode(np.float16(0.1))) == np.float16(0.1)  # type: ignore[arg-type]
    assert spec.decode(spec.encode(0.25)) == 0.25  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    for dtype, stored in [
        ("float16", "bfloat16"),
        ("int32", "float16"),
        ("bool", "float8_e5m2"),
        ("float8_e5m2", "bfloat16"),
    ]:
        with pytest.raises(ConfigError, match=f'tensor "x": a cast cannot store {dtype} as {stored}'):
            TensorSpec("x", (1,), dtype, codec=Cast(stored))
    with pytest.raises(ConfigError, match=r"dtype must be one of bfloat16, .* got 'float32'"):
        Cast("float32")
    spec = TensorSpec("x", (2,), "float32", codec="cast:float16")
    with pytest.raises(ConfigError, match="Dtype mismatch"):
        spec.encode(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ConfigError, match="Shape mismatch"):
        spec.encode(torch.zeros(3))
    with pytest.raises(ConfigError, match="Data length 8 != expected 4"):
        spec.decode(bytes(8))
