"""A process group of torch.distributed: its calls, its errors as PeerLost, and its end."""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from softs_fast.collectives.connections import Connections, open_sockets
from softs_fast.collectives.reasons import Reasons
from softs_fast.collectives.rendezvous import Rendezvous
from softs_fast.collectives.strategy import ReduceOp
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.process import check_process

_PORT_BYTES = 2


class Engine:
    """A process group of any backend, or gloo connections of its own.

    It compares nothing: its caller knows that all ranks make the same call. Calls are made inside `call`.

    Args:
        group: A process group, or a backend without one, which has the same methods.
        device: Device on which the group wants its tensors.
        connections: Connections of a group of gloo; they belong to the engine.

    Attributes:
        lost: Ranks that ended the group without a word, as far as this rank knows; empty while it works.
    """

    def __init__(self, group: Any, device: str, connections: Connections | None = None) -> None:
        self._group: Any = group
        self._connections = connections
        self._broken = ""
        # It also keeps the store: torch has no reference to one that is written in Python.
        self._reasons: Reasons | None = None
        self.lost: list[int] = []
        self._pid = os.getpid()
        _keep_in_forks()
        _engines.add(self)
        self.device = device
        self.rank = int(group.rank())
        self.size = int(group.size())

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Engine:
        """Return the engine of a process group; it stays open when the engine is closed."""
        return cls(group, "cuda" if dist.get_backend(group) == "nccl" else "cpu")

    @classmethod
    def around(cls, make_group: Callable[[], dist.ProcessGroup]) -> Engine:
        """Return the engine of a process group of gloo that is made now, with its connections. A collective call."""
        sockets = open_sockets()
        engine = cls(make_group(), "cpu")
        engine._connections = Connections.since(sockets, engine.gather, engine.size)
        return engine

    @classmethod
    def connect(
        cls, rank: int, size: int, place: Rendezvous, *, name: str, host: str | None, timeout_s: float
    ) -> Engine:
        """Connect all ranks by gloo.

        Args:
            rank: This process's number.
            size: Number of ranks.
            place: Rendezvous that distributes rank 0's address.
            name: Name of the group.
            host: The address under which others reach this host; None takes that of its name.
            timeout_s: Seconds to wait for the slowest rank, also in each call.

        Raises:
            PeerLost: a rank did not join in time.
        """
        timeout = timedelta(seconds=timeout_s)
        try:
            store: TCPStore
            if rank == 0:
                own_host = host or _own_host()
                store = TCPStore(own_host, 0, size, True, timeout, wait_for_workers=False)
                place.exchange(store.port.to_bytes(_PORT_BYTES, "little") + own_host.encode(), timeout_s)
            else:
                said = place.exchange(b"", timeout_s)[0]
                port = int.from_bytes(said[:_PORT_BYTES], "little")
                store = TCPStore(
                    said[_PORT_BYTES:].decode(errors="replace"),
                    port,
                    size,
                    False,
                    timeout,
                    wait_for_workers=False,
                )
        except RuntimeError as error:
            raise PeerLost(f'no store of the {size} ranks of "{name}": {error}') from error
        return cls.meet(rank, size, PrefixStore(name, store), name=name, timeout_s=timeout_s)

    @classmethod
    def meet(
        cls,
        rank: int,
        size: int,
        store: dist.Store,
        *,
        name: str,
        timeout_s: float,
        connect_timeout_s: float | None = None,
        host: str | None = None,
        acknowledge_timeout_s: float | None = None,
    ) -> Engine:
        """Connect all ranks by gloo, with a store for this group alone.

        Args:
            rank: This process's number.
            size: Number of ranks.
            store: Store in which ranks find each other; no key of it was used by another group.
            name: Name of the group, for texts.
            timeout_s: Seconds to wait for the slowest rank in each call.
            connect_timeout_s: Seconds to wait for it while connections are made; None for `timeout_s`.
            host: An address of this host under which the others reach it; None takes that of its name, or of the
                interface that GLOO_SOCKET_IFNAME names.
            acknowledge_timeout_s: Seconds in which the machine of each rank is to acknowledge what was sent, however late the rank is;
                None leaves it to the kernel, which waits for minutes.

        Raises:
            PeerLost: a rank did not join in time, or the host has no such address.
        """
        try:
            sockets = open_sockets()
            connect = timedelta(seconds=timeout_s if connect_timeout_s is None else connect_timeout_s)
            engine = cls(_gloo(store, rank, size, connect, host), "cpu")
            engine._reasons = Reasons(store)
            engine._group.barrier().wait()
            engine._connections = Connections.since(sockets, engine.gather, size)
            if acknowledge_timeout_s is not None:
                engine._connections.expect_answers(acknowledge_timeout_s)
            if connect_timeout_s is not None:
                engine._group._set_default_timeout(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise PeerLost(f'no gloo connections among the {size} ranks of "{name}": {error}') from error
        return engine

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Raise the errors of the group inside as PeerLost. A call that ends midway ends the group, on all ranks.

        Raises:
            PeerLost: the group failed: a rank died, or was too late; or `give_up` was called.
        """
        self._check_process()
        # Kept until the end of the call, whatever another thread does.
        group = self._usable
        try:
            yield
        except (ConfigError, PeerLost):
            raise
        except RuntimeError as error:
            # The cause that this rank gave comes first.
            self.give_up(self._broken or self._cause(name, error))
            raise PeerLost(self._broken) from error
        except BaseException as error:
            # The other ranks are in the middle of the call, and the next one of this rank must not meet it.
            self.give_up(f"{name} was interrupted by {type(error).__name__}")
            raise
        finally:
            del group

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, of one size, by rank."""
        own = tensor.to(self.device)
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
        """Put elements `bounds[rank]` to `bounds[rank + 1]` of the reduced tensor into `output`.

        Each rank sends to each other one that one's elements only: gloo's own reduce-scatter is an all-reduce of a
        copy. They are added in the order of the ranks, 16-bit floats in float32.

        Args:
            output: Flat tensor for this rank's elements.
            tensor: Flat tensor of `bounds[-1]` elements.
            bounds: Bounds of the ranks' slices, from 0, increasing; the same on every rank.
            op: The reduction.
        """
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

    def give_up(self, reason: str) -> None:
        """End the pending calls of this rank, and those that wait for it; later ones raise PeerLost. Idempotent.

        With connections of its own the engine drops its group, which then writes to no tensor. A process group that was
        given is aborted; with gloo that ends no call.
        """
        self._check_process()
        if not self._broken:
            self._broken = reason
            if self._reasons is not None:
                self._reasons.tell(self.rank, self.lost, reason)
        if self._connections is not None:
            self._connections.shut_down()
            self._group = None
            self._connections.close()
        elif hasattr(self._group, "abort"):
            self._group.abort()

    def close(self) -> None:
        """Release the group; a second call does nothing. A process group that was given stays open.

        In a fork this does nothing: the group is the parent's.
        """
        if self._is_forked:
            return
        self._broken = self._broken or "the group is closed"
        self._group = None
        if self._connections is not None:
            self._connections.close()

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _check_process(self) -> None:
        check_process(self._pid, f"a process group of {self.size} ranks")

    def _cause(self, name: str, error: RuntimeError) -> str:
        """Return why a call failed: what a rank that gave up has told, or which ranks have ended."""
        # Groups of torch do not name the rank, at most its address. Each rank that gave up has told why before it shut its
        # connections down, so those that are closed now without a word are lost.
        ended = [] if self._connections is None else self._connections.ended()
        told = None if self._reasons is None else self._reasons.told()
        if told is not None:
            rank, self.lost, reason = told
            return reason if self.lost else f"rank {rank} gave up: {reason}"
        self.lost = ended
        if not ended:
            return f"{name} among {self.size} ranks of the process group failed: {error}"
        ranks = ", ".join(map(str, ended))
        return f"{name} among {self.size} ranks failed: the connection to rank {ranks} is closed; its process may have ended"

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
        if self._broken:
            raise PeerLost(self._broken)
        return group


# Those of this process that live.
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@functools.cache
def _keep_in_forks() -> None:
    """Have forks never free a group: its end waits for threads, which a fork does not have."""

    def keep() -> None:
        for engine in list(_engines):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine._group))

    os.register_at_fork(after_in_child=keep)


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta, host: str | None) -> Any:
    if host is None:
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(store, rank, size, options)


def divide(tensor: torch.Tensor, divisor: int) -> None:
    """Divide in place; integers are truncated toward zero."""
    with torch.no_grad():
        if tensor.is_floating_point():
            tensor.mul_(1.0 / divisor)
        else:
            tensor.copy_(torch.div(tensor, divisor, rounding_mode="trunc"))


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


def _own_host() -> str:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name
