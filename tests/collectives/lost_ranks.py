"""What ranks of any strategy learn of one that is killed, stopped or late."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from waiting import eventually

from softs_fast.errors import PeerLost

# Long enough that a rank that ends by it, and not because the kernel reported a death, fails its test by the watchdog.
NEVER_S = 300.0
# Where a time-out is what is tested: ranks that are not stopped must come to a call within it, and to the group before.
SOON_S = 4.0


def until_stopped(pid: int) -> None:
    """Wait until a process that stops itself has done so: a SIGCONT before that would wake nothing."""
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


def sleeps(thread: str) -> int:
    """Return how often a thread of this process has given up its processor to wait."""
    lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


@contextmanager
def interrupted_in_a_call() -> Iterator[None]:
    """Interrupt the block in a call that waits for another rank: there the thread looks every few milliseconds."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    caller, thread = threading.get_ident(), str(threading.get_native_id())
    before = sleeps(thread)

    def interrupt() -> None:
        eventually(lambda: sleeps(thread) > before + 20)
        signal.pthread_kill(caller, signal.SIGALRM)

    interrupts = threading.Thread(target=interrupt)
    interrupts.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    interrupts.join()


def reduce_for_ever(strategy: Any, tensor: torch.Tensor) -> None:
    """Reduce until an error."""
    while True:
        strategy.all_reduce(tensor)


def until_lost(strategy: Any, tensor: torch.Tensor) -> str:
    """Reduce until a rank is lost, for good; what is said of it."""
    with pytest.raises(PeerLost) as raised:
        reduce_for_ever(strategy, tensor)
    with pytest.raises(PeerLost):
        strategy.barrier()
    return str(raised.value)


def keep(strategy: Any) -> None:
    """Wait for the end of the test: a process that ends closes its connections, too."""
    signal.pause()
    strategy.close()


def reduce_until_lost(
    say: Callable[[Any], None], strategy: Any, tensor: torch.Tensor
) -> tuple[str, list[int]]:
    """Report the process, and reduce until a rank is lost; the error, and which ranks are."""
    say(os.getpid())
    with strategy:
        text = until_lost(strategy, tensor)
        # At once.
        for again in (strategy.barrier, lambda: strategy.all_reduce(tensor)):
            with pytest.raises(PeerLost, match=r"is broken"):
                again()
        return text, strategy.lost


def check_killed(role: Callable[..., Any], folder: Path, victim: int) -> None:
    """Check that a killed rank is named; `role(say, rank, size, folder, timeout_s)` is `reduce_until_lost`."""
    with ranks.start(role, 4, str(folder), NEVER_S) as running:
        pids = running.results()
        time.sleep(0.05)  # into the middle of some call
        os.kill(pids[victim], signal.SIGKILL)
        told = running.results()
    for rank, result in enumerate(told):
        if rank != victim:
            assert not isinstance(result, ranks.Raised), result.trace
            text, lost = result
            assert f"rank {victim} (process {pids[victim]}" in text
            assert lost == [victim]


def check_stopped(role: Callable[..., Any], folder: Path) -> None:
    """Check that a stopped rank is named when the time is over; `role` as for `check_killed`."""
    with ranks.start(role, 3, str(folder), SOON_S) as running:
        pids = running.results()
        os.kill(pids[1], signal.SIGSTOP)
        told = [running.receive(0), running.receive(2)]
        os.kill(pids[1], signal.SIGCONT)
        told.append(running.receive(1))
    for result in told:
        assert not isinstance(result, ranks.Raised), result.trace
    for text, lost in told[:2]:
        assert f"rank 1 (process {pids[1]}, stopped)" in text
        assert lost == [1]
    assert "rank" in told[2][0], "a rank that goes on learns that it was given up"


def complete_late(role: Callable[..., Any], folder: Path, *options: Any) -> str:
    """Have ranks 0 and 1 give up a call that rank 2 completes when it is told; what all then say of it.

    Args:
        role: `role(say, rank, size, folder, *options)` reports its process, and then that the call has failed.
        folder: Folder in which the ranks meet.
        options: Options of the role.
    """
    with ranks.start(role, 3, str(folder), *options) as running:
        pids = running.results()
        assert [running.receive(0), running.receive(1)] == ["failed"] * 2
        os.kill(pids[2], signal.SIGUSR1)
        assert running.receive(2) == "failed"
        told: list[str] = running.results()
    assert told[0] == told[1] == told[2]
    return told[0]


#: What `complete_late` returns where the call of rank 2 is known to be complete.
COMPLETED = "completed a call that failed on others: 0 on rank 0, 0 on rank 1, 1 on rank 2 calls"
