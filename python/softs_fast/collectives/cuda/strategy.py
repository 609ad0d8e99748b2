"""Collectives among processes of one host, each with a CUDA device."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Self

import torch

from softs_fast import _kernels
from softs_fast.collectives import agreement
from softs_fast.collectives.cuda.arena import Arena
from softs_fast.collectives.cuda.completion import Completion
from softs_fast.collectives.cuda.lending import check_device, check_devices, lent
from softs_fast.collectives.cuda.pieces import Pieces
from softs_fast.collectives.cuda.signals import Words
from softs_fast.collectives.cuda.steps import Reduction, Steps
from softs_fast.collectives.gradients import Gradients
from softs_fast.collectives.host.group import HostStrategy, check_progress, join_host_group, joined
from softs_fast.collectives.meter import Meter, waited_s
from softs_fast.collectives.probe import LARGEST_DEVICE_SIZE, Schedule, choose_device_schedule
from softs_fast.collectives.strategy import OpMetrics, ReduceOp
from softs_fast.collectives.tensors import (
    RefusedByAll,
    bytes_of,
    check_casts,
    check_parts,
    check_root,
    describe,
    name_of,
    operand,
)
from softs_fast.errors import ConfigError, ForkedError, PeerLost
from softs_fast.process import check_process
from softs_fast.tensors import cuda, shard_of

_VERSION = 2
_SMALLEST_STAGING = 1 << 20
_LARGEST_STAGING = 1 << 30
# Staging of the hosts' group; its messages are small.
_HOST_STAGING = 1 << 16
# Tags of calls without tensors; the tags of other calls are 56-bit hashes.
_BARRIER, _CLOSING = 0, 2
# What other ranks complete by the same call; a rank may wait for its device, or not.
_COLLECTIVES = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"}


class CudaStrategy(HostStrategy):
    """Collectives on CUDA devices, among processes of one host that have opened each other's memory (CUDA IPC).

    Several ranks may share a device. All ranks get the same bits, those of `softs_fast.kernels.reduce`: every element
    is summed in the order of the ranks, 16-bit floats in float32, with one rounding.

    A call returns when its work is submitted to torch's current stream; tensors may be used in the order of that
    stream. In every call the hosts wait for each other, but not for devices. So a call raises PeerLost at once if a
    rank has died, and after `timeout_s` if it has stopped or is too late. If a rank is killed before its device has done
    its part, the streams of the other ranks go on without it: results of calls that are not complete are undefined
    then, and the next call, `synchronize` and `barrier` raise PeerLost. `rebuild` works. (Where a driver has no stream
    operations on words of memory, such streams stop for ever, and `rebuild` refuses: end the process.)

    With `in_kernel` the blocks of an all-reduce wait for each other inside one kernel, up to `timeout_s`. Calls return
    when the kernel is done, and raise PeerLost with the missing ranks. It is meant for one rank per device.

    Operations also raise CudaError if CUDA refuses, and ConfigError if a tensor is on another device.

    Args:
        device: number of this rank's device; None for torch's current one at `init`.
        timeout_s: seconds to wait for the slowest rank, in each step of an operation.
        staging_bytes: the largest piece of a tensor that is exchanged at once. Each rank allocates four times as much
            on its device: 128 MiB by default. Each piece costs about 100 us of the host, which 8 MiB over NVLink do
            not outlast.
        schedule: sizes at which the schedule changes; None measures them when the group starts.
        in_kernel: whether ranks wait for each other inside a kernel, instead of between kernels.
        name: distinguishes groups that use the same rendezvous.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        device: int | None = None,
        timeout_s: float = 30.0,
        staging_bytes: int = 32 << 20,
        schedule: Schedule | None = None,
        in_kernel: bool = False,
        name: str = "cuda",
    ) -> None:
        super().__init__(timeout_s, schedule, name)
        if not _SMALLEST_STAGING <= staging_bytes <= _LARGEST_STAGING or staging_bytes % 4096:
            raise ConfigError(
                f"staging_bytes is {staging_bytes}; it must be a multiple of 4096 from {_SMALLEST_STAGING} to "
                f"{_LARGEST_STAGING}"
            )
        self._device = device
        self._staging_bytes = staging_bytes
        self._in_kernel = in_kernel
        self._pid = 0
        self._arena: Arena | None = None
        self._steps: Steps | None = None
        self._completion = Completion()
        self._meter = Meter()
        # The DDP hook calls from a thread of its own.
        self._lock = threading.Lock()

    def init(self, rank: int, size: int, rendezvous: object) -> Self:
        """Join the group of all ranks, and open their memory; return self.

        Args:
            rank: This process's number.
            size: Number of ranks, at most 64.
            rendezvous: Place where the ranks meet, as for `ShmStrategy.init`.

        Raises:
            ConfigError: an argument is wrong, ranks have different ones, a rank is not on this host or has no device,
                or one device cannot reach another's memory; the text names ranks and devices.
            PeerLost: a rank did not join in time.
            SegmentError: no shared memory on the host.
        """
        if self._joined is not None:
            raise ConfigError("this strategy is in a group already; make another one")
        group = join_host_group(
            rank, size, rendezvous, name=self._name, staging_bytes=_HOST_STAGING, timeout_s=self._timeout_s
        )
        if self._device is None:
            self._device = cuda.current_device() if cuda.n_devices() else 0
        self._pid, self._joined = os.getpid(), group
        try:
            self._settle(group)
            self._schedule = self._schedule or self._measured(self._work)
        except BaseException:
            if self._arena is not None:
                self._arena.abandon()
            self._arena = self._steps = self._joined = None
            group.close()
            raise
        joined.add(self)
        return self

    @property
    def device(self) -> int:
        """Number of this rank's device."""
        if self._device is None:
            raise ConfigError("this strategy has no device yet; call init first")
        return self._device

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics so far, by the name of the operation; times are those of this host until the work was submitted."""
        return self._meter.metrics

    @property
    def lost(self) -> list[int]:
        """Ranks that broke the group; empty while it works."""
        if self._steps is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        return self._steps.lost

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        output: torch.Tensor | None = None,
        scale: float = 1.0,
        staged: torch.dtype | None = None,
    ) -> None:
        """Reduce a tensor over all ranks; scale and casts are part of the same pass.

        Args:
            tensor: Tensor on this rank's device; any shape, the same on every rank, of float64, float32, float16,
                bfloat16, int64, int32, int16, int8, uint8 or bool.
            op: The reduction.
            output: Tensor for the result, on the same device and of the same shape; floats for floats, integers or
                floats for integers, bool for bool. None: `tensor` itself.
            scale: Factor of the result, applied before it is rounded to the dtype of `output`.
            staged: Float dtype in which floats are exchanged; None: that of `tensor`. Sums are made as for tensors of
                this dtype.

        Source: own, see docs/collectives.md; one-shot and two-shot as in vLLM's custom all-reduce, with events instead
        of flags.
        """
        with self._call("all_reduce", tensor) as steps:
            with self._refused_by_all(steps, "all_reduce"):
                local = operand(tensor, op, written=output is None)
                out = local if output is None else operand(output, name="output")
                by = local.dtype if staged is None else staged
                check_casts(local.dtype, by, out.dtype, op)
                if out.shape != local.shape:
                    raise ConfigError(f"all_reduce {describe(local)} to {describe(out)}: need the same shape")
                check_devices(self.device, tensor=local, output=out)
            what = f"all_reduce {op} of {describe(local, shard_of(tensor))}"
            if output is not None or scale != 1.0 or staged is not None:
                what += f" by {name_of(by)} times {scale!r} into {name_of(out.dtype)}"
            reduction = Reduction(ReduceOp(op), scale, name_of(by), by.itemsize)
            with lent([local], [out], self.device) as (source, target):
                tag = agreement.tag_of_text(what)
                if not steps.all_reduce(source, target, reduction, self.schedule, tag):
                    self._explain(what)

    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor | None], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors of a mapping, in place, matched by name: its order does not matter.

        Tensors of one dtype are exchanged together, whatever their sizes.
        """
        own = Gradients.of(gradients, op, lambda name, tensor: check_device(name, tensor, self.device))
        what = f"all_reduce_gradients {op}"
        tag = agreement.tag_of({"": what, **own.manifest})
        with self._call("all_reduce", *own.tensors.values()) as steps:
            agreed = bool(own.tensors) or steps.agree(tag)
            for dtype, tensors in own.by_dtype().items():
                reduction = Reduction(ReduceOp(op), 1.0, name_of(dtype), dtype.itemsize)
                with lent(tensors, tensors, self.device) as (source, target):
                    agreed = steps.all_reduce(source, target, reduction, self.schedule, tag)
                    if not agreed:
                        break
            if not agreed:
                self._explain(what, own.manifest)
            own.raise_if_refused()

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce `tensor` [size * n] and put this rank's n elements of the result into `output` [n]."""
        with self._call("reduce_scatter", tensor) as steps:
            with self._refused_by_all(steps, "reduce_scatter"):
                whole = operand(tensor, op, written=False)
                own = operand(output, name="output")
                check_parts("reduce_scatter", whole, own, self.size)
                check_devices(self.device, tensor=whole, output=own)
            what = f"reduce_scatter {op} of {describe(whole)}"
            reduction = Reduction(ReduceOp(op), 1.0, name_of(whole.dtype), whole.itemsize)
            with lent([whole], [own], self.device) as (source, target):
                if not steps.reduce_scatter(
                    source, target, reduction, self.schedule.chunk_bytes, agreement.tag_of_text(what)
                ):
                    self._explain(what)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the `tensor` [n] of every rank, one after another, into `output` [size * n], of which it may be a part."""
        with self._call("all_gather", output) as steps:
            with self._refused_by_all(steps, "all_gather"):
                own = operand(tensor, written=False)
                every = operand(output, name="output")
                check_parts("all_gather", every, own, self.size)
                check_devices(self.device, tensor=own, output=every)
            what = f"all_gather of {describe(own)}"
            tag = agreement.tag_of_text(what)
            with lent([own], [every], self.device) as (source, target):
                if not steps.all_gather(source, target, self.schedule.chunk_bytes, tag):
                    self._explain(what)

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Copy `tensor` of rank `root` to every rank."""
        with self._call("broadcast", tensor) as steps:
            with self._refused_by_all(steps, "broadcast"):
                local = operand(tensor)
                check_root(root, self.size)
                check_devices(self.device, tensor=local)
            what = f"broadcast of {describe(local, shard_of(tensor))} from rank {root}"
            with lent([local], [local], self.device) as (_, target):
                if not steps.broadcast(target, root, self.schedule.chunk_bytes, agreement.tag_of_text(what)):
                    self._explain(what)

    def barrier(self) -> None:
        """Return once every rank has called it, and all work submitted before is done on their devices."""
        with self._call("barrier") as steps:
            if not steps.barrier(_BARRIER):
                self._explain("barrier")

    def synchronize(self) -> None:
        """Return once all work that this rank has submitted by this strategy is done on its device.

        Raises:
            PeerLost: a rank died before its part was done, or broke the group; or `timeout_s` is over.
            ConfigError: the group is closed.
        """
        with self._call("synchronize") as steps:
            steps.synchronize()
            self._completion.complete()

    def rebuild(self) -> None:
        """After PeerLost, form a new group of the remaining ranks. They keep their order; `rank` and `size` are new.

        Every remaining rank must call it. It waits for all live ranks, at most `timeout_s`.

        Raises:
            PeerLost: the other ranks formed their group without this one, the first of them is lost too, or a stream of
                this rank does not end; start a new group, in the last case in a new process.
            ConfigError: the group is closed, or the remaining ranks cannot reach each other's memory. Or some ranks know
                by `synchronize` or `barrier` that a call is complete that failed on others, which waited too short for
                the last one: the new group works then, and the error is raised on all of its ranks.
            SegmentError: no shared memory for the new group.
        """
        with self._call("rebuild") as steps:
            old, arena = self._group, self._arena
            steps.drain()
            if arena is not None:
                arena.close_others()
            group = old.rebuild()
            try:
                # The remaining ranks have closed the memory of this rank.
                group.barrier(_CLOSING)
                if arena is not None:
                    arena.release(self._are_closed(old, group.processes()))
                old.close()
                self._joined, self._arena = group, None
                self._settle(group)
            except BaseException:
                group.close()
                raise
            before, self._completion = self._completion, Completion()
            check_progress(group, before.completed, before.failed_after)

    def close(self) -> None:
        """Leave the group; a second call does nothing. Ranks that make another call get PeerLost.

        It waits until the other ranks close the group, make another call or die, at most `timeout_s`, because memory
        that they read must not be freed before. If that is unknown, the memory stays until the process ends.
        """
        if self._joined is None or self._pid != os.getpid():
            return
        joined.discard(self)
        with self._lock:
            arena, self._arena, free = self._arena, None, False
            group, steps = self._joined, self._steps
            if arena is None or steps is None:
                return
            with suppress(PeerLost, ConfigError, _kernels.CudaError):
                steps.drain()
                arena.close_others()
                free = group.barrier(_CLOSING)
            arena.release(free)
            group.close()

    @property
    def _work(self) -> Steps:
        if self._steps is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        if self._arena is None:
            raise ConfigError("the group is closed")
        return self._steps

    def _are_closed(self, old: _kernels.Group, rebuilt: list[tuple[int, int]]) -> bool:
        """Return whether all ranks of a group that are not in the rebuilt one have ended: others may use memory."""
        ended = old.ended()
        return all(process in rebuilt or rank in ended for rank, process in enumerate(old.processes()))

    def _settle(self, group: _kernels.Group) -> None:
        """Allocate the memory that the ranks of a group share."""
        settings = {
            "version": _VERSION,
            "in_kernel": self._in_kernel,
            "schedule": list(self._schedule) if self._schedule else None,
        }
        words = Words.meet(group, self.device, self._timeout_s)
        self._arena = Arena.meet(group, self.device, self._staging_bytes, settings, words)
        self._steps = Steps(group, self._arena, self.device, self._timeout_s, in_kernel=self._in_kernel)

    def _measured(self, steps: Steps) -> Schedule:
        tensor = cuda.empty(
            [min(self._staging_bytes, LARGEST_DEVICE_SIZE) // 4], "float32", self.device
        ).zero_()
        reduction = Reduction(ReduceOp.MAX, 1.0, "float32", 4)

        def reduce(n_bytes: int, schedule: Schedule) -> None:
            row = Pieces([(tensor.data_ptr(), n_bytes // 4)], "float32", 4)
            steps.all_reduce(row, row, reduction, schedule, _BARRIER)
            steps.synchronize()

        return choose_device_schedule(self._group, self._staging_bytes, reduce)

    @contextmanager
    def _call(self, name: str, *tensors: torch.Tensor) -> Iterator[Steps]:
        """Count a call, one at a time. If it fails midway, tell the other ranks, which would wait for this one."""
        if self._joined is not None:
            check_process(self._pid, "this group")
        with self._lock, self._meter.lap(name, bytes_of(tensors)) as lap:
            steps, group = self._work, self._group
            waiting = waited_s(group)
            try:
                yield steps
                if name in _COLLECTIVES:
                    self._completion.submit()
                if name == "barrier" or self._in_kernel:
                    self._completion.complete()
            except BaseException as error:
                if not isinstance(error, ConfigError):
                    self._completion.fail(in_doubt=name not in _COLLECTIVES)
                if not isinstance(error, ConfigError | PeerLost | ForkedError):
                    with suppress(PeerLost, ConfigError):
                        group.give_up(f"{type(error).__name__}: {error}")
                steps.settle()
                raise
            finally:
                lap.waiting_s += waited_s(group) - waiting

    def _refused_by_all(self, steps: Steps, call: str) -> RefusedByAll:
        def agree(what: str) -> None:
            if not steps.agree(agreement.tag_of_text(what)):
                self._explain(what)

        return RefusedByAll(agree, call)
