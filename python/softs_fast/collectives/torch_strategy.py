"""Collectives by an engine of torch: gloo, NCCL or MPI behind a process group."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from softs_fast.collectives import agreement
from softs_fast.collectives.connections import Connections, open_sockets
from softs_fast.collectives.meter import Meter
from softs_fast.collectives.rendezvous import as_rendezvous
from softs_fast.collectives.strategy import OpMetrics, ReduceOp, Strategy
from softs_fast.collectives.tensors import describe, dtype_code, op_code
from softs_fast.errors import ConfigError, PeerLost

_PORT_BYTES = 2


class TorchStrategy(Strategy):
    """A `Strategy` over a process group of torch.distributed, or over gloo connections of its own.

    It is the engine between nodes, and a reference for comparison. Before each call the calls of the ranks are compared
    by one small all-gather, so that different calls are an error and neither a hang nor a mix of tensors. 16-bit floats
    are summed in 16 bits.

    Args:
        process_group: the group to use, of any backend; None makes gloo connections in `init`.
        timeout_s: for groups made by `init`: seconds to wait for the slowest rank.
        host: for groups made by `init`: the address under which others reach this host; None takes that of its name.
        name: distinguishes groups that use the same rendezvous.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = 30.0,
        host: str | None = None,
        name: str = "torch",
    ) -> None:
        # A backend made without `init_process_group` has the same methods, but the type checker knows no common base.
        self._engine: Any = process_group
        # Of an engine that `init` has made.
        self._connections: Connections | None = None
        self._timeout_s = timeout_s
        self._host = host
        self._name = name
        self._closed = False
        self._broken = ""
        self._meter = Meter()
        self._device = _device_of(process_group)

    def init(self, rank: int, size: int, rendezvous: object) -> Self:
        """Connect to the other ranks by gloo; with a process group, only compare rank and size. Return self.

        Args:
            rank: this process's number.
            size: number of ranks.
            rendezvous: as for `ShmStrategy.init`; distributes rank 0's address. Unused with a process group.

        Raises:
            ConfigError: rank and size are not those of the process group.
            PeerLost: a rank did not join in time.
        """
        if self._engine is not None:
            if (self._engine.rank(), self._engine.size()) != (rank, size):
                raise ConfigError(
                    f"rank {rank} of {size} does not fit the group, in which this is rank {self.rank} of {self.size}"
                )
            return self
        place = as_rendezvous(rendezvous, rank, size, name=self._name, timeout_s=self._timeout_s)
        timeout = timedelta(seconds=self._timeout_s)
        try:
            store: TCPStore
            if rank == 0:
                own_host = self._host or _own_host()
                store = TCPStore(own_host, 0, size, True, timeout, wait_for_workers=False)
                place.exchange(
                    store.port.to_bytes(_PORT_BYTES, "little") + own_host.encode(), self._timeout_s
                )
            else:
                said = place.exchange(b"", self._timeout_s)[0]
                port = int.from_bytes(said[:_PORT_BYTES], "little")
                host = said[_PORT_BYTES:].decode(errors="replace")
                store = TCPStore(host, port, size, False, timeout, wait_for_workers=False)
            sockets = open_sockets()
            self._engine = dist.ProcessGroupGloo(PrefixStore(self._name, store), rank, size, timeout)
            self._engine.barrier().wait()
            self._connections = Connections.since(sockets, self._gather)
        except RuntimeError as error:
            self._engine = None
            raise PeerLost(
                f'no gloo connections among the {size} ranks of "{self._name}": {error}'
            ) from error
        place.close()
        return self

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return int(self._group.rank())

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(self._group.size())

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics so far, by the name of the operation; the engine does not report its waits."""
        return self._meter.metrics

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place.

        Args:
            tensor: any shape, the same on every rank, of a dtype that `ShmStrategy` and the engine support.
            op: the reduction.

        Raises:
            ConfigError: dtype or operation is unknown, or ranks differ (nothing was moved).
            PeerLost: the engine failed: a rank died, or was too late.
        """
        dtype_code(tensor.dtype), op_code(op, tensor.dtype)
        with self._call("all_reduce", tensor):
            self._agree(f"all_reduce {op} of {describe(tensor)}", {})
            self._reduce(tensor, ReduceOp(op))

    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors of a mapping, in place, matched by name: its order does not matter.

        Raises:
            ConfigError: as for `all_reduce`; the text names the tensors that differ.
            PeerLost: the engine failed: a rank died, or was too late.
        """
        ordered = dict(sorted(gradients.items()))
        for tensor in ordered.values():
            dtype_code(tensor.dtype), op_code(op, tensor.dtype)
        with self._call("all_reduce", *ordered.values()):
            manifest = {name: describe(tensor) for name, tensor in ordered.items()}
            self._agree(f"all_reduce_gradients {op}", manifest)
            for tensor in ordered.values():
                self._reduce(tensor, ReduceOp(op))

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce `tensor` [size * n] and put this rank's n elements of the result into `output` [n].

        By an all-reduce of a copy, because not every engine has a reduce-scatter.

        Raises:
            ConfigError: sizes do not fit, or as for `all_reduce`.
            PeerLost: the engine failed: a rank died, or was too late.
        """
        if output.dtype != tensor.dtype or tensor.numel() != self.size * output.numel():
            raise ConfigError(
                f"reduce_scatter of {describe(tensor)} into {describe(output)} among {self.size} ranks: "
                "need the same dtype, and one part of equal size per rank"
            )
        dtype_code(tensor.dtype), op_code(op, tensor.dtype)
        with self._call("reduce_scatter", tensor):
            self._agree(f"reduce_scatter {op} of {describe(tensor)}", {})
            whole = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
            self._reduce(whole, ReduceOp(op))
            begin = self.rank * output.numel()
            output.detach().copy_(whole[begin : begin + output.numel()].view(output.shape))

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the `tensor` [n] of every rank, one after another, into `output` [size * n].

        Raises:
            ConfigError: sizes do not fit, or as for `all_reduce`.
            PeerLost: the engine failed: a rank died, or was too late.
        """
        if output.dtype != tensor.dtype or output.numel() != self.size * tensor.numel():
            raise ConfigError(
                f"all_gather of {describe(tensor)} into {describe(output)} among {self.size} ranks: "
                "need the same dtype, and room for every rank's"
            )
        dtype_code(tensor.dtype)
        with self._call("all_gather", output):
            self._agree(f"all_gather of {describe(tensor)}", {})
            output.detach().copy_(
                torch.cat(self._gather(_as_bytes(tensor))).view(output.dtype).view(output.shape)
            )

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Copy `tensor` of rank `root` to every rank.

        Raises:
            ConfigError: there is no such rank, or as for `all_reduce`.
            PeerLost: the engine failed: a rank died, or was too late.
        """
        if not 0 <= root < self.size:
            raise ConfigError(f"root is {root} in a group of {self.size}")
        dtype_code(tensor.dtype)
        with self._call("broadcast", tensor):
            self._agree(f"broadcast of {describe(tensor)} from rank {root}", {})
            options = dist.BroadcastOptions()
            options.rootRank = root
            lent = _as_bytes(tensor)
            self._group.broadcast([lent], options).wait()
            if self.rank != root:
                tensor.detach().copy_(lent.view(tensor.dtype).view(tensor.shape))

    def barrier(self) -> None:
        """Return once every rank has called it.

        Raises:
            ConfigError: ranks do different things, or the strategy is closed.
            PeerLost: the engine failed: a rank died, or was too late.
        """
        with self._call("barrier"):
            self._agree("barrier", {})

    def give_up(self, why: str) -> None:
        """Leave a group that has failed: all calls of this rank raise PeerLost, pending ones at once.

        So do calls of other ranks that wait for this one, or for one of which the call has ended by that. One that waits
        only for a rank that has not come ends when that rank comes, or after its time-out. May be called from any
        thread. The engine is dropped, and writes to no tensor afterwards; make a new strategy for a new group.

        A process group that was given is aborted. With gloo that frees no rank: calls end after their time-out.
        """
        self._broken = why
        if self._connections is not None:
            self._drop_engine()
        elif hasattr(self._engine, "abort"):
            self._engine.abort()

    def close(self) -> None:
        """Leave the group; a second call does nothing. A process group that was given stays open."""
        self._closed = True
        self._engine = None
        if self._connections is not None:
            self._connections.close()

    def _drop_engine(self) -> None:
        """End the calls that use the connections. The engine ends with the last of them."""
        if self._connections is not None:
            self._connections.shut_down()
            self._engine = None
            self._connections.close()

    @property
    def _group(self) -> Any:
        if self._closed:
            raise ConfigError("the group is closed")
        if self._broken:
            raise PeerLost(self._broken)
        if self._engine is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        return self._engine

    @contextmanager
    def _call(self, name: str, *tensors: torch.Tensor) -> Iterator[None]:
        """Count a call, and raise the engine's errors as PeerLost."""
        group = self._group
        n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        with self._meter.lap(name, n_bytes):
            try:
                yield
            except (ConfigError, PeerLost):
                raise
            except RuntimeError as error:
                # Engines do not name the rank, but mostly its address. The cause that this rank gave comes first.
                failure = f"{name} among {group.size()} ranks of the process group failed: {error}"
                self._broken = self._broken or failure
                # gloo tells only the neighbours of a lost rank.
                self._drop_engine()
                raise PeerLost(self._broken) from error

    def _agree(self, what: str, manifest: Mapping[str, str]) -> None:
        """Raise ConfigError unless every rank makes the same call."""
        tag = agreement.tag_of({"": what, **manifest})
        own = torch.tensor([tag], dtype=torch.int64, device=self._device)
        tags = [int(tag) for tag in self._gather(own)]
        if any(other != tag for other in tags):

            def gather(own: torch.Tensor) -> list[torch.Tensor]:
                return self._gather(own.to(self._device))

            exchange = agreement.TensorExchange(gather, self.size)
            raise ConfigError(agreement.difference(exchange, what, manifest))

    def _gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        every = [torch.empty_like(tensor) for _ in range(self.size)]
        self._group.allgather([every], [tensor]).wait()
        return every

    def _reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        lent, engine_op = _reducible(tensor, op)
        options = dist.AllreduceOptions()
        options.reduceOp = engine_op
        self._group.allreduce([lent], options).wait()
        if op is ReduceOp.MEAN:
            divide(lent, self.size)
        if lent.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(lent)


