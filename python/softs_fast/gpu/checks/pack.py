"""The kernel that packs tensors into a slot, beside what torch makes of them."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from softs_fast import _kernels
from softs_fast.tensors import cuda

from .expect import expect_bits
from .on_device import to_device, to_device_together

__all__ = ["COUNTS", "SHIFTS", "check", "check_casts"]

#: Items of each tensor.
COUNTS = (0, 1, 7, 8, 2047, 70_001)
#: Items by which a tensor is off its alignment.
SHIFTS = (0, 1, 3)
_FLOATS = ["float64", "float32", "float16", "bfloat16"]
_WHOLE = ["int64", "int32", "int16", "int8", "uint8", "bool"]
_CASTS = [*itertools.product(_FLOATS, _FLOATS), *((dtype, dtype) for dtype in _WHOLE)]


def check(quick: bool) -> dict[str, Any]:
    """Check all counts and shifts; `quick`: the largest count at one shift only."""
    for count, shift in itertools.product(COUNTS, SHIFTS):
        if not quick or count < COUNTS[-1] or shift == SHIFTS[-1]:
            check_casts(count, shift)
    return {"note": f"{len(_CASTS)} casts of up to {COUNTS[-1]} items, {len(SHIFTS)} alignments"}


def check_casts(count: int, shift: int) -> None:
    """Check each cast, of more tensors than one launch takes, `shift` items off its alignment on both sides.

    Raises:
        CheckFailed: a byte of the slot differs.
    """
    rows, wanted, at = [], [], 0
    casts = _CASTS * 3
    inputs = to_device_together({str(i): _values(one[0], count + shift) for i, one in enumerate(casts)})
    for (in_dtype, out_dtype), whole in zip(casts, inputs.values(), strict=True):
        tensor = whole[shift:]
        out = _cast(tensor, out_dtype)
        offset = (at + 63) // 64 * 64 + shift * out.itemsize
        at = offset + out.nbytes
        wanted.append((offset, out))
        rows.append((tensor.data_ptr(), count, in_dtype, offset, out_dtype))
    slot = to_device(torch.full((at + 64,), 0xA5, dtype=torch.uint8))
    expected = slot.clone()
    for offset, out in wanted:
        expected[offset : offset + out.nbytes] = out.contiguous().view(torch.uint8)
    stream = cuda.current_stream(0)
    _kernels.cuda_pack(rows, slot=slot.data_ptr(), slot_bytes=slot.nbytes, stream=stream)
    expect_bits(slot, expected.cpu(), f"the slot of tensors of {count} items, {shift} off their alignment")


def _values(dtype: str, count: int) -> torch.Tensor:
    """Return any bits at all, half of them ordinary numbers."""
    kind = getattr(torch, dtype)
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (count * kind.itemsize,), dtype=torch.uint8)
    tensor = raw.view(kind)
    if kind.is_floating_point:
        tensor[::2] = torch.randn(len(tensor[::2])).to(kind)
    return tensor


def _cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    if str(tensor.dtype) == f"torch.{dtype}":
        return tensor
    result = tensor.float().to(getattr(torch, dtype))
    result[tensor.isnan()] = torch.nan
    return result
