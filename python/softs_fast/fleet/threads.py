"""How many threads each process of a fleet or a flow computes with, if neither user nor launcher has said so."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["THREADS", "OwnThreads", "cores", "follow", "share"]

logger = logging.getLogger(__name__)

#: The variable that OpenMP, MKL and OpenBLAS read when they are loaded, and torch with them.
THREADS = "OMP_NUM_THREADS"


def share(n_processes: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give each process its share of the cores.

    Threads that wait for each other at the end of every parallel loop are many times slower where they outnumber the
    cores: a thread that is not running holds up all others of its loop.

    Args:
        n_processes: Number of processes that compute at the same time, the student included.
        environment: Variables that the processes get. OMP_NUM_THREADS among them is a choice, which stays.
    """
    return {} if THREADS in environment else {THREADS: str(max(1, cores() // n_processes))}


def cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this process may use: those of its affinity, at most the quota of its control group.

    Args:
        group: Folder of the control group. A container sees its own one there.
    """
    n_cores = len(os.sched_getaffinity(0))
    # There is no file where the group has no controller for the CPU, and "max" where it has no limit.
    with contextlib.suppress(OSError, ValueError):
        quota, period = map(int, (group / "cpu.max").read_text().split())
        n_cores = min(n_cores, max(1, quota // period))
    return n_cores


class OwnThreads:
    """The threads of this process while workers run beside it: its share too, where they are as torch has set them.

    A student with a thread for each core, beside teachers that need them, waits in every step for those of its threads
    that do not run. So this is done without being asked for, and said.
    """

    def __init__(self) -> None:
        self._before: int | None = None
        self._now: int | None = None

    def take_share(self, n_processes: int) -> None:
        """Compute with the share of one process, unless OMP_NUM_THREADS or `torch.set_num_threads` has chosen.

        Args:
            n_processes: Number of processes that compute at the same time, this one included.
        """
        torch = sys.modules.get("torch")
        if torch is None or THREADS in os.environ:
            return
        n_threads = torch.get_num_threads()
        if self._now is None and n_threads in _defaults():
            self._before = self._now = n_threads
        # Another number since: the program has chosen.
        if self._before is None or n_threads != self._now:
            return
        self._now = min(self._before, max(1, cores() // n_processes))
        if self._now != n_threads:
            torch.set_num_threads(self._now)
            logger.warning(
                "this process computes with %d of %d threads while its workers run, and each of them with its share; "
                "OMP_NUM_THREADS or torch.set_num_threads sets another number",
                self._now,
                self._before,
            )

    def give_back(self) -> None:
        """Compute with as many threads as before, unless the program has chosen another number since."""
        torch, before, now = sys.modules.get("torch"), self._before, self._now
        self._before = self._now = None
        if torch is not None and before is not None and torch.get_num_threads() == now:
            torch.set_num_threads(before)


def _defaults() -> tuple[int, ...]:
    """Return the numbers that torch begins with: a thread for each core, or, with MKL, for each two that share one."""
    n_cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        if Path("/sys/devices/system/cpu/smt/active").read_text().strip() == "1":
            return n_cores, n_cores // 2
    return (n_cores,)


def follow() -> None:
    """Have torch compute with OMP_NUM_THREADS threads, also where it was imported before that was set."""
    torch = sys.modules.get("torch")
    first = os.environ.get(THREADS, "").partition(",")[0]  # one number for each level of nested loops
    if torch is not None and first.isdecimal() and int(first) > 0 and torch.get_num_threads() != int(first):
        torch.set_num_threads(int(first))
