"""Collectives through rank 0 of a group, over gRPC."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist

from ...collectives import (
    Gradients,
    Lap,
    Meter,
    OpMetrics,
    ReduceOp,
    RefusedByAll,
    Strategy,
    agreement,
    as_rendezvous,
    bytes_of,
    check_parts,
    check_root,
    describe,
    name_of,
    operand,
)
from ...errors import ConfigError, PeerLost, SoftsError
from ...process import check_process
from ...tensors import as_plain, shard_of
from . import pieces
from .calls import Call, RankMetrics
from .leaf import Leaf
from .options import Epoch, StarOptions
from .root import Root

__all__ = ["GrpcStrategy"]

_log = logging.getLogger(__name__)

_BOOT_BYTES = 8
#: Of the exchanges that find out how calls differ; all ranks know that they make one.
_EXCHANGE_TAG = 1
_ADDRESS_KEY = "star address"


class GrpcStrategy(Strategy):
    """A `Strategy` through rank 0, over gRPC with TLS, certificates and tokens, and one open port.

    It is for few ranks that need that; `LinkStrategy` is faster. All ranks get the same bits, those of
    `ShmStrategy`: every element is summed in the order of the ranks, 16-bit floats in float32. A call has no limit of
    size; rank 0 has up to 8 pieces of 1 MiB of each other rank in memory.

    If a rank dies, stops, is too late or leaves, all others raise a PeerLost that names it, and the group is over.

    Args:
        options: Addresses and credentials; None for ranks of this machine and user.
        timeout_s: Seconds to wait for the slowest rank, in each step of a call.
        name: Name that distinguishes groups that use the same rendezvous.
        logger: Logger of what happens; None for the logger of this module.

    Raises:
        ConfigError: an argument is out of range.

    Example:
        >>> import tempfile, torch
        >>> from softs_fast.coordination.star import GrpcStrategy
        >>> with tempfile.TemporaryDirectory() as folder, GrpcStrategy().init(0, 1, folder) as strategy:
        ...     gradient = torch.ones(3)
        ...     strategy.all_reduce(gradient, "mean")
        >>> gradient
        tensor([1., 1., 1.])

    Source: own, see docs/coordination.md.
    """

    def __init__(
        self,
        options: StarOptions | None = None,
        *,
        timeout_s: float = 30.0,
        name: str = "star",
        logger: logging.Logger | None = None,
    ) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s is {timeout_s}; need more than 0 s")
        self._options = options or StarOptions()
        self._timeout_s = timeout_s
        self._name = name
        self._logger = logger or _log
        self._place: Root | Leaf | None = None
        self._rank, self._size = 0, 0
        self._closed = False
        self._given_up = ""
        self._pid = os.getpid()
        self._meter = Meter()

    def init(self, rank: int, size: int, rendezvous: object) -> Self:
        """Join the group of all ranks; return self. A strategy that was closed may join another group.

        Args:
            rank: Number of this process.
            size: Number of ranks.
            rendezvous: Rendezvous of the ranks, as for `ShmStrategy.init`; distributes the address of rank 0 and a
                random number that names the group.

        Raises:
            ConfigError: an argument is wrong, ranks have different ones, or rank 0 refuses this one.
            PeerLost: a rank did not join in time.
            EndpointInUse: another process listens at the address of rank 0.
        """
        self._check_free(rank, size)
        place = as_rendezvous(rendezvous, rank, size, name=self._name, timeout_s=self._timeout_s)
        if rank == 0:
            epoch = Epoch(secrets.randbits(8 * _BOOT_BYTES), 1)
            root = Root(size, epoch, self._options, self._timeout_s, self._logger)
            self._enter(root, rank, size)
            said = epoch.boot.to_bytes(_BOOT_BYTES, "little") + root.address.encode()
            with self._closing_on_error():
                place.exchange(said, self._timeout_s)
        else:
            said = place.exchange(b"", self._timeout_s)[0]
            epoch = Epoch(int.from_bytes(said[:_BOOT_BYTES], "little"), 1)
            address = said[_BOOT_BYTES:].decode(errors="replace")
            leaf = Leaf(rank, size, address, epoch, self._options, self._timeout_s, self._logger)
            self._enter(leaf, rank, size)
        self._meet()
        place.close()
        return self

    def meet(
        self, rank: int, size: int, store: dist.Store, epoch: Epoch, *, connect_timeout_s: float | None = None
    ) -> Self:
        """Join the group of an epoch, of ranks that find rank 0 in a store for this group alone; return self.

        Args:
            rank: Number of this process.
            size: Number of ranks.
            store: Store of which no other group has used a key.
            epoch: Epoch of the group, with the workers of the ranks.
            connect_timeout_s: Seconds to wait for the others until all have joined; None for `timeout_s`.

        Raises:
            ConfigError: an argument is wrong, ranks have different ones, or rank 0 refuses this one.
            PeerLost: a rank did not join in time, or the store has ended.
            EndpointInUse: another process listens at the address of rank 0.
        """
        self._check_free(rank, size)
        wait_s = self._timeout_s if connect_timeout_s is None else connect_timeout_s
        if rank == 0:
            root = Root(size, epoch, self._options, wait_s, self._logger)
            self._enter(root, rank, size)
            with self._closing_on_error():
                store.set(_ADDRESS_KEY, root.address)
        else:
            try:
                store.wait([_ADDRESS_KEY], timedelta(seconds=wait_s))
                address = store.get(_ADDRESS_KEY).decode(errors="replace")
            except RuntimeError as error:
                raise PeerLost(f"rank 0 has not come within {wait_s:g} s: {error}") from error
            self._enter(Leaf(rank, size, address, epoch, self._options, wait_s, self._logger), rank, size)
        self._meet()
        return self

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self._rank if self._joined else 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size if self._joined else 0

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics so far, by the name of the operation."""
        return self._meter.metrics

    @property
    def rank_metrics(self) -> dict[int, RankMetrics]:
        """What rank 0 has done for each other rank; empty on these."""
        place = self._joined
        return place.calls.metrics if isinstance(place, Root) else {}

    @property
    def n_refused(self) -> int:
        """Processes that rank 0 has refused; 0 on other ranks."""
        place = self._joined
        return place.n_refused if isinstance(place, Root) else 0

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place.

        Source: own, see docs/coordination.md; a star, every element in the order of the ranks.
        """
        with RefusedByAll(self._agree, "all_reduce"):
            local = operand(tensor, op)
        what = f"all_reduce {op} of {describe(local, shard_of(tensor))}"
        self._reduce("all_reduce", what, {}, [local], op)

    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor | None], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors of a mapping, in place, matched by name: its order does not matter."""
        own = Gradients.of(gradients, op)
        # Tensors of one dtype lie together, so that a piece has one dtype.
        ordered = [tensor for tensors in own.by_dtype().values() for tensor in tensors]
        self._reduce("all_reduce_gradients", f"all_reduce_gradients {op}", own.manifest, ordered, op)
        own.raise_if_refused()

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce `tensor` [size * n] and put this rank's n elements of the result into `output` [n]."""
        with RefusedByAll(self._agree, "reduce_scatter"):
            source = operand(tensor, op, written=False)
            target = operand(output, name="output")
            check_parts("reduce_scatter", source, target, self.size)
        own = torch.empty(target.numel(), dtype=target.dtype, device="cpu")
        run = pieces.Run(name_of(source.dtype), target.numel(), source.element_size())
        cut = pieces.reduce_scatter(run, self.size, self._options.piece_bytes)
        what = f"reduce_scatter {op} of {describe(source)}"
        with self._call("reduce_scatter", source) as place:
            self._make(
                place, what, {}, cut, pieces.Flat([as_plain(source)]), pieces.Flat([own]), ReduceOp(op)
            )
            self._write(place, target, own)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the `tensor` [n] of every rank, one after another, into `output` [size * n]."""
        with RefusedByAll(self._agree, "all_gather"):
            source = operand(tensor, written=False)
            target = operand(output, name="output")
            check_parts("all_gather", target, source, self.size)
        with self._call("all_gather", target) as place:
            every = torch.empty(target.numel(), dtype=target.dtype, device="cpu")
            self._gather(place, f"all_gather of {describe(source)}", as_plain(source), every)
            self._write(place, target, every)

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Copy `tensor` of rank `root` to every rank."""
        with RefusedByAll(self._agree, "broadcast"):
            local = operand(tensor)
            check_root(root, self.size)
        what = f"broadcast of {describe(local, shard_of(tensor))} from rank {root}"
        with self._call("broadcast", local) as place:
            lent = as_plain(local)
            cut = pieces.broadcast(lent.numel() * lent.element_size(), root, self._options.piece_bytes)
            flat = pieces.Flat([lent])
            self._make(place, what, {}, cut, flat, flat, ReduceOp.SUM)
            if self.rank != root:
                self._write(place, local, lent)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._agree("barrier")

    def give_up(self, reason: str) -> None:
        """End all calls at once: on this rank with `reason`, on the others with a text that names this rank.

        May be called from any thread. No tensor is written after it has returned. For a new group, close the strategy
        and call `init`, or make a new one.
        """
        place = self._place
        if place is None:
            # It is being made, and ends then.
            self._given_up = reason
        elif os.getpid() == self._pid:
            place.give_up(reason)

    def close(self) -> None:
        """Leave the group; a second call does nothing. In a fork it does nothing either."""
        self._closed, self._given_up = True, ""
        place, self._place = self._place, None
        if place is not None and os.getpid() == self._pid:
            place.close()

    # --- Joining ---

    def _check_free(self, rank: int, size: int) -> None:
        if self._place is not None:
            raise ConfigError("this strategy is in a group already; close it first, or make another one")
        if not 0 <= rank < size:
            raise ConfigError(f"rank is {rank} in a group of {size}")

    def _enter(self, place: Root | Leaf, rank: int, size: int) -> None:
        self._place, self._rank, self._size, self._closed = place, rank, size, False
        self._pid, self._meter = os.getpid(), Meter()
        if self._given_up:
            place.give_up(self._given_up)

    def _meet(self) -> None:
        """Wait until all ranks have joined."""
        with self._closing_on_error():
            self.barrier()
            self._joined.calls.timeout_s = self._timeout_s
        self._meter = Meter()

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.give_up(f"the group was not formed: {error}")
            self.close()
            raise

    @property
    def _joined(self) -> Root | Leaf:
        place = self._place
        if self._closed:
            raise ConfigError("the group is closed")
        if place is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        check_process(self._pid, f"this group of {self._size} ranks")
        return place

    # --- Calls ---

    @contextmanager
    def _call(self, name: str, *tensors: torch.Tensor) -> Iterator[Root | Leaf]:
        """Count a call. One that ends midway ends the group, on all ranks."""
        place = self._joined
        with self._meter.lap(name, bytes_of(tensors)) as lap, _waits(place, lap):
            try:
                yield place
            except SoftsError:
                raise
            except BaseException as error:
                # The other ranks are in the middle of the call, and the next one of this rank must not meet it.
                self.give_up(f"{name} was interrupted by {type(error).__name__}")
                raise

    def _reduce(
        self,
        name: str,
        what: str,
        manifest: Mapping[str, str],
        tensors: Sequence[torch.Tensor],
        op: ReduceOp | str,
    ) -> None:
        with self._call(name, *tensors) as place:
            lent = [as_plain(tensor) for tensor in tensors]
            flat = pieces.Flat(lent)
            cut = pieces.all_reduce(list(_runs(lent)), self._options.piece_bytes)
            # Without tensors it is a comparison of calls, also of one with an unknown operation.
            self._make(place, what, manifest, cut, flat, flat, ReduceOp(op) if tensors else ReduceOp.SUM)
            for tensor, copy in zip(tensors, lent, strict=True):
                self._write(place, tensor, copy)

    def _gather(self, place: Root | Leaf, what: str, own: torch.Tensor, every: torch.Tensor) -> None:
        n_bytes = own.numel() * own.element_size()
        cut = pieces.all_gather(n_bytes, self._size, self._options.piece_bytes)
        target = pieces.Flat([every])
        self._make(place, what, {}, cut, pieces.Flat([own]), target, ReduceOp.SUM)
        every.view(self._size, -1)[self._rank] = own.view(-1)

    def _agree(self, what: str) -> None:
        """Raise ConfigError unless every rank does the same; a call of all of them."""
        with self._call("barrier") as place:
            self._make(
                place, what, {}, pieces.all_reduce([], 1), pieces.Flat([]), pieces.Flat([]), ReduceOp.SUM
            )

    def _make(
        self,
        place: Root | Leaf,
        what: str,
        manifest: Mapping[str, str],
        cut: Sequence[pieces.Piece],
        source: pieces.Flat,
        target: pieces.Flat,
        op: ReduceOp,
    ) -> None:
        """Make a call; raise ConfigError if those of the ranks differ."""
        tag = agreement.tag_of({"": what, **manifest})
        if not place.calls.make(Call(what, tag, cut, source, target, op)):
            exchange = agreement.TensorExchange(self._exchange, self._size)
            raise ConfigError(agreement.difference(exchange, what, manifest))

    def _exchange(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, of one size, by rank."""
        every = torch.empty(self._size * own.numel(), dtype=own.dtype, device="cpu")
        cut = pieces.all_gather(own.numel() * own.element_size(), self._size, self._options.piece_bytes)
        call = Call("the comparison of calls", _EXCHANGE_TAG, cut, pieces.Flat([own]), pieces.Flat([every]))
        if not self._joined.calls.make(call):
            raise PeerLost("ranks are out of step: one compares calls, and another one does not")
        rows = every.view(self._size, -1)
        rows[self._rank] = own
        return list(rows)

    def _write(self, place: Root | Leaf, tensor: torch.Tensor, result: torch.Tensor) -> None:
        """Copy a result to a tensor that is not in plain host memory, or that was not to be written before."""
        if tensor.data_ptr() == result.data_ptr():
            return
        with place.boxes.writing(), torch.no_grad():
            tensor.copy_(result.view(tensor.shape))


@contextmanager
def _waits(place: Root | Leaf, lap: Lap) -> Iterator[None]:
    """Note for how long a call has waited for other ranks."""
    before_s = place.calls.waited_s
    try:
        yield
    finally:
        lap.waiting_s += place.calls.waited_s - before_s


def _runs(tensors: Iterable[torch.Tensor]) -> Iterator[pieces.Run]:
    """Yield the runs of one dtype of tensors in their order."""
    run: pieces.Run | None = None
    for tensor in tensors:
        dtype, n_items = name_of(tensor.dtype), tensor.numel()
        if run is not None and run.dtype == dtype:
            run = pieces.Run(dtype, run.n_items + n_items, run.item_bytes)
            continue
        if run is not None:
            yield run
        run = pieces.Run(dtype, n_items, tensor.element_size())
    if run is not None:
        yield run
