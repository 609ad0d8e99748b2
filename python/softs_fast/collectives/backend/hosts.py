"""The backend "softs+gloo" of torch.distributed: shared memory inside each host, gloo between hosts.

On one host it is the backend "softs". On several, large tensors go through the levels of `HierarchicalStrategy`, and all
other calls to a group of gloo of all ranks.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import PrefixStore

from softs_fast.collectives.backend.door import create
from softs_fast.collectives.backend.operands import Operands
from softs_fast.collectives.backend.work import BackendMismatch, Completer, Pending, SoftsWork, error_of
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.collectives.levels import Levels
from softs_fast.collectives.link_strategy import LinkStrategy
from softs_fast.collectives.meter import Lap
from softs_fast.collectives.nodes import Topology, discover
from softs_fast.collectives.rendezvous import Rendezvous, StoreRendezvous, SubsetRendezvous, TorchStore
from softs_fast.collectives.serial import SerialThread
from softs_fast.collectives.strategy import ReduceOp
from softs_fast.collectives.tensors import DTYPE_CODES, describe
from softs_fast.errors import ConfigError, ForkedError, PeerLost

Tensor = torch.Tensor
#: Makes a call on both levels, after all ranks have agreed on it.
_OnLevels = Callable[[Levels], None]

#: Below this the comparison of calls, between hosts too, would take longer than the tensor does.
_SMALLEST_BYTES = 1 << 20
_OPS: dict[object, ReduceOp] = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.MEAN,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
}
#: Calls that gloo makes, whatever their tensors.
_BY_GLOO = (
    "allgather",
    "allgather_coalesced",
    "all_gather_single_coalesced",
    "allreduce_sparse",
    "all_to_all_single",
    "alltoall",
    "alltoall_base",
    "barrier",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single_coalesced",
    "scatter",
    "send",
)
_open: set[HostsBackend] = set()


def create_between(options: Any, backend_options: object) -> Backend:
    """Return a rank's part in a new group, of which the ranks may be on several hosts.

    Raises:
        ConfigError: the ranks of a host cannot see each other, or are of several versions.
        PeerLost: a rank did not come in time.
        SegmentError: no shared memory.
    """
    rank, size, store = options.group_rank, options.group_size, options.store
    timeout_s = options.timeout.total_seconds()
    place = StoreRendezvous(TorchStore(store), rank, size, "hosts")
    topology = discover(place, rank, timeout_s)
    if len(topology.nodes) == 1:
        return create(options, backend_options)
    gloo = dist.ProcessGroupGloo(PrefixStore("every", store), rank, size, options.timeout)
    if size == len(topology.nodes):
        # Nothing is to be gained where no two ranks share a host.
        return gloo
    levels = _joined(topology, place, store, timeout_s)
    place.close()
    return HostsBackend(levels, gloo, topology)


def _joined(topology: Topology, place: Rendezvous, store: Any, timeout_s: float) -> Levels:
    """Join the group inside the host, and the one between hosts of this rank's slice."""
    own = topology.nodes[topology.own]
    inside = own.index(topology.rank)
    local = ShmStrategy(timeout_s=timeout_s).init(inside, len(own), SubsetRendezvous(place, own))
    cross = None
    if inside < topology.n_slices:
        cross = LinkStrategy.meet(
            topology.own,
            len(topology.nodes),
            PrefixStore(f"slice{inside}", store),
            name="hosts",
            timeout_s=timeout_s,
            plain=True,
        )
    levels = Levels(local, cross, topology)
    levels.agree("init")
    return levels


