"""Checks and conversion of tensors for the native side: contiguous, in host memory, of a supported dtype."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from softs_fast.collectives.strategy import ReduceOp
from softs_fast.errors import ConfigError

# Enumerators of csrc/cpu/reduce.hpp.
DTYPE_CODES = {
    torch.float64: 0,
    torch.float32: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int64: 4,
    torch.int32: 5,
    torch.int16: 6,
    torch.int8: 7,
    torch.uint8: 8,
    torch.bool: 9,
}
_OP_CODES = {ReduceOp.SUM: 0, ReduceOp.MEAN: 1, ReduceOp.MIN: 2, ReduceOp.MAX: 3}

# Tags have 56 bits: the native side keeps the rest of the word for the kind of the call.
_TAG_MASK = (1 << 56) - 1


def dtype_code(dtype: torch.dtype) -> int:
    """Return the native number of a dtype.

    Raises:
        ConfigError: it has none.
    """
    code = DTYPE_CODES.get(dtype)
    if code is None:
        known = ", ".join(name_of(known) for known in DTYPE_CODES)
        raise ConfigError(f"no collectives of {name_of(dtype)}; known are {known}")
    return code


def op_code(op: ReduceOp | str, dtype: torch.dtype) -> int:
    """Return the native number of an operation.

    Raises:
        ConfigError: it is unknown, or a mean of bool.
    """
    try:
        code = _OP_CODES[ReduceOp(op)]
    except ValueError:
        raise ConfigError(f'operation is "{op}"; known are {", ".join(ReduceOp)}') from None
    if dtype is torch.bool and code == _OP_CODES[ReduceOp.MEAN]:
        raise ConfigError("there is no mean of bool; use min (and) or max (or)")
    return code


def check_operand(tensor: torch.Tensor, op: ReduceOp | str | None = None) -> None:
    """Check a tensor for a collective operation, and the reduction, if there is one.

    Raises:
        ConfigError: the dtype or the operation is unknown, or the tensor is sparse.
    """
    dtype_code(tensor.dtype)
    is_plain(tensor)
    if op is not None:
        op_code(op, tensor.dtype)


def check_casts(tensor: torch.dtype, staged: torch.dtype, output: torch.dtype, op: ReduceOp | str) -> None:
    """Check that tensors of one dtype can be reduced as those of another, into a third.

    Raises:
        ConfigError: a dtype or the operation is unknown, or the kernels do not have the combination.
    """
    for dtype in (tensor, staged, output):
        dtype_code(dtype)
    op_code(op, staged)
    if staged is not tensor and not (staged.is_floating_point and tensor.is_floating_point):
        raise ConfigError(
            f"staged is {name_of(staged)} for {name_of(tensor)}; only floats travel as other floats"
        )
    if torch.bool in (staged, output) and staged is not output:
        raise ConfigError(
            f"no reduction of {name_of(staged)} to {name_of(output)}: bool goes with bool alone"
        )
    if staged.is_floating_point and not output.is_floating_point:
        raise ConfigError(f"no reduction of {name_of(staged)} to {name_of(output)}: floats go to floats")


def name_of(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def describe(tensor: torch.Tensor) -> str:
    """Return dtype and shape: "float32 [2, 3]"."""
    return f"{name_of(tensor.dtype)} {list(tensor.shape)}"


def shape_tag(tensor: torch.Tensor) -> int:
    """Return a hash of a shape, the same in every process."""
    return hash(tuple(tensor.shape)) & _TAG_MASK


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the native side can work on the tensor in place.

    Raises:
        ConfigError: it is sparse.
    """
    if tensor.layout is not torch.strided:
        raise ConfigError(f"collectives work on dense tensors; this one is {tensor.layout}: call to_dense()")
    return tensor.is_contiguous() and tensor.device.type == "cpu"


@contextmanager
def plain(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield the tensors as plain ones; those that are not are copied, and copied back at the end.

    Nothing is copied back if the block raises.

    Raises:
        ConfigError: one is sparse.
    """
    originals = list(tensors)
    lent = [tensor if is_plain(tensor) else tensor.detach().cpu().contiguous() for tensor in originals]
    yield lent
    with torch.no_grad():
        for original, copy in zip(originals, lent, strict=True):
            if copy is not original:
                original.copy_(copy)
