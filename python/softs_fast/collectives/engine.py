"""Groups that move tensors between their ranks; engines do so over connections: what all of them do, and how one ends."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import torch

from softs_fast.collectives import agreement
from softs_fast.collectives.reasons import Reasons
from softs_fast.collectives.strategy import ReduceOp
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.process import check_process


class Collectives(ABC):
    """The calls of a group. But for `agree` they compare nothing: their caller knows that all ranks make the same one."""

    @abstractmethod
    def agree(self, what: str, manifest: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise ConfigError, on every rank, unless all describe the same call; also a barrier.

        Args:
            what: Description of this rank's call.
            manifest: Descriptions of its tensors, by name.
        """

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce in place."""

    @abstractmethod
    def reduce_parts(self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce a tensor of one part for each rank, and put this rank's into `output`, flat, which may be that part."""

    @abstractmethod
    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the tensor of every rank, one after another, into `output`; the own one may be there already."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Copy the tensor of rank `root` to every rank."""


class Engine(Collectives):
    """Ranks that are connected. Calls are made inside `call`, one at a time.

    Args:
        rank: This process's number.
        size: Number of ranks.
        reasons: Place where a rank that gives up tells the others why; None if there is none.

    Attributes:
        lost: Ranks that ended the group without a word, as far as this rank knows; empty while it works.
    """

    def __init__(self, rank: int, size: int, reasons: Reasons | None = None) -> None:
        self.rank = rank
        self.size = size
        self.lost: list[int] = []
        self._reasons = reasons
        self._broken = ""
        self._pid = os.getpid()

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Raise the errors of the group inside as PeerLost. A call that ends midway ends the group, on all ranks.

        Raises:
            PeerLost: the group failed: a rank died, or was too late; or `give_up` was called.
        """
        self._check_process()
        self._check_usable()
        try:
            yield
        except ConfigError:
            raise
        except (PeerLost, RuntimeError) as error:
            # The cause that this rank gave comes first.
            self.give_up(self._broken or self._cause(name, error))
            raise PeerLost(self._broken) from error
        except BaseException as error:
            # The other ranks are in the middle of the call, and the next one of this rank must not meet it.
            self.give_up(f"{name} was interrupted by {type(error).__name__}")
            raise

    def agree(self, what: str, manifest: Mapping[str, str] = MappingProxyType({})) -> None:
        """Compare descriptions by one small all-gather."""
        tag = agreement.tag_of({"": what, **manifest})
        tags = [int(other) for other in self.gather(torch.tensor([tag], dtype=torch.int64, device="cpu"))]
        if any(other != tag for other in tags):
            exchange = agreement.TensorExchange(self.gather, self.size)
            raise ConfigError(agreement.difference(exchange, what, manifest))

    @abstractmethod
    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, of one size, by rank."""

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the tensor of every rank, one after another, into `output`; the own one may be there already."""
        every = self.gather(tensor.detach().resolve_neg().contiguous().view(-1).view(torch.uint8))
        output.detach().copy_(torch.cat(every).view(output.dtype).view(output.shape))

    def reduce_parts(self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce a tensor of one part for each rank, in the order of the ranks."""
        flat = tensor.detach().resolve_neg().contiguous().view(-1)
        self.reduce_scatter(output, flat, [rank * output.numel() for rank in range(self.size + 1)], op)

    @abstractmethod
    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, bounds: Sequence[int], op: ReduceOp
    ) -> None:
        """Put elements `bounds[rank]` to `bounds[rank + 1]` of the reduced tensor into `output`.

        Each rank sends to each other one that one's elements only. They are added in the order of the ranks, 16-bit
        floats in float32.

        Args:
            output: Flat tensor for this rank's elements; may be these elements of `tensor`.
            tensor: Flat tensor of `bounds[-1]` elements.
            bounds: Bounds of the ranks' slices, from 0, increasing; the same on every rank.
            op: The reduction.
        """

    def give_up(self, reason: str) -> None:
        """End the pending calls of this rank, and those that wait for it; later ones raise PeerLost. Idempotent."""
        self._check_process()
        if not self._broken:
            self._broken = reason
            if self._reasons is not None:
                self._reasons.tell(self.rank, self.lost, reason)
        self._end()

    def close(self) -> None:
        """Release the group; a second call does nothing. In a fork this does nothing: the group is the parent's."""
        if os.getpid() == self._pid:
            self._broken = self._broken or "the group is closed"
            self._release()

    @abstractmethod
    def _end(self) -> None:
        """End pending calls, from any thread. Idempotent."""

    @abstractmethod
    def _release(self) -> None:
        """Release the connections. Idempotent."""

    @abstractmethod
    def _loss(self, error: Exception) -> tuple[list[int], str]:
        """Return the ranks that have ended, as far as an error or the connections tell, and a text of what failed."""

    def _check_process(self) -> None:
        check_process(self._pid, f"a process group of {self.size} ranks")

    def _check_usable(self) -> None:
        if self._broken:
            raise PeerLost(self._broken)

    def _cause(self, name: str, error: Exception) -> str:
        """Return why a call failed: what a rank that gave up has told, or which ranks have ended."""
        # Each rank that gave up has told why before it shut its connections down, so those that are closed now without a
        # word are lost.
        ended, text = self._loss(error)
        told = None if self._reasons is None else self._reasons.told()
        if told is not None:
            rank, self.lost, reason = told
            return reason if self.lost else f"rank {rank} gave up: {reason}"
        self.lost = ended
        return f"{name} among {self.size} ranks failed: {text}"


def divide(tensor: torch.Tensor, divisor: int) -> None:
    """Divide in place; integers are truncated toward zero."""
    with torch.no_grad():
        if tensor.is_floating_point():
            tensor.mul_(1.0 / divisor)
        else:
            tensor.copy_(torch.div(tensor, divisor, rounding_mode="trunc"))
