"""The kernel that packs tensors into a slot, beside what torch makes of them."""

from __future__ import annotations

import itertools

import pytest
import torch
from devices import to_device

from softs_fast import _kernels
from softs_fast.tensors import cuda

FLOATS = ["float64", "float32", "float16", "bfloat16"]
WHOLE = ["int64", "int32", "int16", "int8", "uint8", "bool"]
CASTS = [*itertools.product(FLOATS, FLOATS), *((dtype, dtype) for dtype in WHOLE)]


def values(dtype: str, count: int) -> torch.Tensor:
    """Any bits at all, half of them ordinary numbers."""
    kind = getattr(torch, dtype)
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (count * kind.itemsize,), dtype=torch.uint8)
    tensor = raw.view(kind)
    if kind.is_floating_point:
        tensor[::2] = torch.randn(len(tensor[::2])).to(kind)
    return to_device(tensor)


def cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    if str(tensor.dtype) == f"torch.{dtype}":
        return tensor
    result = tensor.float().to(getattr(torch, dtype))
    result[tensor.isnan()] = torch.nan
    return result


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 2047, 70_001])
def test_every_cast_at_every_alignment(count: int, shift: int) -> None:
    """More tensors than one launch takes, each `shift` items off its alignment on both sides."""
    tensors, rows, wanted, at = [], [], [], 0
    for in_dtype, out_dtype in CASTS * 3:
        tensor = values(in_dtype, count + shift)[shift:]
        out = cast(tensor, out_dtype)
        offset = (at + 63) // 64 * 64 + shift * out.itemsize
        at = offset + out.nbytes
        tensors.append(tensor)
        wanted.append((offset, out))
        rows.append((tensor.data_ptr(), count, in_dtype, offset, out_dtype))
    slot = to_device(torch.full((at + 64,), 0xA5, dtype=torch.uint8))
    expected = slot.clone()
    for offset, out in wanted:
        expected[offset : offset + out.nbytes] = out.contiguous().view(torch.uint8)
    stream = cuda.current_stream(0)
    _kernels.cuda_pack(rows, slot=slot.data_ptr(), slot_bytes=slot.nbytes, stream=stream)
    assert torch.equal(slot, expected)
