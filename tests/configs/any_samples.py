"""Configs and samples of any kind."""

import random

import numpy as np
import torch
from hypothesis import strategies as st

from softs_fast import BatchConfig, TensorSpec

NUMPY_DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
TORCH_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
XY = BatchConfig([TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (), "int64")])


def slots_of(n: int, slot_size: int) -> list[memoryview]:
    """Slots that lie end to end, as in a segment."""
    memory = memoryview(bytearray(b"\xee") * (n * slot_size))
    return [memory[i * slot_size : (i + 1) * slot_size] for i in range(n)]


def xy(number: float, n: int | None = None) -> dict[str, torch.Tensor]:
    rows = () if n is None else (n,)
    return {"x": torch.full((*rows, 2, 3), float(number)), "y": torch.full(rows, int(number))}


def random_tensor(spec: TensorSpec, seed: int, rows: tuple[int, ...] = ()) -> torch.Tensor:
    """Any bits that the dtype has."""
    shape = (*rows, *spec.shape)
    n_elements = int(np.prod(shape))
    random_bytes = random.Random(seed).randbytes(n_elements * max(spec.torch_dtype.itemsize, 1))
    if spec.dtype == "bool":
        random_bytes = bytes(byte & 1 for byte in random_bytes)
    bits = torch.tensor(list(random_bytes), dtype=torch.uint8)
    return (
        bits.view(spec.torch_dtype).reshape(shape)
        if n_elements
        else torch.empty(shape, dtype=spec.torch_dtype)
    )


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


def as_strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them."""
    wide = torch.zeros((*tensor.shape, 3), dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


@st.composite
def configs(draw: st.DrawFn) -> BatchConfig:
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    specs = draw(
        st.lists(st.tuples(shapes, st.sampled_from(NUMPY_DTYPES + TORCH_DTYPES)), min_size=1, max_size=5)
    )
    return BatchConfig([TensorSpec(f"t{i}", shape, dtype) for i, (shape, dtype) in enumerate(specs)])
