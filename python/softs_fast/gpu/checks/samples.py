"""Samples that hold their own number in every bit; the same in teachers and students."""

from __future__ import annotations

import torch

from softs_fast.configs import BatchConfig, TensorSpec

from .expect import expect

__all__ = ["CONFIGS", "EVERY", "LARGE", "UNALIGNED", "batch", "check", "sample"]

#: Of each kind one, at places of every alignment.
EVERY = BatchConfig(
    [
        TensorSpec("f64", (3,), "float64"),
        TensorSpec("i64", (), "int64"),
        TensorSpec("f32", (5, 7), "float32"),
        TensorSpec("i32", (2,), "int32"),
        TensorSpec("none", (0, 4), "float32"),
        TensorSpec("f16", (3, 11), "float16"),
        TensorSpec("bf16", (33,), "bfloat16"),
        TensorSpec("i16", (1,), "int16"),
        TensorSpec("i8", (9,), "int8"),
        TensorSpec("u8", (1000,), "uint8"),
        TensorSpec("flag", (5,), "bool"),
        TensorSpec("e4", (7,), "float8_e4m3fn"),
        TensorSpec("e5", (2, 3), "float8_e5m2"),
    ]
)
#: Odd lengths first, so that most of it is unaligned in its slot.
UNALIGNED = BatchConfig(
    [
        TensorSpec("tiny", (3,), "uint8"),
        TensorSpec("x", (6, 5), "float32"),
        TensorSpec("half", (7,), "bfloat16"),
        TensorSpec("y", (), "int64"),
    ]
)
#: One tensor of 1 MiB and its number.
LARGE = BatchConfig([TensorSpec("x", (512, 512), "float32"), TensorSpec("y", (), "int64")])
CONFIGS = {"every": EVERY, "unaligned": UNALIGNED, "large": LARGE}


def sample(config: BatchConfig, number: int, *, wide: bool = False) -> dict[str, torch.Tensor]:
    """Return the sample of that number; `wide`: floats in a dtype from which they are to be cast."""
    random = torch.Generator().manual_seed(number)
    tensors = {}
    for spec in config.specs:
        dtype = spec.torch_dtype
        if spec.name == "y":
            tensors["y"] = torch.tensor(number)
        elif dtype.is_floating_point and dtype.itemsize > 1:
            values = torch.randn(spec.shape, generator=random, dtype=torch.float64)
            tensors[spec.name] = values if wide else _narrowed(values, dtype)
        elif dtype == torch.bool:
            tensors[spec.name] = torch.rand(spec.shape, generator=random) < 0.5
        elif dtype.is_floating_point:
            tensors[spec.name] = torch.randn(spec.shape, generator=random).to(dtype)
        else:
            tensors[spec.name] = torch.randint(0, 100, spec.shape, generator=random).to(dtype)
    return tensors


def batch(config: BatchConfig, numbers: list[int], *, wide: bool = False) -> dict[str, torch.Tensor]:
    """Return the samples of these numbers, stacked."""
    samples = [sample(config, number, wide=wide) for number in numbers]
    return {
        spec.name: torch.stack([_bits(one[spec.name]) for one in samples]).view(samples[0][spec.name].dtype)
        for spec in config.specs
    }


def check(config: BatchConfig, got: dict[str, torch.Tensor], numbers: list[int]) -> None:
    """Raises CheckFailed if a batch is not that of these numbers, bit by bit."""
    wanted = batch(config, numbers)
    expect(list(got) == list(wanted), f"a batch of {list(got)}; need {list(wanted)}")
    for name, tensor in wanted.items():
        have, need = (f"{one.dtype} {list(one.shape)}" for one in (got[name], tensor))
        expect(have == need, f"{name} is {have}; need {need}")
        expect(
            torch.equal(_bits(got[name].cpu()), _bits(tensor)), f"{name} of samples {numbers} has other bits"
        )


def _narrowed(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what the kernel makes of them: to 16 bits by float32."""
    return (values.float() if dtype.itemsize == 2 else values).to(dtype)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of items that torch can stack and compare."""
    return tensor.contiguous().view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