def divide(tensor: torch.Tensor, divisor: int) -> None:
    """Divide in place; integers are truncated toward zero."""
    with torch.no_grad():
        if tensor.is_floating_point():
            tensor.mul_(1.0 / divisor)
        else:
            tensor.copy_(torch.div(tensor, divisor, rounding_mode="trunc"))


def _reducible(tensor: torch.Tensor, op: ReduceOp) -> tuple[torch.Tensor, Any]:
    """Return a contiguous tensor of a dtype that engines reduce, and their name of the operation."""
    lent = tensor.detach().contiguous()
    if tensor.dtype is torch.bool:
        # Logical or and and, on bytes that are 0 or 1.
        return lent.to(torch.uint8), dist.ReduceOp.MIN if op is ReduceOp.MIN else dist.ReduceOp.MAX
    if tensor.dtype is torch.int16:
        lent = lent.to(torch.int32)
    names = {ReduceOp.MIN: dist.ReduceOp.MIN, ReduceOp.MAX: dist.ReduceOp.MAX}
    return lent, names.get(op, dist.ReduceOp.SUM)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as bytes, which every engine supports; a view if possible."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _device_of(group: dist.ProcessGroup | None) -> str:
    """Return the device of a group's tensors."""
    return "cuda" if group is not None and dist.get_backend(group) == "nccl" else "cpu"


def _own_host() -> str:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name
