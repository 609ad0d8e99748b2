"""Strategies of which each call is compared among the ranks before anything moves, and those over an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Self

import torch

from softs_fast.collectives.engine import Collectives, Engine
from softs_fast.collectives.gradients import Gradients, joined
from softs_fast.collectives.meter import Meter
from softs_fast.collectives.strategy import OpMetrics, ReduceOp, Strategy
from softs_fast.collectives.tensors import RefusedByAll, bytes_of, check_parts, check_root, describe, operand
from softs_fast.errors import ConfigError
from softs_fast.tensors import shard_of
from softs_fast.trust import TlsFiles


class ComparedStrategy(Strategy):
    """A `Strategy` over the calls of a group that are not compared.

    Before each of them the calls of the ranks are compared by one small message, so that different calls are an error and
    neither a hang nor a mix of tensors.
    """

    #: Gradients of at most so many bytes are reduced together, as a call between processes takes longer than a copy.
    _most_joined: ClassVar[float] = 1 << 16
    #: Where they are joined; None: on their own device.
    _joined_on: ClassVar[torch.device | None] = None

    def __init__(self) -> None:
        self._meter = Meter()

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics so far, by the name of the operation; waits are those that the group reports."""
        return self._meter.metrics

    @abstractmethod
    def _call(self, name: str, *tensors: torch.Tensor) -> AbstractContextManager[Collectives]:
        """Count a call on tensors, and yield the group that makes it; its errors are raised as PeerLost."""

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place."""
        with self._call("all_reduce", tensor) as group:
            with RefusedByAll(group.agree, "all_reduce"):
                local = operand(tensor, op)
            group.agree(f"all_reduce {op} of {describe(local, shard_of(tensor))}")
            group.all_reduce(local, ReduceOp(op))

    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor | None], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors of a mapping, in place, matched by name: its order does not matter."""
        own = Gradients.of(gradients, op)
        with self._call("all_reduce", *own.tensors.values()) as group:
            group.agree(f"all_reduce_gradients {op}", own.manifest)
            own.raise_if_refused()
            for tensors in own.runs(self._most_joined):
                if len(tensors) == 1:
                    group.all_reduce(tensors[0], ReduceOp(op))
                    continue
                with joined(tensors, self._joined_on or tensors[0].device) as flat:
                    group.all_reduce(flat, ReduceOp(op))

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce `tensor` [size * n] and put this rank's n elements of the result into `output` [n].

        Between hosts each rank receives only its own elements. They are added in the order of the ranks, those of nodes in
        the order of the nodes, 16-bit floats in float32. `output` may be this rank's part of `tensor`.
        """
        with self._call("reduce_scatter", tensor) as group:
            with RefusedByAll(group.agree, "reduce_scatter"):
                source = operand(tensor, op, written=False)
                target = operand(output, name="output")
                check_parts("reduce_scatter", source, target, self.size)
            group.agree(f"reduce_scatter {op} of {describe(source)}")
            part = torch.empty(target.numel(), dtype=source.dtype, device=source.device)
            group.reduce_parts(part, source, ReduceOp(op))
            target.detach().copy_(part.view(target.shape))

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the `tensor` [n] of every rank, one after another, into `output` [size * n]."""
        with self._call("all_gather", output) as group:
            with RefusedByAll(group.agree, "all_gather"):
                source = operand(tensor, written=False)
                target = operand(output, name="output")
                check_parts("all_gather", target, source, self.size)
            group.agree(f"all_gather of {describe(source)}")
            group.all_gather(target, source)

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Copy `tensor` of rank `root` to every rank."""
        with self._call("broadcast", tensor) as group:
            with RefusedByAll(group.agree, "broadcast"):
                local = operand(tensor)
                check_root(root, self.size)
            group.agree(f"broadcast of {describe(local, shard_of(tensor))} from rank {root}")
            group.broadcast(local, root)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        with self._call("barrier") as group:
            group.agree("barrier")


class EngineStrategy(ComparedStrategy):
    """A `Strategy` over an engine: between nodes, or alone.

    Args:
        engine: Joined engine; None if a subclass makes it in `init`.
    """

    #: Token file that it was given.
    files = TlsFiles()

    def __init__(self, engine: Engine | None = None) -> None:
        super().__init__()
        self._engine = engine
        self._closed = False

    def init(self, rank: int, size: int, rendezvous: object = None) -> Self:
        """Compare rank and size with those of the group; return self.

        Args:
            rank: This process's number.
            size: Number of ranks.
            rendezvous: Not used.

        Raises:
            ConfigError: rank and size are not those of the group.
        """
        if (self.rank, self.size) != (rank, size):
            raise ConfigError(
                f"rank {rank} of {size} does not fit the group, in which this is rank {self.rank} of {self.size}"
            )
        return self

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self.engine.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.engine.size

    @property
    def lost(self) -> list[int]:
        """Ranks that broke the group, as far as their connections tell; empty while it works."""
        return [] if self._engine is None else self._engine.lost

    @property
    def is_joined(self) -> bool:
        """Whether it is in a group, which may have failed."""
        return self._engine is not None

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

    def give_up(self, reason: str) -> None:
        """Leave a group that has failed: all calls of this rank raise PeerLost with `reason`, pending ones at once.

        So do calls of other ranks that wait for this one, or for one of which the call has ended by that; their text
        names this rank, and has the first 1,000 characters of `reason`. One that waits only for a rank that has not come
        ends when that rank comes, or after its time-out. May be called from any thread. Nothing is written to a tensor
        afterwards. A process group that was given is aborted. With gloo that frees no rank: calls end after their
        time-out.
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
