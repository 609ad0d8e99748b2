"""Collectives among processes of one host, through shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch

from softs_fast import _kernels
from softs_fast.collectives import agreement
from softs_fast.collectives.gradients import Gradients
from softs_fast.collectives.host.buckets import Bucket, Plan, Spec
from softs_fast.collectives.host.ending import Ending
from softs_fast.collectives.host.group import HostStrategy, check_progress, join_host_group, joined
from softs_fast.collectives.host.overlap import Overlap
from softs_fast.collectives.meter import Progress, counts_errors
from softs_fast.collectives.probe import Schedule, choose_schedule
from softs_fast.collectives.strategy import OpMetrics, ReduceOp
from softs_fast.collectives.tensors import (
    EXACT_MEAN,
    RefusedByAll,
    check_parts,
    check_root,
    describe,
    dtype_code,
    op_code,
    operand,
    plain,
    shape_tag,
)
from softs_fast.errors import ConfigError
from softs_fast.tensors import as_plain, is_plain, shard_of

# Rows of `_kernels.Group.metrics`, in the order of csrc/collective/group.hpp.
_KINDS = ("barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast")
_SMALLEST_STAGING = 1 << 16
_LARGEST_STAGING = 1 << 30


class ShmStrategy(HostStrategy):
    """Collectives among processes of one host, any subgroup of them, through memory that all have mapped.

    Tensors may be in any host memory: they are copied through the caches piece by piece. Gradients in a `bucket` are
    not copied at all. All ranks get the same bits, and runs are reproducible: every element is summed in the order of
    the ranks.

    If a rank dies, stops, is too late or leaves, the other ranks raise a PeerLost that names it: at once if the kernel
    reports its end, else after `timeout_s`. The group is then broken until the remaining ranks call `rebuild`.

    Args:
        timeout_s: seconds to wait for the slowest rank, in each step of an operation.
        staging_bytes: bytes of shared memory for each rank, twice: the largest piece that is staged at once.
        schedule: sizes at which the schedule changes; None measures them when the group starts, in some 50 ms.
        name: distinguishes groups that use the same rendezvous.

    Raises:
        ConfigError: an argument is out of range.

    Example:
        >>> import tempfile, torch
        >>> from softs_fast.collectives import ShmStrategy
        >>> with tempfile.TemporaryDirectory() as folder, ShmStrategy().init(0, 1, folder) as strategy:
        ...     gradient = torch.ones(3)
        ...     strategy.all_reduce(gradient, "mean")
        >>> gradient
        tensor([1., 1., 1.])
    """

    def __init__(
        self,
        *,
        timeout_s: float = 30.0,
        staging_bytes: int = 1 << 20,
        schedule: Schedule | None = None,
        name: str = "shm",
    ) -> None:
        super().__init__(timeout_s, schedule, name)
        if not _SMALLEST_STAGING <= staging_bytes <= _LARGEST_STAGING or staging_bytes % 128:
            raise ConfigError(
                f"staging_bytes is {staging_bytes}; it must be a multiple of 128 from {_SMALLEST_STAGING} to "
                f"{_LARGEST_STAGING}"
            )
        self._staging_bytes = staging_bytes
        self._overlap: Overlap | None = None
        self._ending = Ending()
        self._closed = False
        self._n_buckets = 0
        self._progress = Progress()

    def init(self, rank: int, size: int, rendezvous: object) -> Self:
        """Join the group of all ranks; return self. A strategy that was closed may join another group.

        Args:
            rank: this process's number.
            size: number of ranks, at most 64.
            rendezvous: a Store or ProcessGroup of torch.distributed, a folder of this host, "tcp://HOST:PORT" (rank 0
                listens there), or any `Rendezvous`.

        Raises:
            ConfigError: an argument is wrong, ranks have different ones, or a rank is not on this host (its memory
                cannot be read from here, or this rank's from there; the text names them).
            PeerLost: a rank did not join in time.
            SegmentError: no shared memory; the text names the cause.
        """
        if self._joined is not None and not self._closed:
            raise ConfigError("this strategy is in a group already; close it first, or make another one")
        if self._closed:
            self._ending = Ending()
        group = join_host_group(
            rank,
            size,
            rendezvous,
            name=self._name,
            staging_bytes=self._staging_bytes,
            timeout_s=self._timeout_s,
            ending=self._ending,
        )
        try:
            self._schedule = self._schedule or choose_schedule(group, self._staging_bytes)
            group.set_schedule(*self._schedule)
        except BaseException:
            group.close()
            raise
        self._joined, self._closed = group, False
        self._n_buckets, self._progress = 0, Progress()
        joined.add(self)
        return self

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics of this group so far, by the name of the operation."""
        # This strategy makes no other calls for its user.
        rows = zip(_KINDS, self._group.metrics(), strict=False)
        errors = self._progress.errors
        return {kind: OpMetrics(*row, errors[kind]) for kind, row in rows}

    @property
    def processes(self) -> list[tuple[int, int]]:
        """Number and start of the process of each rank."""
        return self._group.processes()

    @property
    def lost(self) -> list[int]:
        """Ranks that broke the group; empty while it works."""
        return self._group.lost()

    @counts_errors("all_reduce")
    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place.

        Source: own, see docs/collectives.md; reduce-scatter and all-gather over memory, in pieces that stay in the
        caches.
        """
        group = self._group
        with RefusedByAll(self._agree, "all_reduce"):
            local = operand(tensor)
            code = op_code(op, local.dtype)
        dtype = dtype_code(local.dtype)
        part = shard_of(tensor)
        tag = agreement.tag_of_text(describe(local, part)) if part else shape_tag(local)
        if is_plain(local):
            agreed = group.all_reduce([(local.data_ptr(), local.numel())], dtype, code, 1.0, tag)
        else:
            with plain([local]) as (lent,):
                agreed = group.all_reduce([(lent.data_ptr(), lent.numel())], dtype, code, 1.0, tag)
        if not agreed:
            self._explain(f"all_reduce {op} of {describe(local, part)}")
        self._progress.completed += 1

    @counts_errors("all_reduce")
    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor | None], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors of a mapping, in place, matched by name: its order does not matter."""
        self._reduce(f"all_reduce_gradients {op}", Gradients.of(gradients, op), op)

    @counts_errors("all_reduce")
    def average_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Set tensors to their mean over all ranks, in place, matched by name; means are rounded once to their dtype.

        Tensors of float32 are summed in float64, others as by `all_reduce_gradients`.

        Args:
            tensors: Tensors by name; the same names, shapes and dtypes on every rank.
        """
        self._reduce("average_tensors", Gradients.of(tensors, ReduceOp.MEAN), None)

    def _reduce(self, what: str, own: Gradients, op: ReduceOp | str | None) -> None:
        """Reduce tensors in place; None is the exact mean."""
        tag = agreement.tag_of(own.manifest)
        group = self._group
        agreed = bool(own.tensors) or group.barrier(tag)
        for dtype, tensors in own.by_dtype().items():
            code = EXACT_MEAN if op is None else op_code(op, dtype)
            with plain(tensors) as lent:
                pieces = [(tensor.data_ptr(), tensor.numel()) for tensor in lent]
                agreed = group.all_reduce(pieces, dtype_code(dtype), code, 1.0, tag)
            if not agreed:
                break
        if not agreed:
            self._explain(what, own.manifest)
        own.raise_if_refused()
        self._progress.completed += 1

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce a tensor over all ranks; each rank gets one of `size` equal parts of the result."""
        group = self._group
        with RefusedByAll(self._agree, "reduce_scatter"):
            source = operand(tensor, op, written=False)
            target = operand(output, name="output")
            check_parts("reduce_scatter", source, target, group.size)
        bounds = [rank * target.numel() for rank in range(group.size + 1)]
        self.reduce_scatter_slices(target, source, bounds, op)

    @counts_errors("reduce_scatter")
    def reduce_scatter_slices(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        bounds: Sequence[int],
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        scale: float = 1.0,
    ) -> None:
        """Reduce a tensor over all ranks; rank r gets elements `bounds[r]` to `bounds[r + 1]` of the result.

        Args:
            output: Tensor with as many elements as this rank's slice has; must not overlap `tensor`.
            tensor: Tensor of `bounds[-1]` elements, of the same dtype.
            bounds: Bounds of the ranks' slices, from 0 to the number of elements, increasing; the same on every rank.
            op: The reduction.
            scale: Factor of the result, applied before it is rounded to the dtype.
        """
        group = self._group
        with RefusedByAll(self._agree, "reduce_scatter"):
            source = as_plain(operand(tensor, op, written=False))
            own = operand(output, name="output")
            self._check_slices(bounds, source, own)
        dtype, code = dtype_code(source.dtype), op_code(op, source.dtype)
        with plain([own]) as (target,):
            agreed = group.reduce_scatter(
                source.data_ptr(), bounds, target.data_ptr(), dtype, code, scale, shape_tag(source)
            )
        if not agreed:
            self._explain(f"reduce_scatter {op} of {describe(source)} at {list(bounds)}")
        self._progress.completed += 1

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the tensor of every rank, one after another, into `output`."""
        group = self._group
        with RefusedByAll(self._agree, "all_gather"):
            source = operand(tensor, written=False)
            target = operand(output, name="output")
            check_parts("all_gather", target, source, group.size)
        self.all_gather_slices(target, source, [rank * source.numel() for rank in range(group.size + 1)])

    @counts_errors("all_gather")
    def all_gather_slices(self, output: torch.Tensor, tensor: torch.Tensor, bounds: Sequence[int]) -> None:
        """Put the tensor of rank r into elements `bounds[r]` to `bounds[r + 1]` of `output`.

        Args:
            output: Tensor of `bounds[-1]` elements.
            tensor: Tensor with as many elements as this rank's slice has, of the same dtype; may be that slice of
                `output`.
            bounds: Bounds of the ranks' slices, from 0 to the number of elements, increasing; the same on every rank.
        """
        group = self._group
        with RefusedByAll(self._agree, "all_gather"):
            source = as_plain(operand(tensor, written=False))
            every = operand(output, name="output")
            self._check_slices(bounds, every, source)
        in_bytes = [bound * source.element_size() for bound in bounds]
        tag = agreement.tag_of({"": describe(every)})
        with plain([every]) as (target,):
            agreed = group.all_gather(source.data_ptr(), in_bytes, target.data_ptr(), tag)
        if not agreed:
            self._explain(f"all_gather into {describe(every)} at {list(bounds)}")
        self._progress.completed += 1

    @counts_errors("broadcast")
    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Copy a tensor of one rank to every rank."""
        group = self._group
        with RefusedByAll(self._agree, "broadcast"):
            local = operand(tensor)
            check_root(root, group.size)
        what = describe(local, shard_of(tensor))
        with plain([local]) as (lent,):
            agreed = group.broadcast(lent.data_ptr(), lent.nbytes, root, agreement.tag_of_text(what))
        if not agreed:
            self._explain(f"broadcast of {what} from rank {root}")
        self._progress.completed += 1

    @counts_errors("barrier")
    def barrier(self) -> None:
        """Return once every rank has called it."""
        if not self._group.barrier(0):
            self._explain("barrier")
        self._progress.completed += 1

    def bucket(self, specs: Mapping[str, Spec], *, private: bool = True) -> Bucket:
        """Make tensors in memory that all ranks share; they are reduced without copies. Every rank must call it.

        Args:
            specs: Tensor of the wanted shape and dtype, or pair of shape and dtype, by name; the same on every rank.
            private: Whether the result is stored in each rank's tensors, as with `all_reduce`; else there is one result
                that all ranks read, which costs the least memory traffic.

        Returns:
            The bucket; its memory is freed with its last view.

        Raises:
            ConfigError: ranks pass different arguments, or a tensor cannot be reduced; on all ranks, by its name.
            SegmentError: no memory; then no rank has a bucket.
        """
        group = self._group
        self._n_buckets += 1
        with RefusedByAll(self._agree, "bucket"):
            plan = Plan(specs)
        return Bucket.create(group, plan, private=private, number=self._n_buckets, progress=self._progress)

    def overlap(self, parameters: Mapping[str, torch.Tensor]) -> Overlap:
        """Return a block in which gradients are reduced while a backward pass computes others.

        A thread that never takes the GIL makes the calls. Results have the bits of `all_reduce_gradients`.

        Args:
            parameters: Parameters by name, the same on every rank; those of which the block computes gradients. Ranks
                compare them in the first block, and when they change.

        Raises:
            ConfigError: Ranks have different parameters; on all ranks, by their names.

        Example:
            >>> def backward(strategy, model, loss):
            ...     named = dict(model.named_parameters())
            ...     with strategy.overlap(named) as begun:
            ...         loss.backward()
            ...         begun.all_reduce_gradients({name: one.grad for name, one in named.items()})
        """
        if self._overlap is not None:
            self._overlap.await_calls()  # an interrupt may have left calls pending
        manifest = {name: describe(one, shard_of(one)) for name, one in parameters.items()}
        tag, last = agreement.tag_of(manifest), self._overlap
        if (last is None or tag != last.tag) and not self._group.barrier(tag):
            self._explain("overlap", manifest)
        queue = _kernels.CallQueue(self._group) if last is None else last.queue
        self._overlap = Overlap(self, queue, parameters, tag)
        return self._overlap

    def rebuild(self) -> None:
        """After PeerLost, form a new group of the remaining ranks. They keep their order; `rank` and `size` are new.

        Every remaining rank must call it. It waits for all live ranks, at most `timeout_s`. Buckets of the group before
        are unusable: make new ones.

        Raises:
            PeerLost: the other ranks formed their group without this one, or the first of them is lost too; start a
                new group.
            ConfigError: the group is closed. Or some ranks have completed a call that failed on others, which waited too
                short for the last one, so that it must not be repeated by the others alone: the new group works then,
                and the error is raised on all of its ranks.
            SegmentError: no shared memory for the new group.
        """
        old = self._group
        group = old.rebuild()
        old.close()
        self._ending.close()
        self._joined, self._overlap = group, None
        self._n_buckets = 0
        completed, self._progress = self._progress.completed, Progress()
        check_progress(group, completed, completed)

    def abort(self, reason: str) -> None:
        """End the calls of all ranks of the group: pending ones, and those of `init`, raise PeerLost at once.

        May be called from any thread, and does not wait: `give_up` is for the thread that makes the calls. All ranks must
        know that the group is over, since they cannot `rebuild` it. After a `rebuild` this does nothing.
        """
        self._ending.end(reason)

    def close(self) -> None:
        """Leave the group; a second call does nothing. Ranks that make another call get PeerLost."""
        joined.discard(self)
        self._ending.close()
        if self._overlap is not None:
            self._overlap.queue.close()
            self._overlap = None
        if self._joined is not None:
            self._joined.close()
        self._closed = True

    def _check_slices(self, bounds: Sequence[int], whole: torch.Tensor, own: torch.Tensor) -> None:
        group = self._group
        mine = bounds[group.rank + 1] - bounds[group.rank] if len(bounds) == group.size + 1 else -1
        if mine != own.numel() or bounds[-1] != whole.numel() or own.dtype != whole.dtype:
            raise ConfigError(
                f"slices at {list(bounds)} do not fit {describe(whole)} and rank {group.rank}'s {describe(own)}"
            )

    def _agree(self, what: str) -> None:
        """Raise ConfigError unless every rank does the same."""
        if not self._group.barrier(agreement.tag_of_text(what)):
            self._explain(what)