class HostsBackend(Backend):
    """Collectives of torch.distributed among ranks of several hosts, for tensors on the CPU.

    Args:
        levels: Groups inside the host, and between hosts.
        gloo: Group of all ranks.
        topology: The ranks on their hosts.
    """

    def __init__(self, levels: Levels, gloo: Any, topology: Topology) -> None:
        super().__init__(topology.rank, topology.size)
        self._pid = os.getpid()
        self._levels = levels
        self._gloo = gloo
        # All ranks make the calls on both levels in one order.
        self._thread = SerialThread("softs-hosts")
        self._completer = Completer()
        self._pending = Pending()
        _open.add(self)

    def getBackendName(self) -> str:
        """Return "softs+gloo"."""
        return "softs+gloo"

    supports_splitting = supports_coalescing = supports_shrinking = property(lambda self: False)
    supports_reconfigure = supports_window = _supports_time_estimate = property(lambda self: False)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long later calls of gloo wait; those on both levels keep the time-out of the group."""
        self._gloo.set_timeout(timeout)

    def _get_sequence_number_for_group(self) -> int:
        return int(self._gloo._get_sequence_number_for_group())

    def _set_sequence_number_for_group(self) -> None:
        self._gloo._set_sequence_number_for_group()

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Reduce tensors over all ranks, in place."""
        # gloo has no mean.
        op = self._op_of(opts, tensors)
        if op is None or (op is not ReduceOp.MEAN and not _is_large(tensors)):
            return self._gloo.allreduce(tensors, opts)
        return self._reduce(tensors, op, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Any:
        """Reduce tensors over all ranks, in place."""
        op = self._op_of(opts, tensors)
        return (
            self._gloo.allreduce_coalesced(tensors, opts) if op is None else self._reduce(tensors, op, opts)
        )

    def _reduce(self, tensors: list[Tensor], op: ReduceOp, opts: Any) -> SoftsWork | None:
        used = Operands()
        flat = [used.written(tensor).detach().view(-1) for tensor in tensors]

        def call(levels: Levels) -> None:
            for one in flat:
                levels.all_reduce(one, op, Lap())

        return self._do(f"all_reduce {op} of {_text(flat)}", call, opts, used, tensors)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Any:
        """Reduce a tensor over all ranks; each rank gets one of equal parts."""
        op = self._op_of(opts, [output, tensor])
        if op is None or (op is not ReduceOp.MEAN and not _is_large([tensor])):
            return self._gloo.reduce_scatter_single(output, tensor, opts)
        used = Operands()
        whole, target = used.read(tensor).detach(), used.written(output).detach()

        def call(levels: Levels) -> None:
            levels.reduce_scatter(target.view(-1), whole.view(self.size(), -1), op, Lap())

        what = f"reduce_scatter {op} of {_text([whole, target])}"
        return self._do(what, call, opts, used, [output], self._part_error(whole, target))

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Any:
        """Put the tensors of all ranks into one, one after another."""
        if not _is_large([output]) or not _is_dense([output, tensor]):
            return self._gloo.all_gather_single(output, tensor, opts)
        used = Operands()
        own, whole = used.read(tensor).detach(), used.written(output).detach()

        def call(levels: Levels) -> None:
            levels.gather(whole.view(self.size(), -1), own.view(-1))

        what = f"all_gather of {_text([own, whole])}"
        return self._do(what, call, opts, used, [output], self._part_error(whole, own))

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        """Copy tensors of the root to every rank."""
        if not _is_large(tensors) or not _is_dense(tensors):
            return self._gloo.broadcast(tensors, opts)
        used, root = Operands(), opts.rootRank
        flat = [used.written(tensor).detach().view(-1) for tensor in tensors]

        def call(levels: Levels) -> None:
            for one in flat:
                levels.broadcast(one, root)

        return self._do(f"broadcast from rank {root} of {_text(flat)}", call, opts, used, tensors)

    def monitored_barrier(self, opts: Any, waits_for_all: bool = False) -> None:
        """Wait for all ranks; rank 0 names those that do not come in time."""
        self._gloo.monitored_barrier(opts.timeout, waits_for_all)

    def abort(self) -> None:
        """End pending calls on all ranks, and those that follow."""
        self._levels.abort("a rank aborted the group")
        self.shutdown()

    def shutdown(self) -> None:
        """Leave the group once pending calls have ended; a second call does nothing."""
        if self not in _open:
            return
        _open.discard(self)
        self._thread.close()
        self._completer.close()
        self._levels.close()
        self._gloo = None

    def abandon(self) -> None:
        """End what is pending, in a process that ends; in a fork do nothing."""
        if os.getpid() != self._pid:
            return
        self._levels.abort("the process of a rank ends")
        self._completer.close()

    def _op_of(self, opts: Any, tensors: list[Tensor]) -> ReduceOp | None:
        """Return the reduction of the levels; None if they do not have it for these tensors."""
        op = _OPS.get(opts.reduceOp.op)
        # The sum of which a mean is made would not fit into whole numbers.
        has_mean = all(tensor.is_floating_point() for tensor in tensors)
        return None if not _is_dense(tensors) or (op is ReduceOp.MEAN and not has_mean) else op

    def _part_error(self, whole: Tensor, part: Tensor) -> str:
        """Return why one tensor is not of equal parts like another one, one for each rank; empty if it is."""
        if whole.numel() == self.size() * part.numel() and whole.dtype == part.dtype:
            return ""
        return (
            f"{whole.dtype} {list(whole.shape)} is not of {self.size()} parts of {part.dtype} {list(part.shape)}, one for "
            "each rank"
        )

    def _do(
        self, what: str, call: _OnLevels, opts: Any, used: Operands, results: list[Tensor], refusal: str = ""
    ) -> SoftsWork | None:
        """Make a call on both levels, after those that are pending; wait for it unless it is asynchronous.

        Args:
            what: Text that all ranks must have alike.
            call: The call.
            opts: Options of torch.
            used: Tensors of the call.
            results: Tensors of the caller that get the result.
            refusal: Why it is refused, on all ranks.
        """
        outcome = _Outcome(self._thread.submit(lambda: self._make(what, call, refusal)))
        finish = used.copy_back if used.copies else None
        work = self._pending.add(SoftsWork([outcome], used.kept, results, finish, self._completer))
        if opts.asyncOp:
            return work
        work.wait()
        return None

    def _make(self, what: str, call: _OnLevels, refusal: str) -> None:
        levels = self._levels
        try:
            try:
                levels.agree(what)
            except ConfigError as error:
                raise BackendMismatch(str(error)) from error
            if refusal:
                raise BackendMismatch(refusal)
            call(levels)
        except (BackendMismatch, ForkedError):
            raise
        except BaseException as error:
            # Ranks of the other level would wait for this one.
            levels.give_up(str(error) if isinstance(error, PeerLost) else repr(error))
            raise


class _Outcome:
    """What becomes of a call on the thread of a group, as `Outcome` says it of one of the native queue."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the call has ended; wait so long for it, without a bound if None."""
        return bool(wait([self._future], seconds).done)

    def differences(self) -> list[bytes]:
        """Return nothing; raise what the call raised, of different calls, too."""
        try:
            self._future.result()
        except Exception as error:
            raise error_of(error) from error
        return []


def _by_gloo(name: str) -> Callable[..., Any]:
    def call(self: HostsBackend, *args: Any) -> Any:
        return getattr(self._gloo, name)(*args)

    return call


# On the class, and as functions of Python: c10d takes no others for methods of a backend.
for _name in _BY_GLOO:
    setattr(HostsBackend, _name, _by_gloo(_name))


def _is_large(tensors: list[Tensor]) -> bool:
    return sum(tensor.nbytes for tensor in tensors if not tensor.is_sparse) >= _SMALLEST_BYTES


def _is_dense(tensors: list[Tensor]) -> bool:
    """Return whether the levels take tensors."""
    return all(
        tensor.is_cpu and tensor.layout is torch.strided and tensor.numel() and tensor.dtype in DTYPE_CODES
        for tensor in tensors
    )


def _text(tensors: list[Tensor]) -> str:
    return "; ".join(map(describe, tensors))


@atexit.register
def _abandon_all() -> None:
    """Let the process end with groups that were not destroyed, whatever calls are pending; others learn of its end."""
    for backend in list(_open):
        backend.abandon()


__all__ = ["HostsBackend", "create_between"]
