"""Blocks of int8: what torch would compute, within half a step, and nothing that a step cannot express."""

import math
import struct

import pytest
import torch

from softs_fast import ConfigError, TensorSpec, WireError
from softs_fast.codecs import Int8


def reference(values: torch.Tensor, block: int, scale_dtype: torch.dtype) -> torch.Tensor:
    """The definition, in float64."""
    decoded = []
    for part in values.double().flatten().split(block) if values.numel() else ():
        scale = (part.abs().max() / 127).to(scale_dtype).double()
        while scale * 127 < part.abs().max():
            scale = torch.nextafter(scale.to(scale_dtype), torch.tensor(math.inf, dtype=scale_dtype)).double()
        decoded.append((part / (scale if scale else 1)).round().clamp(-127, 127) * scale)
    return torch.cat(decoded).reshape(values.shape) if decoded else values.double()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scale", ["float32", "float16"])
def test_it_is_what_torch_would_compute(dtype: str, scale: str) -> None:
    for shape, block in [((0,), 8), ((1,), 8), ((3, 7), 8), ((64,), 64), ((5, 1000), 128), ((2, 9000), 4096)]:
        check(dtype, scale, shape, block)


def check(dtype: str, scale: str, shape: tuple[int, ...], block: int) -> None:
    generator = torch.Generator().manual_seed(block)
    values = torch.randn(shape, generator=generator).to(getattr(torch, dtype))
    spec = TensorSpec("x", shape, dtype, codec=Int8(block, scale))
    data = spec.encode(values)
    n = values.numel()
    assert len(data) == spec.nbytes == n + math.ceil(n / block) * (4 if scale == "float32" else 2)
    wanted = reference(values, block, getattr(torch, scale))
    decoded = spec.decode(data)
    assert decoded.dtype is values.dtype
    if n:
        step = values.float().abs().max() / 127
        # A quotient that is all but halfway may be rounded either way.
        differ = (decoded.double() - wanted).abs() > wanted.abs() * 2.0**-8 + 1e-6
        assert differ.sum() <= 1 + n // 1000
        assert (decoded.double() - wanted).abs().max() <= step * 1.01


@pytest.mark.parametrize(("scale", "slack"), [("float32", 2e-5), ("float16", 1.1e-3)])
def test_the_error_is_within_half_a_scale(scale: str, slack: float) -> None:
    values = (
        torch.randn(1000, 128, generator=torch.Generator().manual_seed(1))
        * 10.0 ** torch.arange(-3, 2).repeat(200)[:, None]
    )
    spec = TensorSpec("x", (1000, 128), "float32", codec=Int8(128, scale))
    error = (spec.decode(spec.encode(values)).double() - values.double()).abs().amax(1)
    half = values.double().abs().amax(1) / 127 / 2
    assert (error <= half * (1 + slack) + (2.0**-25 if scale == "float16" else 0)).all()
    assert (error / half).max() > 0.95


def test_small_and_large_numbers() -> None:
    spec = TensorSpec("x", (16,), "float32", codec="int8:8")
    for values in (
        torch.zeros(16),
        torch.full((16,), 1.4e-45),
        torch.full((16,), -3.4e38),
        torch.arange(16) * 1e-42,
    ):
        decoded = spec.decode(spec.encode(values))
        half = values.abs().max().double() / 127 / 2
        assert ((decoded.double() - values.double()).abs() <= half + 1e-45).all()
        assert torch.equal(decoded[values == 0], torch.zeros(int((values == 0).sum())))


def test_the_largest_of_a_block_is_exact_enough_to_stay_the_largest() -> None:
    values = torch.tensor([3.0, -1.0, 0.5, 2.0, 0, 0, 0, 0])
    spec = TensorSpec("x", (8,), "float32", codec="int8:8")
    assert spec.decode(spec.encode(values)).argmax() == 0
    assert spec.decode(spec.encode(values))[0] == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_a_scale_cannot_express_is_refused(bad: float) -> None:
    values = torch.zeros(5000)
    values[4321] = bad
    spec = TensorSpec("q", (5000,), "float32", codec="int8:64")
    with pytest.raises(
        ConfigError, match=r'tensor "q": element 4321 is (NaN|-?inf), which int8 cannot hold; clamp'
    ):
        spec.encode(values)
    with pytest.raises(
        ConfigError, match=r'tensor "q": element 8 is 9000000, too large for int8 with a float16 scale'
    ):
        TensorSpec("q", (20,), "float32", codec="int8:8:float16").encode(
            torch.full((20,), 9e6).index_fill(0, torch.arange(8), 0)
        )


@pytest.mark.parametrize("scale", [math.nan, math.inf, -0.5])
def test_scales_that_no_encoder_writes(scale: float) -> None:
    spec = TensorSpec("q", (100, 64), "float32", codec="int8:64")
    data = bytearray(spec.encode(torch.ones(100, 64)))
    struct.pack_into("=f", data, 77 * 68, scale)
    with pytest.raises(
        WireError, match=r'tensor "q": a sample cannot be decoded.*block at element 4928 has the scale'
    ):
        spec.decode(data)


def test_arguments() -> None:
    assert str(Int8(64)) == "int8:64"
    assert str(Int8(256, "float16")) == "int8:256:float16"
    for block in (7, 4097, -1, 1.5, True, "x"):
        with pytest.raises(ConfigError, match="int8: block must be a whole number from 8 to 4096"):
            Int8(block)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scale must be float32 or float16, got 'bfloat16'"):
        Int8(64, "bfloat16")
    for dtype in ("float64", "int32", "float8_e5m2"):
        with pytest.raises(ConfigError, match=f'tensor "x": int8 needs float32, .* have {dtype}'):
            TensorSpec("x", (8,), dtype, codec=Int8())
