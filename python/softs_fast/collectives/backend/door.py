"""The backend "softs" of torch.distributed: what c10d asks for, as calls of a group in shared memory."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from softs_fast import _kernels
from softs_fast.collectives.backend.membership import Member, Membership, Met, Subgroup, World, staging_bytes
from softs_fast.collectives.backend.messages import Messages
from softs_fast.collectives.backend.operands import (
    Operands,
    Operation,
    check_parts,
    numbered,
    parts_of,
    real_of,
    setting,
    sized,
)
from softs_fast.collectives.backend.shared_tensors import SharedTensors
from softs_fast.collectives.backend.work import (
    BackendLost,
    Completer,
    Pending,
    SoftsWork,
    check_differences,
    error_of,
)
from softs_fast.collectives.host.group import join_host_group
from softs_fast.collectives.rendezvous import TorchStore
from softs_fast.collectives.tensors import dtype_code
from softs_fast.errors import ConfigError, ForkedError

if TYPE_CHECKING:
    from softs_fast.collectives.backend.host_calls import HostCall

    Call: TypeAlias = _kernels.Call | HostCall

Tensor = torch.Tensor

# torch holds the C++ half of a backend; with TORCH_DISTRIBUTED_DEBUG=DETAIL nothing else holds the Python half.
_open: set[SoftsBackend] = set()
#: The default group, if it is one of this backend.
_world: World | None = None


def knows_ranks(options: Any) -> bool:
    """Return whether the ranks of a new group know each other from the default group, which is of one host."""
    return bool(options.global_ranks_in_group) and _world is not None


def create(options: Any, _: object) -> SoftsBackend:
    """Return a rank's part in a new group of one host, through the store of the options.

    The ranks of the default group meet here; those of a part of it meet in its first call.

    Raises:
        ConfigError: a rank is on another host, or of another version.
        PeerLost: a rank did not come in time.
        SegmentError: no shared memory.
    """
    global _world
    timeout_s = options.timeout.total_seconds()
    members = list(options.global_ranks_in_group)
    if members and _world is not None:
        store = TorchStore(options.store)
        part = Subgroup(_world, members, options.group_rank, store, timeout_s)
        return SoftsBackend(
            partial(Membership, part), options.group_rank, options.group_size, options.timeout
        )
    group = join_host_group(
        options.group_rank,
        options.group_size,
        options.store,
        name="backend",
        staging_bytes=staging_bytes(options.group_size),
        timeout_s=timeout_s,
    )
    try:
        met = Met(group)
        # Ranks of a default group of another backend do not know each other, so each of its parts is made at once.
        world = None if members else World(met)
    except BaseException:
        group.close()
        raise
    backend = SoftsBackend(partial(Membership, met), group.rank, group.size, options.timeout)
    if world is not None:
        backend.world = _world = world
    return backend


class SoftsBackend(Backend):
    """Collectives of torch.distributed, for dense tensors on the CPU.

    Every rank gets the same bits: elements are summed in the order of the ranks. If a rank dies, leaves or is too late, the
    calls of all others raise `BackendLost`, which names it; ranks that make different calls raise `BackendMismatch`, and
    the group goes on.

    Args:
        member: Makes this rank's part in the group, from what completes futures.
        rank: This process's number.
        size: Number of ranks.
        timeout: How long each call waits for the slowest rank, if it has no time-out of its own.
    """

    def __init__(
        self, member: Callable[[Completer], Member], rank: int, size: int, timeout: timedelta
    ) -> None:
        super().__init__(rank, size)
        self._completer = Completer()
        self._membership = member(self._completer)
        self._calls = self._membership.calls
        self._pending = Pending()
        self._shared = SharedTensors(size, self._pending) if self._calls is _kernels.Call else None
        self.world: World | None = None
        self._timeout_s = timeout.total_seconds()
        self._n_calls = 0
        _open.add(self)

    _queue: Any
    _messages: Messages

    def __getattr__(self, name: str) -> Any:
        """Return what the first call makes: a plain attribute from then on, which costs calls nothing."""
        if name == "_queue":
            self._queue = self._membership.queue()
            return self._queue
        if name == "_messages":
            self._messages = self._membership.messages()
            return self._messages
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    # What c10d asks about the backend. Those inherited would ask themselves.

    def getBackendName(self) -> str:
        """Return "softs"."""
        return "softs"

    supports_splitting = supports_coalescing = supports_shrinking = property(lambda self: False)
    supports_reconfigure = supports_window = _supports_time_estimate = property(lambda self: False)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long later calls wait for the slowest rank."""
        self._timeout_s = timeout.total_seconds()

    def _get_sequence_number_for_group(self) -> int:
        return self._n_calls

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: all ranks count from 0."""

    # Reductions.

    def allreduce(self, tensors: list[Tensor], opts: Any) -> SoftsWork | None:
        """Reduce tensors over all ranks, in place."""
        return self._reduce(tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> SoftsWork | None:
        """Reduce tensors over all ranks, in place."""
        return self._reduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> SoftsWork | None:
        """Reduce tensors over all ranks, into those of the root."""
        return self._reduce(tensors, opts, opts.rootRank)

    def _reduce(self, tensors: list[Tensor], opts: Any, root: int = -1) -> SoftsWork | None:
        if tensors and tensors[0].is_sparse:
            return self._reduce_sparse(tensors, opts)
        used = Operands()
        calls: list[Call] = []
        finishes: list[Callable[[], None]] = []
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for dtype, these in by_dtype.items():
            operation = Operation.of(opts.reduceOp, dtype)
            dense = [real_of(used.written(tensor)) for tensor in these]
            if operation.code is not None:
                code = dtype_code(dense[0].dtype)
                is_single = root == -1 and len(these) == 1 and not used.copies
                shared = self._shared.of(these[0]) if is_single and self._shared is not None else None
                calls.append(self._calls.all_reduce(numbered(dense), code, operation.code, root, shared))
                continue
            assert operation.combine is not None
            for tensor in dense:
                rows = tensor.new_empty((self.size(), *tensor.shape))
                used.kept.append(rows)
                calls.append(self._calls.all_gather(tensor.data_ptr(), sized(rows.unbind()), root))
                if root in (-1, self.rank()):
                    finishes.append(setting(tensor, rows, operation.combine))
        if not calls:
            calls.append(self._calls.barrier())
        return self._do(calls, opts, used, tensors, *finishes)

    def _reduce_sparse(self, tensors: list[Tensor], opts: Any) -> SoftsWork:
        """Add sparse tensors of all ranks: their numbers of values first, so this waits for all ranks."""
        timeout_s = self._timeout_of(opts)
        for tensor in tensors:
            if opts.reduceOp != dist.ReduceOp.SUM:
                raise ConfigError(f"sparse tensors can be added alone, not {opts.reduceOp}")
            own = tensor.detach().coalesce()
            count = torch.tensor([len(own.values())], device="cpu")
            counts = torch.empty(self.size(), dtype=torch.int64, device="cpu")
            self._make(self._calls.all_gather(count.data_ptr(), self._rows(counts)), timeout_s)
            every: list[Tensor] = []
            for part in (own.indices().t().contiguous(), own.values().contiguous()):
                rows = part.new_empty((int(counts.sum()), *part.shape[1:]))
                places = sized(torch.split(rows, counts.tolist()))
                self._make(self._calls.all_gather(part.data_ptr(), places), timeout_s)
                every.append(rows)
            total = torch.sparse_coo_tensor(every[0].t(), every[1], tensor.shape, device="cpu").coalesce()
            with torch.no_grad():
                tensor.copy_(total)
        return SoftsWork([], None, tensors, None, self._completer)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any
    ) -> SoftsWork | None:
        """Reduce tensor r of all ranks into the output of rank r, for each list."""
        return self._reduce_scatter(outputs, inputs, opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> SoftsWork | None:
        """Reduce a tensor over all ranks; each rank gets one of equal parts."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any
    ) -> SoftsWork | None:
        """Reduce tensors over all ranks; each rank gets one of equal parts of each."""
        for output, tensor in zip(outputs, tensors, strict=True):
            if output.numel() * self.size() != tensor.numel():
                raise ConfigError(
                    "input tensor must be the same size as output size times world size: "
                    f"{list(tensor.shape)} for {list(output.shape)} on {self.size()} ranks"
                )
        return self._reduce_scatter(outputs, [self._equal(tensor) for tensor in tensors], opts)

    def _reduce_scatter(
        self, outputs: list[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any
    ) -> SoftsWork | None:
        used = Operands()
        calls: list[Call] = []
        finishes: list[Callable[[], None]] = []
        for output, parts in zip(outputs, inputs, strict=True):
            operation = Operation.of(opts.reduceOp, output.dtype)
            check_parts(parts, output, self.size())
            dense = [real_of(used.read(part)) for part in parts]
            target = real_of(used.written(output))
            if operation.code is not None:
                calls.append(
                    self._calls.reduce_scatter(
                        numbered(dense), target.data_ptr(), dtype_code(target.dtype), operation.code
                    )
                )
                continue
            assert operation.combine is not None
            rows = target.new_empty((self.size(), *target.shape))
            used.kept.append(rows)
            calls.append(self._calls.all_to_all(sized(dense), sized(rows.unbind())))
            finishes.append(setting(target, rows, operation.combine))
        return self._do(calls, opts, used, outputs, *finishes)

    # Tensors that move.

    def broadcast(self, tensors: list[Tensor], opts: Any) -> SoftsWork | None:
        """Copy tensors of the root to every rank."""
        used = Operands()
        calls = []
        for tensor in tensors:
            dense = used.written(tensor)
            calls.append(self._calls.broadcast(dense.data_ptr(), dense.nbytes, opts.rootRank))
        return self._do(calls, opts, used, tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> SoftsWork | None:
        """Copy the tensor of rank r into output r of every rank, for each list."""
        return self._gather(outputs, inputs, opts)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any
    ) -> SoftsWork | None:
        """Copy tensor i of rank r into `outputs[r][i]` of every rank."""
        return self._gather([list(one) for one in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> SoftsWork | None:
        """Put the tensors of all ranks into one, one after another."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any
    ) -> SoftsWork | None:
        """Put the tensors of all ranks into one, one after another, for each pair."""
        used = Operands()
        calls = []
        for output, tensor in zip(outputs, tensors, strict=True):
            if output.numel() != tensor.numel() * self.size() or output.dtype != tensor.dtype:
                raise ConfigError(
                    "output tensor size must be equal to world_size times input tensor size, of one dtype: "
                    f"{output.dtype} {list(output.shape)} for {tensor.dtype} {list(tensor.shape)} on {self.size()} ranks"
                )
            source = used.read(tensor)
            calls.append(self._calls.all_gather(source.data_ptr(), self._rows(used.written(output))))
        return self._do(calls, opts, used, outputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> SoftsWork | None:
        """Copy the tensor of rank r into output r of the root."""
        return self._gather(outputs, inputs, opts, opts.rootRank)

    def _gather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: list[Tensor], opts: Any, root: int = -1
    ) -> SoftsWork | None:
        used = Operands()
        calls = []
        takes = root in (-1, self.rank())
        for number, tensor in enumerate(inputs):
            source = used.read(tensor)
            places = [(0, source.nbytes)] * self.size()
            if takes:
                check_parts(outputs[number], tensor, self.size())
                places = sized(used.written(one) for one in outputs[number])
            calls.append(self._calls.all_gather(source.data_ptr(), places, root))
        results = [one for these in outputs for one in these] if takes else []
        return self._do(calls, opts, used, results)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> SoftsWork | None:
        """Copy input r of the root into the output of rank r."""
        used = Operands()
        calls = []
        for number, output in enumerate(outputs):
            target = used.written(output)
            parts: list[tuple[int, int]] = []
            if self.rank() == opts.rootRank:
                check_parts(inputs[number], output, self.size())
                parts = sized(used.read(part) for part in inputs[number])
            calls.append(self._calls.scatter(parts, target.data_ptr(), target.nbytes, opts.rootRank))
        return self._do(calls, opts, used, outputs)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], splits: list[int], opts: Any
    ) -> SoftsWork | None:
        """Send rows of a tensor to each rank, and get rows from each."""
        used = Operands()
        source, target = used.read(tensor), used.written(output)
        sent = parts_of(source, splits, self.size())
        return self._do(
            [self._calls.all_to_all(sent, parts_of(target, output_splits, self.size()))],
            opts,
            used,
            [output],
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> SoftsWork | None:
        """Send input r to rank r, and get output r from it."""
        used = Operands()
        sent = sized([used.read(tensor) for tensor in inputs])
        return self._do(
            [self._calls.all_to_all(sent, sized([used.written(tensor) for tensor in outputs]))],
            opts,
            used,
            outputs,
        )

    def barrier(self, opts: Any) -> SoftsWork | None:
        """Wait for all ranks."""
        return self._do([self._calls.barrier()], opts, Operands(), [])

    # Messages between two ranks.

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> SoftsWork:
        """Send a tensor to a rank."""
        return self._messages.send(tensors, rank, tag, self._timeout_s)

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> SoftsWork:
        """Receive a tensor from a rank."""
        return self._messages.receive(tensors, rank, tag, self._timeout_s)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> SoftsWork:
        """Raise ConfigError: torch 2.15 does not pass the number of the sender on."""
        raise ConfigError("the backend cannot receive from any rank; name one, as in recv(tensor, src=1)")

    def monitored_barrier(self, opts: Any, waits_for_all: bool = False) -> None:
        """Wait for all ranks; rank 0 names those that do not come in time, and the group goes on."""
        own_s = opts.timeout.total_seconds()
        timeout_s = self._timeout_s if own_s < 0 else own_s
        if self.rank() == 0 and timeout_s <= 0:
            raise BackendLost("Rank 0 timed out in monitoredBarrier after 0 ms")
        try:
            messages = self._messages
        except BackendLost as error:
            # A rank that left before the first call; the text begins with it.
            rank = str(error).partition(" (")[0].capitalize()
            raise BackendLost(f"{rank} failed to pass monitoredBarrier: {error}") from None
        messages.monitored_barrier(self.rank(), self.size(), timeout_s, waits_for_all)

    # The end.

    def abort(self) -> None:
        """End pending calls on all ranks, and those that follow."""
        self._membership.end("a rank aborted the group")
        self.shutdown()

    def shutdown(self) -> None:
        """Leave the group once pending calls have ended; a second call does nothing.

        Raises:
            BackendMismatch: this rank was the root of a broadcast just now, and other ranks made other calls.
        """
        global _world
        if self not in _open:
            return
        _open.discard(self)
        if self.world is not None and self.world is _world:
            _world = None
        try:
            if "_queue" in vars(self) and self._shared is not None:  # else no call was made
                self._make(_kernels.Call.confirm(), self._timeout_s)
        except (BackendLost, ForkedError):
            pass  # There is no rank that waits to hear this one's call.
        finally:
            self._membership.leave()
            if self._shared is not None:
                self._shared.clear()

    def _do(
        self,
        calls: list[Call],
        opts: Any,
        used: Operands,
        results: list[Tensor],
        *finishes: Callable[[], None],
    ) -> SoftsWork | None:
        """Make calls here, or give them to the queue where the caller does not wait."""
        self._n_calls += 1
        timeout_s = self._timeout_of(opts)

        def finish() -> None:
            for one in finishes:
                one()
            used.copy_back()

        is_left = bool(finishes or used.copies)
        try:
            if not opts.asyncOp:
                for call in calls:
                    self._make(call, timeout_s)
                if is_left:
                    finish()
                return None
            try:
                outcomes = [self._queue.submit(call, timeout_s) for call in calls]
            except Exception as error:
                raise error_of(error) from None
            work = SoftsWork(outcomes, used.kept, results, finish if is_left else None, self._completer)
            return self._pending.add(work)
        except (dist.DistBackendError, ConfigError):
            raise  # the call has ended
        except BaseException:
            # After Ctrl-C the call may be pending behind others.
            self._pending.keep((used, results))
            raise

    def _make(self, call: Call, timeout_s: float) -> None:
        """Make a call here, after those that are pending."""
        try:
            check_differences(self._queue.make(call, timeout_s))
        except Exception as error:
            raise error_of(error) from None

    def _timeout_of(self, opts: Any) -> float:
        """Return how long a call waits for the slowest rank, seconds."""
        own_s: float = opts.timeout.total_seconds()
        return own_s if own_s > 0 else self._timeout_s

    def _rows(self, tensor: Tensor) -> list[tuple[int, int]]:
        """Return address and number of bytes of equal parts of a dense tensor, one for each rank."""
        each = tensor.nbytes // self.size()
        return [(tensor.data_ptr() + rank * each, each) for rank in range(self.size())]

    def _equal(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return equal parts of a tensor, one for each rank."""
        return tensor.contiguous().view(-1).chunk(self.size()) if tensor.numel() else [tensor] * self.size()


@atexit.register
def _leave_all() -> None:
    """Let the process end with groups that were not destroyed, whatever calls are pending; others learn of its end."""
    for backend in list(_open):
        backend._membership.abandon()


__all__ = ["SoftsBackend", "create"]
