"""Wrong results without an error, known from other libraries: none of the strategies gives one."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hierarchies
import pytest
import ranks
from lost_ranks import SOON_S
from right_results import check_results

from softs_fast.collectives import LinkStrategy, ShmStrategy, Strategy
from softs_fast.errors import PeerLost

SIZE = 3
KINDS = ["inside", "link", "nodes"]


def strategy_of(kind: str, rank: int, size: int, folder: str, timeout_s: float = 20.0) -> Strategy:
    if kind == "inside":
        shm = ShmStrategy(timeout_s=timeout_s, schedule=hierarchies.SCHEDULE)
        return shm.init(rank, size, folder)
    if kind == "link":
        return LinkStrategy(timeout_s=timeout_s).init(rank, size, folder)
    # A rank between the others, without a leading rank at the lowest number of its node.
    return hierarchies.joined(rank, [[1], [0, 2]], folder, timeout_s)


def checks(say: Callable[[Any], None], rank: int, size: int, folder: str, kind: str) -> None:
    with strategy_of(kind, rank, size, folder) as strategy:
        check_results(strategy, rank, size)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_this_call_and_of_all_ranks(tmp_path: Path, kind: str) -> None:
    ranks.run(checks, SIZE, str(tmp_path), kind)


def comes_late(say: Callable[[Any], None], rank: int, size: int, folder: str, kind: str) -> Any:
    """The last rank comes when the others have given up: no arrival is kept for later, or counted twice."""
    # Before there are threads, such as those of gRPC: one that does not block it would take it, and end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    strategy = strategy_of(kind, rank, size, folder, SOON_S)
    say(os.getpid())
    if rank == size - 1:
        signal.sigwait([signal.SIGUSR1])
        # Every rank has called this one, so it may pass in shared memory.
        with suppress(PeerLost):
            strategy.barrier()
    for _ in range(3):
        with pytest.raises(PeerLost):
            strategy.barrier()
    say("gave up")
    # A process that ends closes its connections.
    signal.sigwait([signal.SIGUSR1])
    strategy.close()
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_barrier_that_has_failed_passes_for_no_rank_that_comes_later(tmp_path: Path, kind: str) -> None:
    with ranks.start(comes_late, SIZE, str(tmp_path), kind) as running:
        pids = running.results()
        assert [running.receive(rank) for rank in range(SIZE - 1)] == ["gave up"] * (SIZE - 1)
        os.kill(pids[-1], signal.SIGUSR1)
        assert running.receive(SIZE - 1) == "gave up"
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        assert running.results() == [""] * SIZE
