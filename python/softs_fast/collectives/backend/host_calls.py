"""The calls of c10d among ranks of several hosts: what `_kernels.Call` describes for one host, over connections.

Ranks have compared the texts of their calls before one is made, so all of them make the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from softs_fast.collectives.engine import Collectives
from softs_fast.collectives.levels import Levels
from softs_fast.collectives.link_engine import LinkEngine, memory_of
from softs_fast.collectives.strategy import ReduceOp
from softs_fast.collectives.tensors import DTYPE_CODES, name_of
from softs_fast.errors import ConfigError
from softs_fast.kernels import reduce

Tensor = torch.Tensor
Pieces = Sequence[tuple[int, int]]

#: Below this each rank sends to all others: two levels would take more messages than they save bytes.
SMALLEST_BYTES = 1 << 20
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}
_OPS = (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MIN, ReduceOp.MAX)


@dataclass(frozen=True)
class Ranks:
    """The connections of a rank.

    Attributes:
        engine: Connections with all ranks.
        levels: Groups inside the host and between hosts; None where no two ranks share a host.
    """

    engine: LinkEngine
    levels: Levels | None

    def best_for(self, tensor: Tensor, op: ReduceOp | None = None) -> Collectives:
        """Return the levels if a tensor is worth them, and they reduce it; else all connections."""
        # The sum of which they make a mean may not fit into whole numbers.
        is_exact = op is not ReduceOp.MEAN or tensor.is_floating_point()
        return (self.levels_of(tensor.nbytes) if is_exact else None) or self.engine

    def levels_of(self, n_bytes: int) -> Levels | None:
        """Return the levels if so many bytes are worth them."""
        return self.levels if n_bytes >= SMALLEST_BYTES else None

    def end(self, reason: str) -> None:
        """End pending calls on all ranks, and those that follow; from any thread."""
        self.engine.give_up(reason)
        if self.levels is not None:
            self.levels.abort(reason)

    @property
    def others(self) -> list[int]:
        """The other ranks."""
        return [rank for rank in range(self.engine.size) if rank != self.engine.rank]


@dataclass(frozen=True)
class HostCall:
    """A collective call.

    Attributes:
        text: Text that all ranks must have alike.
        make: Function that makes the call.
    """

    text: str
    make: Callable[[Ranks], None]


class HostCalls:
    """Makes calls from addresses; the functions are those of `_kernels.Call`."""

    @staticmethod
    def barrier() -> HostCall:
        """Return a call that waits for all ranks."""
        return HostCall("barrier", lambda ranks: None)

    @staticmethod
    def all_reduce(pieces: Pieces, dtype: int, op: int, root: int = -1, shared: object = None) -> HostCall:
        """Return a call that reduces pieces in place, on the root alone if there is one."""
        tensors = [_tensor(address, n, _DTYPES[dtype]) for address, n in pieces]
        kind = _OPS[op]

        def make(ranks: Ranks) -> None:
            flat = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
            if root >= 0:
                _reduce_to(ranks, flat, kind, root)
            else:
                ranks.best_for(flat, kind).all_reduce(flat, kind)
            if len(tensors) > 1:
                for tensor, part in zip(tensors, torch.split(flat, [n for _, n in pieces]), strict=True):
                    tensor.copy_(part)

        to = "" if root < 0 else f" to rank {root}"
        return HostCall(f"all_reduce {kind} of {_described(tensors)}{to}", make)

    @staticmethod
    def reduce_scatter(pieces: Pieces, target: int, dtype: int, op: int) -> HostCall:
        """Return a call that reduces piece r of all ranks into the target of rank r."""
        tensors = [_tensor(address, n, _DTYPES[dtype]) for address, n in pieces]
        kind = _OPS[op]

        def make(ranks: Ranks) -> None:
            output = _tensor(target, tensors[ranks.engine.rank].numel(), _DTYPES[dtype])
            whole = _joined(tensors)
            ranks.best_for(whole, kind).reduce_parts(output, whole, kind)

        return HostCall(f"reduce_scatter {kind} of {_described(tensors)}", make)

    @staticmethod
    def all_gather(source: int, pieces: Pieces, root: int = -1) -> HostCall:
        """Return a call that copies the source of rank r into piece r, in bytes; an address of 0 takes nothing."""
        sizes = [n for _, n in pieces]

        def make(ranks: Ranks) -> None:
            engine = ranks.engine
            own = _tensor(source, sizes[engine.rank], torch.uint8)
            if root not in (-1, engine.rank):
                engine.exchange([(root, memory_of(own))], [])
                return
            places = [_tensor(*piece, torch.uint8) for piece in pieces]
            # By what is alike on all ranks: where the places are is not.
            if root < 0 and len(set(sizes)) == 1 and (levels := ranks.levels_of(sum(sizes))) is not None:
                whole = _joined(places)
                levels.all_gather(whole, own)
                if not _is_dense(pieces):
                    for place, row in zip(places, whole.view(len(places), -1), strict=True):
                        place.copy_(row)
                return
            places[engine.rank].copy_(own)
            sends = [] if root >= 0 else [(other, memory_of(own)) for other in ranks.others]
            engine.exchange(sends, [(other, memory_of(places[other])) for other in ranks.others])

        to = "" if root < 0 else f" to rank {root}"
        return HostCall(f"all_gather of {_numbers(sizes)} bytes{to}", make)

    @staticmethod
    def broadcast(data: int, n_bytes: int, root: int) -> HostCall:
        """Return a call that copies bytes of the root to all ranks."""
        tensor = _tensor(data, n_bytes, torch.uint8)

        def make(ranks: Ranks) -> None:
            ranks.best_for(tensor).broadcast(tensor, root)

        return HostCall(f"broadcast of {n_bytes} bytes from rank {root}", make)

    @staticmethod
    def scatter(pieces: Pieces, target: int, n_bytes: int, root: int) -> HostCall:
        """Return a call that copies piece r of the root, in bytes, into the target of rank r."""
        tensor = _tensor(target, n_bytes, torch.uint8)

        def make(ranks: Ranks) -> None:
            if ranks.engine.rank != root:
                ranks.engine.exchange([], [(root, memory_of(tensor))])
                return
            parts = [_tensor(*piece, torch.uint8) for piece in pieces]
            ranks.engine.exchange([(other, memory_of(parts[other])) for other in ranks.others], [])
            tensor.copy_(parts[root])

        return HostCall(f"scatter of {n_bytes} bytes from rank {root}", make)

    @staticmethod
    def all_to_all(sources: Pieces, targets: Pieces) -> HostCall:
        """Return a call that sends source r to rank r, and gets target r from it; in bytes."""

        def make(ranks: Ranks) -> None:
            engine = ranks.engine
            own = torch.tensor([[n for _, n in sources], [n for _, n in targets]], device="cpu")
            sent, expected = torch.stack(engine.gather(own)).unbind(1)
            # Each rank sees the numbers of all, so all refuse the call, or none.
            for one, other in (sent != expected.T).nonzero().tolist():
                raise ConfigError(
                    f"all_to_all: rank {one} sends {int(sent[one, other])} bytes to rank {other}, which takes "
                    f"{int(expected[other, one])}"
                )
            parts = [_tensor(*piece, torch.uint8) for piece in sources]
            places = [_tensor(*piece, torch.uint8) for piece in targets]
            places[engine.rank].copy_(parts[engine.rank])
            engine.exchange(
                [(other, memory_of(parts[other])) for other in ranks.others],
                [(other, memory_of(places[other])) for other in ranks.others],
            )

        return HostCall("all_to_all", make)


def _reduce_to(ranks: Ranks, flat: Tensor, op: ReduceOp, root: int) -> None:
    """Reduce in place on the root, in the order of the ranks; the tensors of others stay as they are."""
    engine = ranks.engine
    if engine.rank != root:
        engine.exchange([(root, memory_of(flat))], [])
        return
    rows = [flat if rank == root else torch.empty_like(flat) for rank in range(engine.size)]
    engine.exchange([], [(other, memory_of(rows[other])) for other in ranks.others])
    reduce(rows, flat, op)


def memory_at(address: int, n_bytes: int) -> memoryview:
    """Return memory that the caller of the backend keeps, writable."""
    if not n_bytes:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * n_bytes).from_address(address)).cast("B")


def _tensor(address: int, n: int, dtype: torch.dtype) -> Tensor:
    """Return a flat tensor on memory that the caller of the backend keeps; an address of 0 has none."""
    if not n or not address:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer(memory_at(address, n * dtype.itemsize), dtype=dtype)


def _is_dense(pieces: Pieces) -> bool:
    """Return whether pieces of one size follow each other in memory."""
    first, each = pieces[0]
    return all(piece == (first + number * each, each) for number, piece in enumerate(pieces))


def _joined(parts: list[Tensor]) -> Tensor:
    """Return parts of one size as one tensor: a view where they follow each other in memory, else a copy."""
    first = parts[0]
    if _is_dense([(part.data_ptr(), part.nbytes) for part in parts]):
        return _tensor(first.data_ptr(), len(parts) * first.numel(), first.dtype)
    return torch.cat(parts)


def _described(tensors: list[Tensor]) -> str:
    return f"{name_of(tensors[0].dtype)} [{_numbers([tensor.numel() for tensor in tensors])}]"


def _numbers(numbers: list[int]) -> str:
    """Return numbers of which many may be the same."""
    if len(set(numbers)) == 1:
        return f"{len(numbers)} x {numbers[0]}" if len(numbers) > 1 else str(numbers[0])
    return ", ".join(map(str, numbers))
