"""Messages between two ranks of a group, beside its collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from softs_fast.collectives.backend.operands import Operands
from softs_fast.collectives.backend.work import (
    BackendLost,
    CallOutcome,
    Completer,
    Pending,
    SoftsWork,
    error_of,
)
from softs_fast.errors import PeerLost

_Call = Callable[[int, int, int, int, float], CallOutcome]

# Those of users have 31 bits.
_BARRIER_TAG = 1 << 31


class Rings(Protocol):
    """A ring for each ordered pair of ranks, as `_kernels.PointToPoint`."""

    def send(self, rank: int, address: int, n_bytes: int, tag: int, timeout_s: float, /) -> CallOutcome:
        """Send bytes to a rank."""

    def receive(self, rank: int, address: int, n_bytes: int, tag: int, timeout_s: float, /) -> CallOutcome:
        """Receive bytes from a rank."""

    def close(self) -> None:
        """End what is pending."""

    def abandon(self) -> None:
        """Leave what is pending, in a process that ends."""


class Messages:
    """Sends and receives tensors.

    Args:
        rings: What carries them.
        completer: What completes futures.
    """

    def __init__(self, rings: Rings, completer: Completer) -> None:
        self._rings = rings
        self._completer = completer
        self._pending = Pending()

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int, timeout_s: float) -> SoftsWork:
        """Send a tensor to a rank; the call ends when the memory of the tensor is free, whether it was received or not."""
        return self._give(self._rings.send, tensors, rank, tag, timeout_s, Operands.read)

    def receive(self, tensors: list[torch.Tensor], rank: int, tag: int, timeout_s: float) -> SoftsWork:
        """Receive a tensor from a rank."""
        return self._give(self._rings.receive, tensors, rank, tag, timeout_s, Operands.written)

    def _give(
        self,
        call: _Call,
        tensors: list[torch.Tensor],
        rank: int,
        tag: int,
        timeout_s: float,
        dense: Callable[[Operands, torch.Tensor], torch.Tensor],
    ) -> SoftsWork:
        used = Operands()
        (tensor,) = (dense(used, tensor) for tensor in tensors)
        try:
            outcome = call(rank, tensor.data_ptr(), tensor.nbytes, tag, timeout_s)
        except Exception as error:
            raise error_of(error) from None
        return self._pending.add(
            SoftsWork([outcome], used.kept, tensors, used.copy_back if used.copies else None, self._completer)
        )

    def monitored_barrier(self, rank: int, size: int, timeout_s: float, waits_for_all: bool) -> None:
        """Wait for all ranks.

        Args:
            rank: This process's number.
            size: Number of ranks.
            timeout_s: Longest wait for each rank, seconds.
            waits_for_all: Whether the error names all ranks that do not come, and not the first one alone.

        Raises:
            BackendLost: ranks did not come in time; the group goes on.
        """
        byte = torch.zeros(1, dtype=torch.uint8, device="cpu")
        if rank != 0:
            # Rank 0 waits for the others in turn.
            for call, limit_s in ((self._rings.send, timeout_s), (self._rings.receive, size * timeout_s)):
                error = self._passed(call, 0, byte, limit_s)
                if error is not None:
                    raise BackendLost(
                        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
                        f"send/recv from rank 0. Please check rank 0 logs for faulty rank. {error}"
                    )
            return
        lost: dict[int, Exception] = {}
        for other in range(1, size):
            error = self._passed(self._rings.receive, other, byte, timeout_s)
            if error is not None:
                lost[other] = error
                if not waits_for_all:
                    break
        if lost:
            raise BackendLost(
                f"Rank{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))} failed to pass monitoredBarrier in "
                f"{round(1e3 * timeout_s)} ms: {'; '.join(map(str, lost.values()))}"
            )
        for other in range(1, size):
            self._passed(self._rings.send, other, byte, timeout_s)

    def _passed(self, call: _Call, rank: int, byte: torch.Tensor, timeout_s: float) -> Exception | None:
        """Send a byte, or receive one; return why that failed."""
        outcome = call(rank, byte.data_ptr(), 1, _BARRIER_TAG, timeout_s)
        while not outcome.wait(timeout_s):
            pass
        try:
            outcome.differences()
        except PeerLost as error:
            return error
        return None

    def close(self) -> None:
        """End what is pending."""
        self._rings.close()

    def abandon(self) -> None:
        """Leave what is pending, in a process that ends."""
        self._rings.abandon()
