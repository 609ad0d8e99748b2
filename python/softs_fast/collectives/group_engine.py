"""A process group of torch.distributed as an engine."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from softs_fast.collectives.engine import Engine, divide
from softs_fast.collectives.reasons import Reasons
from softs_fast.collectives.strategy import ReduceOp


class GroupEngine(Engine):
    """A process group that was given, of any backend; it stays open when the engine is closed.

    Args:
        group: A process group, or a backend without one, which has the same methods.
        device: Device on which the group wants its tensors.
        reasons: Place where a rank that gives up tells the others why; None if there is none.
    """

    def __init__(self, group: Any, device: str, reasons: Reasons | None = None) -> None:
        super().__init__(int(group.rank()), int(group.size()), reasons)
        self._group: Any = group
        self._device = device
        _keep_in_forks()
        _engines.add(self)

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> GroupEngine:
        """Return the engine of a process group."""
        return cls(group, "cuda" if dist.get_backend(group) == "nccl" else "cpu")

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Raise the errors of the group inside as PeerLost; see `Engine.call`."""
        # Kept until the end of the call, whatever another thread does.
        group = self._group
        try:
            with super().call(name):
                yield
        finally:
            del group

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, of one size, by rank."""
        own = tensor.to(self._device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        self._wait(self._usable.allgather([every], [own]))
        return every

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce in place. Groups add 16-bit floats in 16 bits, so a mean of them is divided before, as by DDP."""
        lent, group_op = _reducible(self._placed(tensor), op)
        divides_first = op is ReduceOp.MEAN and lent.is_floating_point() and lent.element_size() == 2
        if divides_first:
            divide(lent, self.size)
        options = dist.AllreduceOptions()
        options.reduceOp = group_op
        self._wait(self._usable.allreduce([lent], options))
        if op is ReduceOp.MEAN and not divides_first:
            divide(lent, self.size)
        if lent.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(lent)

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, bounds: Sequence[int], op: ReduceOp
    ) -> None:
        """Reduce a tensor, by an all-to-all: gloo's own reduce-scatter is an all-reduce of a copy."""
        item = tensor.element_size()
        parts = [item * (end - begin) for begin, end in pairwise(bounds)]
        received = torch.empty(self.size, output.numel(), dtype=tensor.dtype, device=tensor.device)
        own = [item * output.numel()] * self.size
        options = dist.AllToAllOptions()
        self._wait(self._usable.alltoall_base(_as_bytes(received), _as_bytes(tensor), own, parts, options))
        output.copy_(_reduced(received, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Copy the tensor of rank `root` to every rank."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        lent = _as_bytes(self._placed(tensor))
        self._wait(self._usable.broadcast([lent], options))
        if self.rank != root and lent.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(lent.view(tensor.dtype).view(tensor.shape))

    def _end(self) -> None:
        """Abort the group: with gloo that ends no call."""
        if hasattr(self._group, "abort"):
            self._group.abort()

    def _release(self) -> None:
        self._group = None

    def _loss(self, error: Exception) -> tuple[list[int], str]:
        # Groups of torch do not name the rank, at most its address.
        return [], str(error)

    def _wait(self, work: Any) -> None:
        """Wait for the end of a call of the group."""
        work.wait()

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor where the group takes it: itself, or a copy."""
        return tensor

    @property
    def _usable(self) -> Any:
        # In this order: another thread may give up in between.
        group = self._group
        self._check_usable()
        return group


# Those of this process that live.
_engines: weakref.WeakSet[GroupEngine] = weakref.WeakSet()


@functools.cache
def _keep_in_forks() -> None:
    """Have forks never free a group: its end waits for threads, which a fork does not have."""

    def keep() -> None:
        for engine in list(_engines):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine._group))

    os.register_at_fork(after_in_child=keep)


def _reduced(rows: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    """Reduce the rows in their order, 16-bit floats in float32."""
    narrow = rows.is_floating_point() and rows.element_size() == 2
    result = rows[0].to(torch.float32 if narrow else rows.dtype, copy=True)
    combine = {ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum}.get(op, torch.add)
    for row in rows[1:]:
        combine(result, row.to(result.dtype), out=result)
    if op is ReduceOp.MEAN:
        divide(result, len(rows))
    return result


def _reducible(tensor: torch.Tensor, op: ReduceOp) -> tuple[torch.Tensor, Any]:
    """Return a contiguous tensor of a dtype that groups reduce, and their name of the operation."""
    lent = tensor.detach().resolve_neg().contiguous()
    if tensor.dtype is torch.bool:
        # Logical or and and, on bytes that are 0 or 1.
        return lent.to(torch.uint8), dist.ReduceOp.MIN if op is ReduceOp.MIN else dist.ReduceOp.MAX
    if tensor.dtype is torch.int16:
        lent = lent.to(torch.int32)
    names = {ReduceOp.MIN: dist.ReduceOp.MIN, ReduceOp.MAX: dist.ReduceOp.MAX}
    return lent, names.get(op, dist.ReduceOp.SUM)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as bytes, which every group supports; a view if possible."""
    return tensor.detach().resolve_neg().contiguous().view(-1).view(torch.uint8)
