"""Checks and conversion of tensors for the native side: contiguous, in host memory, of a supported dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from torch.nn.parameter import is_lazy

from softs_fast.collectives.strategy import ReduceOp
from softs_fast.errors import ConfigError
from softs_fast.tensors import as_plain, local_tensor, mark_written

#: Enumerators of csrc/cpu/reduce.hpp, by dtype.
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

#: `exact_mean` of csrc/cpu/reduce.hpp, which is no operation of all strategies.
EXACT_MEAN = 4

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


def operand(
    tensor: torch.Tensor, op: ReduceOp | str | None = None, *, name: str = "tensor", written: bool = True
) -> torch.Tensor:
    """Return the local tensor of an argument of a collective operation.

    The version counter of one that is written moves here, before the call, as its contents are undefined after a failure.

    Args:
        tensor: the argument.
        op: the reduction; None if there is none.
        name: Name of the argument.
        written: whether the operation writes into it.

    Raises:
        ConfigError: the tensor has no memory in this process, its dtype or the operation is unknown.
    """
    local = local_tensor(name, tensor, kind="argument", dtypes=DTYPE_CODES, written=written)
    if op is not None:
        op_code(op, local.dtype)
    if written:
        mark_written([tensor])
    return local


class RefusedByAll:
    """Has all ranks raise if this one refuses its arguments inside, before anything has moved: they wait for it.

    Args:
        agree: Compares a text with those of the other ranks, and raises a ConfigError if they differ.
        call: Name of the call.
    """

    __slots__ = ("_agree", "_call")

    def __init__(self, agree: Callable[[str], object], call: str) -> None:
        self._agree = agree
        self._call = call

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Compare the error with what the other ranks do."""
        if isinstance(error, ConfigError):
            self._agree(f"{self._call}: {error}")


def check_parts(call: str, whole: torch.Tensor, part: torch.Tensor, size: int) -> None:
    """Raise ConfigError unless a tensor has the same dtype as another one, and one part of its size for each rank."""
    if part.dtype != whole.dtype or whole.numel() != size * part.numel():
        raise ConfigError(
            f"{call} between {describe(whole)} for all ranks and {describe(part)} for one among {size}: need the same "
            "dtype, and one part of equal size per rank"
        )


def check_root(root: int, size: int) -> None:
    """Raise ConfigError unless a rank is one of a group."""
    if not 0 <= root < size:
        raise ConfigError(f"root is {root} in a group of {size}")


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


def bytes_of(tensors: Iterable[object]) -> int:
    """Return the bytes of tensors; what is not one has none."""
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and not is_lazy(tensor)
    )


@functools.cache
def name_of(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def describe(tensor: torch.Tensor, part: str = "") -> str:
    """Return dtype and shape: "float32 [2, 3]".

    Args:
        tensor: a local tensor.
        part: Result of `shard_of` for the whole tensor.
    """
    return f"{name_of(tensor.dtype)} {list(tensor.shape)}" + (f", {part}" if part else "")


def shape_tag(tensor: torch.Tensor) -> int:
    """Return a hash of a shape, the same in every process."""
    return hash(tuple(tensor.shape)) & _TAG_MASK


@contextmanager
def plain(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield local tensors as plain ones; those that are not are copied, and copied back at the end.

    Nothing is copied back if the block raises.
    """
    originals = list(tensors)
    lent = [as_plain(tensor) for tensor in originals]
    yield lent
    with torch.no_grad():
        for original, copy in zip(originals, lent, strict=True):
            if copy is not original:
                original.copy_(copy)
