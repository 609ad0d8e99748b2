"""`ShmStrategy.end`: pending calls of all ranks end at once, from any thread, whatever a rank that is stopped does."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hierarchies
import pytest
import ranks
import torch
from lost_ranks import reduce_for_ever

from softs_fast.collectives import ShmStrategy
from softs_fast.errors import PeerLost


def ended_in_a_call(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    # Before the test knows the process, and before there are threads.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    strategy = ShmStrategy(timeout_s=600.0, schedule=hierarchies.SCHEDULE).init(rank, size, folder)
    strategy.barrier()
    say(os.getpid())
    if rank == 0:
        # In another thread: this one is in the call.
        ends = threading.Thread(
            target=lambda: signal.sigwait([signal.SIGUSR1]) and strategy.abort("the epoch is over")
        )
        ends.start()
    with pytest.raises(PeerLost) as raised:
        reduce_for_ever(strategy, torch.ones(100))
    if rank == 0:
        ends.join()
    strategy.abort("the epoch is over")
    with pytest.raises(PeerLost):
        strategy.barrier()
    strategy.close()
    return str(raised.value)


@pytest.mark.parametrize("stopped", [[2], [1, 2]])
def test_calls_that_wait_for_ranks_that_are_stopped_end(tmp_path: Path, stopped: list[int]) -> None:
    with ranks.start(ended_in_a_call, 4, str(tmp_path)) as running:
        pids = running.results()
        for rank in stopped:
            os.kill(pids[rank], signal.SIGSTOP)
        os.kill(pids[0], signal.SIGUSR1)
        for rank in {0, 1, 2, 3} - set(stopped):
            assert "the epoch is over" in running.receive(rank)
        # When they go on, they find the same in the memory of that group, and write to no other.
        for rank in stopped:
            os.kill(pids[rank], signal.SIGCONT)
            assert "the epoch is over" in running.receive(rank)


def ended_before(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    strategy = ShmStrategy(timeout_s=600.0, schedule=hierarchies.SCHEDULE)
    if rank == 0:
        strategy.abort("over before it began")
    with pytest.raises(PeerLost) as raised:
        strategy.init(rank, size, folder)
    return str(raised.value)


def test_a_group_that_is_ended_before_it_is_joined(tmp_path: Path) -> None:
    """The rank does not join; the others learn it when its process ends."""
    with ranks.start(ended_before, 1, str(tmp_path)) as running:
        assert running.results() == ["over before it began"]


def used_again(say: Callable[[Any], None], rank: int, size: int, folder: str) -> float:
    strategy = ShmStrategy(timeout_s=20.0, schedule=hierarchies.SCHEDULE)
    for turn in range(3):
        strategy.init(rank, size, f"{folder}/{turn}")
        strategy.barrier()
        strategy.abort("the epoch is over")
        strategy.close()
    tensor = torch.ones(3)
    with strategy.init(rank, size, f"{folder}/last"):
        strategy.all_reduce(tensor)
    return float(tensor.sum())


def test_a_strategy_that_was_ended_joins_another_group(tmp_path: Path) -> None:
    assert ranks.run(used_again, 2, str(tmp_path)) == [6.0, 6.0]
