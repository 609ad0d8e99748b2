"""Tensors as the native side takes them: addresses of dense memory, and what has to be copied back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from softs_fast.collectives.tensors import DTYPE_CODES, name_of
from softs_fast.errors import ConfigError
from softs_fast.tensors import as_plain

_Op = dist.ReduceOp
_OPS: dict[object, int] = {_Op.SUM: 0, _Op.AVG: 1, _Op.MIN: 2, _Op.MAX: 3}
# Operations without a kernel: every rank gathers the tensors of all.
_GATHERED: dict[object, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    _Op.PRODUCT: torch.mul,
    _Op.BAND: torch.bitwise_and,
    _Op.BOR: torch.bitwise_or,
    _Op.BXOR: torch.bitwise_xor,
}


@dataclass
class Operands:
    """The tensors of one call.

    Attributes:
        kept: Tensors in the memory of which the call reads and writes.
        copies: Pairs of a tensor of the caller that is not dense, and its dense copy.
    """

    kept: list[torch.Tensor] = field(default_factory=list)
    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a dense tensor with the values of one."""
        dense = as_plain(_on_host(tensor))
        self.kept.append(dense)
        return dense

    def written(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a dense tensor with the values of one that is written; `copy_back` brings the new ones."""
        dense = self.read(tensor)
        if dense is not tensor:
            self.copies.append((tensor, dense))
        return dense

    def copy_back(self) -> None:
        """Copy results into tensors of the caller that are not dense."""
        with torch.no_grad():
            for tensor, dense in self.copies:
                tensor.copy_(dense)


@dataclass(frozen=True)
class Operation:
    """A reduction of one dtype.

    Attributes:
        code: Native number of the operation; None where the tensors of all ranks are gathered.
        combine: What combines two gathered tensors.
    """

    code: int | None
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    @classmethod
    def of(cls, op: Any, dtype: torch.dtype) -> Operation:
        """Return the reduction of a dtype, by an operation of torch.

        Raises:
            ConfigError: there is none.
        """
        return cls._of(op.op, dtype)

    @classmethod
    @functools.cache
    def _of(cls, kind: object, dtype: torch.dtype) -> Operation:
        if kind not in _OPS and kind not in _GATHERED:
            raise ConfigError(
                f"there is no {kind} of the backend; known are SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR, BXOR"
            )
        if dtype.is_complex:
            if kind not in (_Op.SUM, _Op.AVG):
                raise ConfigError(f"all_reduce does not support {kind} on complex tensors")
        elif dtype not in DTYPE_CODES:
            raise ConfigError(f"there are no reductions of {name_of(dtype)}: Invalid scalar type")
        if dtype is torch.bool and kind == _Op.AVG:
            raise ConfigError("there is no mean of bool; use MIN (and) or MAX (or)")
        return cls(_OPS.get(kind), _GATHERED.get(kind))


def real_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as one of real numbers, on the same memory."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def combined(
    gathered: torch.Tensor, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return the rows of a tensor, combined in their order."""
    return functools.reduce(combine, gathered.unbind())


def numbered(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Return address and number of elements of dense tensors."""
    return [(tensor.data_ptr(), tensor.numel()) for tensor in tensors]


def sized(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Return address and number of bytes of dense tensors."""
    return [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]


def parts_of(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Return address and number of bytes of the parts of a dense tensor, cut along its first dimension.

    Args:
        tensor: The tensor.
        splits: Rows of each part; none for equal parts.
        size: Number of parts.

    Raises:
        ConfigError: the parts do not make the tensor.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ConfigError(
                f"Tensor's dim 0 does not divide equally across group size: {rows} rows among {size} ranks"
            )
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ConfigError(
            f"Number of tensor splits not equal to group size, or split sizes doesn't match total dim 0 size: {list(splits)} "
            f"of {rows} rows among {size} ranks"
        )
    each = tensor.nbytes // rows if rows else 0
    begins = [sum(splits[:rank]) * each for rank in range(size)]
    return [(tensor.data_ptr() + begin, rows * each) for begin, rows in zip(begins, splits, strict=True)]


def check_parts(parts: Sequence[torch.Tensor], whole: torch.Tensor, size: int) -> None:
    """Raise ConfigError unless there is a part for each rank, each like another tensor."""
    if len(parts) != size or any(
        part.numel() != whole.numel() or part.dtype != whole.dtype for part in parts
    ):
        raise ConfigError(
            f"{len(parts)} tensors on {size} ranks: one for each rank is needed, each like {whole.dtype} "
            f"{list(whole.shape)}; incorrect list size or tensor size"
        )


def setting(
    tensor: torch.Tensor, rows: torch.Tensor, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Callable[[], None]:
    """Return what sets a tensor to the rows of another one, combined."""

    def set_result() -> None:
        tensor.copy_(combined(rows, combine))

    return set_result


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cpu:
        raise ConfigError(
            f'the backend "softs" has tensors of the host, this one is on {tensor.device}; name a backend for each kind of '
            'device, such as "cpu:softs,cuda:nccl"'
        )
    if tensor.is_sparse or tensor.layout is not torch.strided:
        raise ConfigError(f"the backend takes dense tensors, this one is of layout {tensor.layout}")
    return tensor
