"""The reductions in plain torch, one operation after the other, as docs/numerics.md states them."""

import torch

FLOATS = ["float64", "float32", "float16", "bfloat16"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8"]
DTYPES = [*FLOATS, *INTEGERS, "bool"]
OPS = ["sum", "mean", "min", "max", "exact_mean"]

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def supported(in_dtype: str, out_dtype: str, op: str) -> bool:
    """Whether there is such a reduction."""
    if "bool" in (in_dtype, out_dtype):
        return in_dtype == out_dtype and op not in ("mean", "exact_mean")
    return in_dtype in INTEGERS or out_dtype in FLOATS


def reduced(inputs: list[torch.Tensor], op: str, scale: float, out_dtype: str) -> torch.Tensor:
    """Reduce tensors [n] of one dtype."""
    out = getattr(torch, out_dtype)
    if inputs[0].dtype == torch.bool:
        bytes_ = torch.stack([tensor.view(torch.uint8) != 0 for tensor in inputs])
        return bytes_.all(0) if op == "min" else bytes_.any(0)
    if inputs[0].dtype.is_floating_point:
        is_wide = inputs[0].dtype == torch.float64 or (
            inputs[0].dtype == torch.float32 and op == "exact_mean"
        )
        acc = _folded(inputs, op, torch.float64 if is_wide else torch.float32)
        factor = scale / len(inputs) if op in ("mean", "exact_mean") else scale
        acc = acc * torch.tensor(factor, dtype=acc.dtype)
        return _narrowed(acc, out)
    acc = _folded(inputs, op, torch.int64)
    n = len(inputs) if op in ("mean", "exact_mean") else 1
    if out.is_floating_point:
        return _narrowed(acc.double() * scale / n, out)
    if scale == 1:
        return torch.div(acc, n, rounding_mode="trunc").to(out)
    value = (acc.double() * scale / n).trunc()
    whole = torch.where(value.abs() < 2.0**63, value, 0).long()
    whole[value >= 2.0**63] = 2**63 - 1
    whole[value <= -(2.0**63)] = -(2**63)
    return whole.to(out)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of a tensor as integers: NaN and the sign of zero count."""
    return tensor.contiguous().view(BITS[tensor.itemsize])


def _folded(inputs: list[torch.Tensor], op: str, dtype: torch.dtype) -> torch.Tensor:
    acc, *others = [tensor.to(dtype) for tensor in inputs]
    for other in others:
        if op == "min":
            acc = torch.where((other < acc) | (other != other), other, acc)
        elif op == "max":
            acc = torch.where((other > acc) | (other != other), other, acc)
        else:
            acc = acc + other
    return acc


def _narrowed(acc: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    if out in (torch.float16, torch.bfloat16):
        acc = acc.float()
    result = acc.to(out)
    result[acc.isnan()] = torch.nan
    return result
