"""The two levels of a hierarchy, and how data moves through both: inside each node, and between nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import MappingProxyType

import torch

from softs_fast.collectives import agreement
from softs_fast.collectives.engine import Collectives, Engine, divide
from softs_fast.collectives.engine_strategy import EngineStrategy
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.collectives.nodes import Topology
from softs_fast.collectives.placement import Placement
from softs_fast.collectives.serial import SerialThread
from softs_fast.collectives.strategy import ReduceOp
from softs_fast.collectives.tensors import plain
from softs_fast.errors import ConfigError, ForkedError, PeerLost
from softs_fast.tensors import as_plain

# A chunk is reduced inside the node while the one before it is transferred between nodes.
_CHUNK_BYTES = 4 << 20

Step = Callable[[], None]


class Levels(Collectives):
    """Joined groups on both levels.

    Only `agree` compares the ranks: it comes first in each call of all ranks, and transfers between nodes after it are
    not compared again.

    Args:
        local: the group inside the node.
        cross: the group between nodes of this rank's slice; None for a rank without a slice.
        topology: the ranks on their nodes.
    """

    def __init__(self, local: ShmStrategy, cross: EngineStrategy | None, topology: Topology) -> None:
        self._local = local
        self._cross = cross
        self.topology = topology
        self._worker = SerialThread("softs-cross-node")
        self._waited_s = 0.0

    @property
    def waiting_s(self) -> float:
        """Seconds that this rank has waited for ranks of its node, and for other nodes."""
        return self._waited_s + sum(metric.waiting_s for metric in self._local.metrics.values())

    @property
    def lost(self) -> list[int]:
        """Ranks of the world that broke a group of this rank; empty while they work."""
        nodes, own = self.topology.nodes, self.topology.own
        lost = [nodes[own][rank] for rank in self._local.lost]
        between = [] if self._cross is None else self._cross.lost
        return lost + [nodes[node][self._local.rank] for node in between]

    def agree(self, what: str, manifest: Mapping[str, str] = MappingProxyType({})) -> None:
        """Compare descriptions by one small all-reduce."""
        tag = agreement.tag_of({"": what, **manifest})
        tags = torch.tensor([tag, -tag], dtype=torch.int64, device="cpu")
        self._local.all_reduce(tags, ReduceOp.MIN)
        if self._local.rank == 0:
            self._between("comparison of calls", lambda engine: engine.all_reduce(tags, ReduceOp.MIN))
        self._local.broadcast_tensor(tags, 0)
        if int(tags[0]) == -int(tags[1]):
            return

        def gather(own: torch.Tensor) -> list[torch.Tensor]:
            rows = own.new_empty(self.topology.size, own.numel())
            self.all_gather(rows, own)
            return list(rows)

        exchange = agreement.TensorExchange(gather, self.topology.size)
        raise ConfigError(agreement.difference(exchange, what, manifest))

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce over all ranks of the world, in place; all get the same bits.

        Source: own; slices instead of the leaders of Horovod's hierarchical all-reduce.
        """
        inside, scale = self._scaled(tensor, op)
        with plain([tensor]) as (lent,):
            flat = lent.detach().view(-1)

            def chunks() -> Iterator[tuple[Step, Step]]:
                for chunk in torch.split(flat, max(1, _CHUNK_BYTES // flat.element_size())):
                    bounds = self._slices(chunk.numel())
                    own = self._reduce_inside(chunk, bounds, inside, scale)
                    between = partial(self._reduce_between, own, inside)
                    yield between, partial(self._local.all_gather_slices, chunk, own, bounds)

            if flat.numel():
                self._overlap(chunks())
            if op is ReduceOp.MEAN and not flat.is_floating_point():
                divide(flat, self.topology.size)

    def reduce_parts(self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce a tensor of one part for each rank.

        Between nodes each rank receives its own elements alone, and a share of those of ranks of its node without a
        slice. Sums over nodes are made in the order of the nodes, 16-bit floats in float32 and then rounded; an
        `all_reduce` over a process group adds in its order, so with more than two nodes floats may differ in the last bits.
        """
        inside, scale = self._scaled(tensor, op)
        parts = as_plain(tensor).detach().view(self.topology.size, -1)
        step = max(1, _CHUNK_BYTES // (parts.element_size() * self.topology.size))

        def chunks() -> Iterator[tuple[Step, Step]]:
            for begin in range(0, output.numel(), step):
                columns = parts[:, begin : begin + step]
                place = Placement(self.topology, columns.shape[1])
                own = self._reduce_inside(
                    place.packed(columns), place.inside(self._local.size), inside, scale
                )
                mine = self._share_of(own, place)
                between = partial(self._scatter_between, mine, own, place, inside)
                yield between, partial(self._hand_out, output[begin : begin + step], mine, place)

        self._overlap(chunks())
        if op is ReduceOp.MEAN and not output.is_floating_point():
            divide(output, self.topology.size)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the tensor of every rank of the world, by rank, into `output`."""
        own = as_plain(tensor).detach().view(-1)
        with plain([output]) as (lent,):
            rows = lent.detach().view(self.topology.size, -1)
            for number, members in enumerate(self.topology.nodes):
                block = torch.empty(len(members) * own.numel(), dtype=own.dtype, device="cpu")
                if number == self.topology.own:
                    self._local.all_gather(block, own)
                self._spread(block, number)
                rows[list(members)] = block.view(len(members), -1)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Copy the tensor of a rank of the world to every rank."""
        number, inside = self.topology.place_of(root)
        with plain([tensor]) as (lent,):
            if number == self.topology.own:
                self._local.broadcast_tensor(lent, inside)
            self._spread(lent.detach().view(-1), number)

    def give_up(self, reason: str) -> None:
        """End the calls of all ranks on both levels."""
        for level in (self._local, self._cross):
            if level is not None:
                with suppress(PeerLost, ConfigError, ForkedError):  # that level is broken already
                    level.give_up(reason)

    def abort(self, reason: str) -> None:
        """End the calls of all ranks on both levels, from any thread; the groups cannot be rebuilt."""
        self._local.abort(reason)
        if self._cross is not None:
            self._cross.give_up(reason)

    def close(self) -> None:
        """Leave both groups, after the transfers that are under way; a second call does nothing."""
        self._worker.close()
        self._local.close()
        if self._cross is not None:
            self._cross.close()

    def _scaled(self, tensor: torch.Tensor, op: ReduceOp) -> tuple[ReduceOp, float]:
        """Return the operation of both levels, and the factor that makes a mean over all ranks of a sum of floats."""
        if op is not ReduceOp.MEAN:
            return op, 1.0
        return ReduceOp.SUM, 1.0 / self.topology.size if tensor.is_floating_point() else 1.0

    def _slices(self, count: int) -> list[int]:
        """Return the bounds of the ranks' slices of `count` elements: equal, and empty for ranks without a slice."""
        n_slices = self.topology.n_slices
        return [count * min(rank, n_slices) // n_slices for rank in range(self._local.size + 1)]

    def _overlap(self, chunks: Iterator[tuple[Step, Step]]) -> None:
        """Transfer each chunk between nodes while the next is reduced inside, and finish it after that.

        Args:
            chunks: Iterator that reduces a chunk inside the node, and yields its transfer and what follows it.
        """

        def end(sent: Future[None], finish: Step) -> None:
            start = time.perf_counter()
            sent.result()
            self._waited_s += time.perf_counter() - start
            finish()

        before: tuple[Future[None], Step] | None = None
        for transfer, finish in chunks:
            sent = self._worker.submit(transfer)
            if before is not None:
                end(*before)
            before = (sent, finish)
        if before is not None:
            end(*before)

    def _reduce_inside(
        self, flat: torch.Tensor, bounds: list[int], op: ReduceOp, scale: float
    ) -> torch.Tensor:
        """Return this rank's slice of the sum over its node."""
        rank = self._local.rank
        own = flat.new_empty(bounds[rank + 1] - bounds[rank])
        self._local.reduce_scatter_slices(own, flat, bounds, op, scale=scale)
        return own

    def _reduce_between(self, own: torch.Tensor, op: ReduceOp) -> None:
        if own.numel():
            self._between("all_reduce", lambda engine: engine.all_reduce(own, op))

    def _share_of(self, own: torch.Tensor, place: Placement) -> torch.Tensor:
        """Return memory for this node's elements of this rank's slice: the slice itself if there are no other nodes."""
        if self._cross is None:
            return own
        bounds = place.between(self._local.rank)
        return own.new_empty(bounds[self.topology.own + 1] - bounds[self.topology.own])

    def _scatter_between(self, mine: torch.Tensor, own: torch.Tensor, place: Placement, op: ReduceOp) -> None:
        self._between(
            "reduce_scatter",
            lambda engine: engine.reduce_scatter(mine, own, place.between(self._local.rank), op),
        )

    def _hand_out(self, target: torch.Tensor, mine: torch.Tensor, place: Placement) -> None:
        """Copy the reduced elements of this node's ranks to them, from the ranks that have slices."""
        rank, width = self._local.rank, target.numel()
        without_slice = rank - self.topology.n_slices
        if without_slice < 0:
            target.copy_(mine[:width])
        bounds = place.rest(self.topology.own)
        if bounds[-1]:
            rest = target.new_empty(bounds[-1])
            bounds += bounds[-1:] * (self._local.size - self.topology.n_slices)
            self._local.all_gather_slices(rest, mine[width:], bounds)
            if without_slice >= 0:
                target.copy_(rest[without_slice * width :][:width])

    def _spread(self, flat: torch.Tensor, number: int) -> None:
        """Copy a tensor that all ranks of one node have to those of the other nodes, slice by slice."""
        bounds = self._slices(flat.numel())
        own = flat[bounds[self._local.rank] : bounds[self._local.rank + 1]]
        if own.numel():
            self._between("broadcast", lambda engine: engine.broadcast(own, number))
        if number != self.topology.own:
            self._local.all_gather_slices(flat, own, bounds)

    def _between(self, name: str, transfer: Callable[[Engine], None]) -> None:
        """Transfer between nodes, if this rank takes part in that."""
        if self._cross is not None:
            engine = self._cross.engine
            with engine.call(name):
                transfer(engine)
