"""Collectives by an engine of torch: gloo, NCCL or MPI behind a process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import torch
import torch.distributed as dist

from softs_fast.collectives import agreement
from softs_fast.collectives.engine import Engine
from softs_fast.collectives.gradients import Gradients, joined
from softs_fast.collectives.meter import Meter
from softs_fast.collectives.nccl_engine import NcclEngine
from softs_fast.collectives.rendezvous import as_rendezvous
from softs_fast.collectives.strategy import OpMetrics, ReduceOp, Strategy
from softs_fast.collectives.tensors import RefusedByAll, bytes_of, check_parts, check_root, describe, operand
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.tensors import shard_of


class TorchStrategy(Strategy):
    """A `Strategy` over a process group of torch.distributed, or over gloo connections of its own.

    It is the engine between nodes, and a reference for comparison. Before each call the calls of the ranks are compared
    by one small all-gather, so that different calls are an error and neither a hang nor a mix of tensors. 16-bit floats
    are summed in 16 bits; for a mean they are divided before, as by DDP, so that the sum does not overflow.

    Args:
        process_group: The group to use, of any backend; None makes gloo connections in `init`.
        timeout_s: Seconds to wait for the slowest rank, for groups made by `init`.
        host: Address under which others reach this host, for groups made by `init`; None takes that of its name.
        name: Name that distinguishes groups that use the same rendezvous.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = 30.0,
        host: str | None = None,
        name: str = "torch",
    ) -> None:
        self._group = process_group
        self._engine = None if process_group is None else Engine.of(process_group)
        self._timeout_s = timeout_s
        self._host = host
        self._name = name
        self._closed = False
        self._meter = Meter()

    def init(self, rank: int, size: int, rendezvous: object) -> Self:
        """Connect to the other ranks by gloo; with a process group, only compare rank and size. Return self.

        A strategy that was closed may connect to another group.

        Args:
            rank: This process's number.
            size: Number of ranks.
            rendezvous: Place where the ranks meet, as for `ShmStrategy.init`; distributes rank 0's address. Unused
                with a process group.

        Raises:
            ConfigError: rank and size are not those of the process group, or the strategy is in a group already.
            PeerLost: a rank did not join in time.
        """
        if self._group is not None:
            if (self.rank, self.size) != (rank, size):
                raise ConfigError(
                    f"rank {rank} of {size} does not fit the group, in which this is rank {self.rank} of {self.size}"
                )
            return self
        if self._engine is not None:
            raise ConfigError("this strategy is in a group already; close it first, or make another one")
        place = as_rendezvous(rendezvous, rank, size, name=self._name, timeout_s=self._timeout_s)
        self._engine = Engine.connect(
            rank, size, place, name=self._name, host=self._host, timeout_s=self._timeout_s
        )
        self._closed = False
        place.close()
        return self

    @classmethod
    def meet(
        cls,
        rank: int,
        size: int,
        store: dist.Store,
        *,
        name: str,
        timeout_s: float = 30.0,
        connect_timeout_s: float | None = None,
        host: str | None = None,
        acknowledge_timeout_s: float | None = None,
    ) -> Self:
        """Return a strategy over gloo, of ranks that find each other in a store for this group alone.

        No port is opened but those of the connections: `init` has rank 0 serve a store, and shares the one it is given.

        Args:
            rank: This process's number.
            size: Number of ranks.
            store: Store of which no key was used by another group.
            name: Name of the group, for texts.
            timeout_s: Seconds to wait for the slowest rank in each call.
            connect_timeout_s: Seconds to wait for it while connections are made; None for `timeout_s`.
            host: An address of this host under which the others reach it; None takes that of its name.
            acknowledge_timeout_s: Seconds in which the machine of each rank is to acknowledge what was sent, however late the rank is;
                None leaves it to the kernel, which waits for minutes.

        Raises:
            PeerLost: a rank did not join in time, or the store has ended.
        """
        strategy = cls(timeout_s=timeout_s, name=name)
        strategy._engine = Engine.meet(
            rank,
            size,
            store,
            name=name,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            host=host,
            acknowledge_timeout_s=acknowledge_timeout_s,
        )
        return strategy

    @classmethod
    def meet_by_nccl(
        cls, rank: int, size: int, store: dist.Store, *, name: str, timeout_s: float = 30.0
    ) -> Self:
        """As `meet`, over NCCL: of ranks that have a CUDA device each, their current one.

        Each call has ended on the device when it returns. `give_up` has torch abort the communicators, which ends the
        calls of this rank only. Tensors of the host are copied there and back.

        Raises:
            ConfigError: this torch has no NCCL, or the host no CUDA device.
            PeerLost: a rank did not join in time, or the store has ended.
        """
        strategy = cls(timeout_s=timeout_s, name=name)
        strategy._engine = NcclEngine.join(rank, size, store, name=name, timeout_s=timeout_s)
        return strategy

    @classmethod
    def around(cls, make_group: Callable[[], dist.ProcessGroup]) -> Self:
        """Return a strategy over a process group of gloo that is made now, so that `give_up` ends its calls.

        For what needs a process group, such as FSDP2: its calls end on all ranks, too, with the errors of torch. The
        group stays torch's, and is to be destroyed there.

        Args:
            make_group: makes the group and returns it; all ranks call it.

        Raises:
            PeerLost: a rank did not join in time, or was lost.

        Example:
            >>> import torch.distributed as dist
            >>> from softs_fast.collectives import TorchStrategy
            >>> def join(rank, size, store):
            ...     def make():
            ...         dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            ...         return dist.group.WORLD
            ...     return TorchStrategy.around(make)
        """
        strategy = cls()
        try:
            strategy._engine = Engine.around(make_group)
        except RuntimeError as error:
            raise PeerLost(f"no process group of gloo: {error}") from error
        return strategy

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self.engine.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.engine.size

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics so far, by the name of the operation; the engine does not report its waits."""
        return self._meter.metrics

    @property
    def lost(self) -> list[int]:
        """Ranks that broke the group, as far as their connections tell; empty while it works."""
        return [] if self._engine is None else self._engine.lost

    @property
    def is_joined(self) -> bool:
        """Whether it is in a group, which may have failed."""
        return self._engine is not None

    @property
    def connects(self) -> bool:
        """Whether `init` makes gloo connections; False if a process group was given."""
        return self._group is None

    @property
    def engine(self) -> Engine:
        """The engine of the group, for callers that have compared the calls of the ranks themselves.

        Raises:
            ConfigError: the strategy is in no group.
        """
        if self._closed:
            raise ConfigError("the group is closed")
        if self._engine is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        return self._engine

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place."""
        with self._call("all_reduce", tensor) as engine:
            with self._refused_by_all(engine, "all_reduce"):
                local = operand(tensor, op)
            self._agree(engine, f"all_reduce {op} of {describe(local, shard_of(tensor))}", {})
            engine.all_reduce(local, ReduceOp(op))

    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor | None], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors of a mapping, in place, matched by name: its order does not matter."""
        own = Gradients.of(gradients, op)
        with self._call("all_reduce", *own.tensors.values()) as engine:
            self._agree(engine, f"all_reduce_gradients {op}", own.manifest)
            own.raise_if_refused()
            for tensors in own.runs():
                if len(tensors) == 1:
                    engine.all_reduce(tensors[0], ReduceOp(op))
                    continue
                with joined(tensors, tensors[0].device) as flat:
                    engine.all_reduce(flat, ReduceOp(op))

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce `tensor` [size * n] and put this rank's n elements of the result into `output` [n].

        Each rank receives only its own elements, of all ranks, and adds them in the order of the ranks, 16-bit floats
        in float32. `all_reduce` adds in the engine's order, so with more than two ranks floats may differ in the last
        bits.
        """
        with self._call("reduce_scatter", tensor) as engine:
            with self._refused_by_all(engine, "reduce_scatter"):
                source = operand(tensor, op, written=False)
                target = operand(output, name="output")
                check_parts("reduce_scatter", source, target, self.size)
            self._agree(engine, f"reduce_scatter {op} of {describe(source)}", {})
            own = torch.empty(target.numel(), dtype=source.dtype, device=source.device)
            bounds = [rank * own.numel() for rank in range(self.size + 1)]
            engine.reduce_scatter(
                own, source.detach().resolve_neg().contiguous().view(-1), bounds, ReduceOp(op)
            )
            target.detach().copy_(own.view(target.shape))

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the `tensor` [n] of every rank, one after another, into `output` [size * n]."""
        with self._call("all_gather", output) as engine:
            with self._refused_by_all(engine, "all_gather"):
                source = operand(tensor, written=False)
                target = operand(output, name="output")
                check_parts("all_gather", target, source, self.size)
            self._agree(engine, f"all_gather of {describe(source)}", {})
            every = engine.gather(source.detach().resolve_neg().contiguous().view(-1).view(torch.uint8))
            target.detach().copy_(torch.cat(every).view(target.dtype).view(target.shape))

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Copy `tensor` of rank `root` to every rank."""
        with self._call("broadcast", tensor) as engine:
            with self._refused_by_all(engine, "broadcast"):
                local = operand(tensor)
                check_root(root, self.size)
            self._agree(engine, f"broadcast of {describe(local, shard_of(tensor))} from rank {root}", {})
            engine.broadcast(local, root)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        with self._call("barrier") as engine:
            self._agree(engine, "barrier", {})

    def give_up(self, reason: str) -> None:
        """Leave a group that has failed: all calls of this rank raise PeerLost with `reason`, pending ones at once.

        So do calls of other ranks that wait for this one, or for one of which the call has ended by that; their text
        names this rank, and has the first 1,000 characters of `reason`. One that waits only for a rank that has not come
        ends when that rank comes, or after its time-out. May be called from any thread. The engine is dropped, and
        writes to no tensor afterwards. For a new group, close the strategy and call `init`, or make a new one.

        A process group that was given is aborted. With gloo that frees no rank: calls end after their time-out.
        """
        if self._engine is not None:
            self._engine.give_up(reason)

    def close(self) -> None:
        """Leave the group; a second call does nothing. A process group that was given stays open."""
        self._closed = True
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @contextmanager
    def _call(self, name: str, *tensors: torch.Tensor) -> Iterator[Engine]:
        """Count a call, and raise the engine's errors as PeerLost."""
        engine = self.engine
        with self._meter.lap(name, bytes_of(tensors)), engine.call(name):
            yield engine

    def _refused_by_all(self, engine: Engine, call: str) -> RefusedByAll:
        return RefusedByAll(lambda what: self._agree(engine, what, {}), call)

    def _agree(self, engine: Engine, what: str, manifest: Mapping[str, str]) -> None:
        """Raise ConfigError unless every rank makes the same call."""
        tag = agreement.tag_of({"": what, **manifest})
        tags = [int(other) for other in engine.gather(torch.tensor([tag], dtype=torch.int64, device="cpu"))]
        if any(other != tag for other in tags):
            exchange = agreement.TensorExchange(engine.gather, engine.size)
            raise ConfigError(agreement.difference(exchange, what, manifest))
