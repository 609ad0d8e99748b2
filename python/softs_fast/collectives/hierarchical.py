"""Collectives over nodes: shared memory inside each node, an engine between nodes, no leading rank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Self

import torch

from softs_fast.collectives import agreement
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.collectives.meter import Lap, Meter
from softs_fast.collectives.nodes import Topology, join_nodes, learn_topology
from softs_fast.collectives.strategy import OpMetrics, ReduceOp, Strategy
from softs_fast.collectives.tensors import describe, dtype_code, op_code, plain
from softs_fast.collectives.torch_strategy import TorchStrategy, divide
from softs_fast.errors import ConfigError, ForkedError, PeerLost

# A chunk is reduced inside the node while the one before it is transferred between nodes.
_CHUNK_BYTES = 4 << 20


class HierarchicalStrategy(Strategy):
    """A `Strategy` over nodes: reduce-scatter inside each, all-reduce of every slice between them, all-gather inside.

    Every slice has a group of its own between nodes, one rank of each node, so that all ranks of a node work at once.
    With nodes of unequal size there are as many slices as the smallest node has ranks; the other ranks of larger nodes
    have none. A mean is the mean over all ranks: sums are divided by the size of the world for any sizes of nodes.

    Args:
        local: the strategy inside the node.
        cross_node: the strategy between nodes for this rank's slice: the ranks with the same number inside their nodes,
            in the same order of nodes for every slice. None for a rank without a slice.

    Both may be joined already, or are joined by `init`, which then finds out which ranks share a node.
    """

    def __init__(self, local: ShmStrategy, cross_node: TorchStrategy | None) -> None:
        self._local = local
        self._cross: TorchStrategy | None = cross_node
        self._topology: Topology | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._meter = Meter()

    def init(self, rank: int, size: int, rendezvous: object = None) -> Self:
        """Join the group of all ranks; return self.

        Args:
            rank: this process's number in the world.
            size: number of ranks of the world.
            rendezvous: rendezvous of all ranks of the world, as for `ShmStrategy.init`; a folder only for a single
                host. None if `local` and `cross_node` are joined already.

        Raises:
            ConfigError: arguments are wrong, or the groups do not make a hierarchy of ranks 0 to size - 1.
            PeerLost: a rank did not join in time.
            SegmentError: no shared memory.
        """
        place = None
        if rendezvous is not None:
            self._cross, place = join_nodes(self._local, self._cross, rank, size, rendezvous)
        self._topology = learn_topology(self._local, self._cross, rank, size)
        if place is not None:
            place.close()
            self._agree("init", {})
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="softs-cross-node")
        return self

    @property
    def rank(self) -> int:
        """This process's number in the world."""
        return self._nodes.rank

    @property
    def size(self) -> int:
        """Number of ranks of the world."""
        return self._nodes.size

    @property
    def nodes(self) -> list[list[int]]:
        """Ranks of the world by node, in the order of the ranks inside it."""
        return [list(node) for node in self._nodes.nodes]

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics so far, by the name of the operation; waits are for ranks of the node and for other nodes."""
        return self._meter.metrics

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks of the world, in place. All ranks get the same bits.

        Args:
            tensor: any shape, the same on every rank, of a dtype that `ShmStrategy` supports.
            op: the reduction.

        Raises:
            ConfigError: dtype or operation is unknown, ranks differ (nothing was moved), or the strategy is closed.
            PeerLost: a rank died, stopped or left; the contents of `tensor` are undefined.
            ForkedError: called in a fork of the process that made the group.

        Source: own; slices instead of the leaders of Horovod's hierarchical all-reduce.
        """
        dtype_code(tensor.dtype), op_code(op, tensor.dtype)
        with self._call("all_reduce", tensor) as lap:
            self._agree(f"all_reduce {op} of {describe(tensor)}", {})
            with plain([tensor]) as (lent,):
                self._reduce(lent.detach().view(-1), ReduceOp(op), lap)

    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors of a mapping, in place, matched by name: its order does not matter.

        Raises:
            ConfigError: as for `all_reduce`; the text names the tensors that differ.
            PeerLost: a rank died, stopped or left; the contents of the tensors are undefined.
            ForkedError: called in a fork of the process that made the group.
        """
        ordered = dict(sorted(gradients.items()))
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in ordered.values():
            dtype_code(tensor.dtype), op_code(op, tensor.dtype)
            by_dtype.setdefault(tensor.dtype, []).append(tensor.detach())
        with self._call("all_reduce", *ordered.values()) as lap:
            manifest = {name: describe(tensor) for name, tensor in ordered.items()}
            self._agree(f"all_reduce_gradients {op}", manifest)
            for tensors in by_dtype.values():
                # One flat tensor, because each of many small ones would wait for the network.
                flat = torch.cat([tensor.reshape(-1).cpu() for tensor in tensors])
                self._reduce(flat, ReduceOp(op), lap)
                parts = torch.split(flat, [tensor.numel() for tensor in tensors])
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.view(tensor.shape))

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce `tensor` [size * n] and put this rank's n elements of the result into `output` [n].

        By an all-reduce of a copy.

        Raises:
            ConfigError: sizes do not fit, or as for `all_reduce`.
            PeerLost: a rank died, stopped or left.
            ForkedError: called in a fork of the process that made the group.
        """
        if output.dtype != tensor.dtype or tensor.numel() != self.size * output.numel():
            raise ConfigError(
                f"reduce_scatter of {describe(tensor)} into {describe(output)} among {self.size} ranks: "
                "need the same dtype, and one part of equal size per rank"
            )
        dtype_code(tensor.dtype), op_code(op, tensor.dtype)
        with self._call("reduce_scatter", tensor) as lap:
            self._agree(f"reduce_scatter {op} of {describe(tensor)}", {})
            whole = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).view(-1)
            self._reduce(whole, ReduceOp(op), lap)
            begin = self.rank * output.numel()
            output.detach().copy_(whole[begin : begin + output.numel()].view(output.shape))

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the `tensor` [n] of every rank, by rank of the world, into `output` [size * n].

        Raises:
            ConfigError: sizes do not fit, or as for `all_reduce`.
            PeerLost: a rank died, stopped or left.
            ForkedError: called in a fork of the process that made the group.
        """
        if output.dtype != tensor.dtype or output.numel() != self.size * tensor.numel():
            raise ConfigError(
                f"all_gather of {describe(tensor)} into {describe(output)} among {self.size} ranks: "
                "need the same dtype, and room for every rank's"
            )
        dtype_code(tensor.dtype)
        with self._call("all_gather", output), plain([output]) as (lent,):
            self._agree(f"all_gather of {describe(tensor)}", {})
            self._gather(lent.detach().view(self.size, -1), tensor.detach().cpu().contiguous().view(-1))

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Copy `tensor` of rank `root` of the world to every rank.

        Raises:
            ConfigError: there is no such rank, or as for `all_reduce`.
            PeerLost: a rank died, stopped or left.
            ForkedError: called in a fork of the process that made the group.
        """
        if not 0 <= root < self.size:
            raise ConfigError(f"root is {root} in a world of {self.size}")
        dtype_code(tensor.dtype)
        number, inside = self._nodes.place_of(root)
        with self._call("broadcast", tensor), plain([tensor]) as (lent,):
            self._agree(f"broadcast of {describe(tensor)} from rank {root}", {})
            if number == self._nodes.own:
                self._local.broadcast_tensor(lent, inside)
            self._spread(lent.detach().view(-1), number)

    def barrier(self) -> None:
        """Return once every rank of the world has called it.

        Raises:
            ConfigError: ranks do different things, or the strategy is closed.
            PeerLost: a rank died, stopped or left.
            ForkedError: called in a fork of the process that made the group.
        """
        with self._call("barrier"):
            self._agree("barrier", {})

    def close(self) -> None:
        """Leave the groups; a second call does nothing."""
        if self._worker is not None:
            self._worker.shutdown()
        self._local.close()
        if self._cross is not None:
            self._cross.close()

    @property
    def _nodes(self) -> Topology:
        if self._topology is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        return self._topology

    @contextmanager
    def _call(self, name: str, *tensors: torch.Tensor) -> Iterator[Lap]:
        """Count a call. If it fails on one level, tell the ranks of the other, which would wait for this one."""
        n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        with self._meter.lap(name, n_bytes) as lap:
            waiting = _waiting(self._local)
            try:
                yield lap
            except PeerLost as error:
                for give_up in (self._local.give_up, self._cross.give_up if self._cross else None):
                    try:
                        if give_up is not None:
                            give_up(str(error))
                    except (PeerLost, ConfigError, ForkedError):
                        pass  # that level is broken already
                raise
            finally:
                lap.waiting_s += _waiting(self._local) - waiting

    def _agree(self, what: str, manifest: Mapping[str, str]) -> None:
        """Raise ConfigError, on every rank, unless all make the same call; also a barrier."""
        tag = agreement.tag_of({"": what, **manifest})
        tags = torch.tensor([tag, -tag], dtype=torch.int64)
        self._local.all_reduce(tags, ReduceOp.MIN)
        if self._local.rank == 0 and self._cross is not None:
            self._cross.all_reduce(tags, ReduceOp.MIN)
        self._local.broadcast_tensor(tags, 0)
        if int(tags[0]) == -int(tags[1]):
            return

        def gather(own: torch.Tensor) -> list[torch.Tensor]:
            rows = own.new_empty(self.size, own.numel())
            self._gather(rows, own)
            return list(rows)

        exchange = agreement.TensorExchange(gather, self.size)
        raise ConfigError(agreement.difference(exchange, what, manifest))

    def _slices(self, count: int) -> list[int]:
        """Return the bounds of the ranks' slices of `count` elements: equal, and empty for ranks without a slice."""
        n_slices = self._nodes.n_slices
        return [count * min(rank, n_slices) // n_slices for rank in range(self._local.size + 1)]

    def _reduce(self, flat: torch.Tensor, op: ReduceOp, lap: Lap) -> None:
        """All-reduce a flat tensor in chunks: while one is transferred between nodes, the next is reduced inside."""
        worker = self._worker
        if worker is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        inside = ReduceOp.SUM if op is ReduceOp.MEAN else op
        floating = flat.is_floating_point()
        scale = 1.0 / self.size if op is ReduceOp.MEAN and floating else 1.0
        on_the_way: tuple[torch.Tensor, torch.Tensor, list[int], Future[None]] | None = None
        for chunk in torch.split(flat, max(1, _CHUNK_BYTES // flat.element_size())) if flat.numel() else ():
            bounds = self._slices(chunk.numel())
            rank = self._local.rank
            own = torch.empty(bounds[rank + 1] - bounds[rank], dtype=flat.dtype)
            self._local.reduce_scatter_slices(own, chunk, bounds, inside, scale=scale)
            sent = worker.submit(self._between, own, inside)
            if on_the_way is not None:
                self._finish(*on_the_way, lap)
            on_the_way = (chunk, own, bounds, sent)
        if on_the_way is not None:
            self._finish(*on_the_way, lap)
        if op is ReduceOp.MEAN and not floating:
            divide(flat, self.size)

    def _between(self, own: torch.Tensor, op: ReduceOp) -> None:
        if self._cross is not None and own.numel():
            self._cross.all_reduce(own, op)

    def _finish(
        self, chunk: torch.Tensor, own: torch.Tensor, bounds: Sequence[int], sent: Future[None], lap: Lap
    ) -> None:
        start = time.perf_counter()
        sent.result()
        lap.waiting_s += time.perf_counter() - start
        self._local.all_gather_slices(chunk, own, bounds)

    def _gather(self, rows: torch.Tensor, own: torch.Tensor) -> None:
        """Gather the tensor of every rank of the world into its row."""
        for number, members in enumerate(self._nodes.nodes):
            block = torch.empty(len(members) * own.numel(), dtype=own.dtype)
            if number == self._nodes.own:
                self._local.all_gather(block, own)
            self._spread(block, number)
            rows[list(members)] = block.view(len(members), -1)

    def _spread(self, flat: torch.Tensor, number: int) -> None:
        """Copy a tensor that all ranks of one node have to those of the other nodes, slice by slice."""
        bounds = self._slices(flat.numel())
        own = flat[bounds[self._local.rank] : bounds[self._local.rank + 1]]
        if self._cross is not None and own.numel():
            self._cross.broadcast_tensor(own, number)
        if number != self._nodes.own:
            self._local.all_gather_slices(flat, own, bounds)


class AllReduceStrategy(HierarchicalStrategy):
    """`HierarchicalStrategy` under the name that it has in zerfoo."""


def _waiting(local: ShmStrategy) -> float:
    return sum(metric.waiting_s for metric in local.metrics.values())
