"""Ranks that are killed under load: the others learn which, form a new group, and end by themselves."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from softs_fast.collectives import CudaStrategy
from softs_fast.errors import PeerLost
from softs_fast.gpu import ranks

from .all_reduce import TWO_SHOT, device_of
from .expect import expect, expect_raises
from .on_device import synchronize, to_device

__all__ = ["check", "check_rebuild"]

_SIZE = 4
#: Killed one after the other; numbers of the first group.
_VICTIMS = (0, 2)
#: Long enough that a rank that ends by it, and not because a death was noticed, is reported by the watchdog.
_NEVER_S = 300.0


def check(quick: bool) -> dict[str, Any]:
    """Kill two of four ranks, one after the other, each in the middle of all-reduces without a pause."""
    check_rebuild()
    return {"note": f"{len(_VICTIMS)} of {_SIZE} ranks killed, the group rebuilt after each"}


def check_rebuild() -> None:
    """Kill ranks under load; check that each death is named, and that the group of the others reduces rightly.

    Raises:
        AssertionError: a rank that is left fails, hangs, or reduces to another result.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sf") as folder,
        ranks.start(_goes_on_without, _SIZE, folder) as running,
    ):
        pids = _checked(running.results())
        for victim in _VICTIMS:
            os.kill(pids[victim], signal.SIGKILL)
            said = _checked(running.results())
            for rank, text in enumerate(said):
                expect(
                    text is None or f"(process {pids[victim]}" in text,
                    f"rank {rank} did not name process {pids[victim]}: {text}",
                )
        left = [rank for rank in range(_SIZE) if rank not in _VICTIMS]
        told = _checked(running.results())
        for new, rank in enumerate(left):
            need = (new, len(left), float(sum(left)))
            expect(told[rank] == need, f"rank {rank}, size and sum are {told[rank]}; need {need}")
        for rank in left:
            running.processes[rank].join(ranks.WATCHDOG_S)
            status = running.processes[rank].exitcode
            expect(status == 0, f"rank {rank} ended with {status} after its work; need 0")


def _goes_on_without(say: Callable[[Any], None], rank: int, size: int, folder: str) -> tuple[int, int, float]:
    strategy = CudaStrategy(
        device=device_of(rank),
        timeout_s=_NEVER_S,
        staging_bytes=TWO_SHOT.chunk_bytes,
        schedule=TWO_SHOT,
        name="again",
    )
    strategy.init(rank, size, folder)
    tensor = to_device(torch.zeros(1000), strategy.device)
    say(os.getpid())
    for _ in _VICTIMS:
        lost = expect_raises(PeerLost, lambda: _reduce_for_ever(strategy, tensor), "a rank was killed")
        strategy.rebuild()
        say(str(lost))
    tensor.fill_(float(rank))
    synchronize(strategy.device)
    strategy.all_reduce(tensor)
    strategy.barrier()
    result = strategy.rank, strategy.size, float(tensor[0])
    strategy.close()
    return result


def _reduce_for_ever(strategy: CudaStrategy, tensor: torch.Tensor) -> None:
    while True:
        strategy.all_reduce(tensor)


def _checked(results: list[Any]) -> list[Any]:
    for rank, result in enumerate(results):
        expect(not isinstance(result, ranks.Raised), f"rank {rank}: {getattr(result, 'trace', '')}")
    return results
