"""The calls of strategies over an engine: compared, counted, and then made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from softs_fast.collectives import agreement
from softs_fast.collectives.engine import Engine
from softs_fast.collectives.gradients import Gradients, joined
from softs_fast.collectives.meter import Meter
from softs_fast.collectives.strategy import OpMetrics, ReduceOp, Strategy
from softs_fast.collectives.tensors import RefusedByAll, bytes_of, check_parts, check_root, describe, operand
from softs_fast.errors import ConfigError
from softs_fast.tensors import shard_of
from softs_fast.trust import TlsFiles


class EngineStrategy(Strategy):
    """A `Strategy` over an engine, which a subclass makes: between nodes, or alone.

    Before each call the calls of the ranks are compared by one small all-gather, so that different calls are an error and
    neither a hang nor a mix of tensors.
    """

    #: Token file that it was given.
    files = TlsFiles()

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine
        self._closed = False
        self._meter = Meter()

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
        in float32.
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
            engine.all_gather(target, source)

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

    def _refused_by_all(self, engine: Engine, call: str) -> RefusedByAll:
        return RefusedByAll(lambda what: self._agree(engine, what, {}), call)

    def _agree(self, engine: Engine, what: str, manifest: Mapping[str, str]) -> None:
        """Raise ConfigError unless every rank makes the same call."""
        tag = agreement.tag_of({"": what, **manifest})
        tags = [int(other) for other in engine.gather(torch.tensor([tag], dtype=torch.int64, device="cpu"))]
        if any(other != tag for other in tags):
            exchange = agreement.TensorExchange(engine.gather, engine.size)
            raise ConfigError(agreement.difference(exchange, what, manifest))
