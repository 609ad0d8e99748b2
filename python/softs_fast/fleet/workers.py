"""The worker processes of a broker that runs elsewhere, or of a fleet."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..market import WorkerReport
from ..process import Closing
from .importable import check_runs
from .progress import Progress
from .restarts import RestartPolicy
from .supervisor import Supervisor
from .threads import OwnThreads, share

__all__ = ["Workers"]

#: How long a worker that is in a call may go on after Ctrl-C, seconds.
_INTERRUPTED_S = 1.0


class Workers(Closing):
    """Worker processes, for the time of a ``with`` block; `Fleet` has a broker besides.

    Each computes with its share of the cores: all of them by the number of workers, or the most of them, and this process.
    OMP_NUM_THREADS, of this process or in `environment`, sets another number.

    Args:
        make_worker: Function called in each process; returns a `Worker` or a `Supplier` that is not started, or an
            object with their methods `start`, `stop` and `wait`.
        environment: Variables that are set in each process before.
        gpus: Devices of which worker i sees only ``gpus[i % len(gpus)]``.
        policy: Rules for starting a worker again that has failed.
        start_timeout_s: How long `scale` waits, and how long a worker that starts again may take.
        environment_of: Function of the number of a worker; returns further variables of its process.
        report: Function called in a thread of this object with all workers, and how their number was changed last, whenever
            either has changed.
        most: The largest number of workers there will be, if that is not the one of `scale`.
    """

    def __init__(
        self,
        make_worker: Callable[[], Any],
        environment: Mapping[str, str],
        gpus: Sequence[int | str] | None = None,
        policy: RestartPolicy | None = None,
        start_timeout_s: float = 120.0,
        environment_of: Callable[[int], Mapping[str, str]] | None = None,
        report: Callable[[Sequence[WorkerReport], str], None] = lambda workers, scaled: None,
        most: int = 0,
    ) -> None:
        check_runs()
        self._environment = dict(environment)
        self._further = environment_of
        self._gpus = None if gpus is None else list(gpus)
        self._start_timeout_s = start_timeout_s
        self._most, self._n_processes = most, 1
        self._own_threads = OwnThreads()
        self._supervisor = Supervisor(
            make_worker, self._environment_of, policy or RestartPolicy(), start_timeout_s, report
        )

    def scale(self, n_workers: int) -> None:
        """Have so many workers from now on, and wait until all serve, and the others have ended with their last calls.

        Raises:
            FleetError: a worker failed before it served, or they took too long.
        """
        self._n_processes = max(self._most, n_workers) + 1
        self._own_threads.take_share(self._n_processes)
        with Progress(n_workers) as progress:
            self._supervisor.scale(n_workers, self._start_timeout_s, progress)

    def aim(self, n_workers: int, reason: str) -> None:
        """Have so many workers from now on, without a wait, and report the reason."""
        self._supervisor.aim(n_workers, reason)

    def serving(self) -> set[int]:
        """Return the process numbers of the workers that serve."""
        return self._supervisor.serving()

    def failed_to_start(self) -> int | None:
        """Return the smallest number of a worker that was given up before it has ever served, if there is one."""
        return self._supervisor.failed_to_start()

    def states(self) -> dict[str, str]:
        """Return the state of each worker by its name: starting, serving, ending, pausing, ended or given up."""
        return self._supervisor.states()

    def error(self) -> str | None:
        """Return why a worker was given up that has served; None: none was."""
        return self._supervisor.error()

    def reason(self, number: int, timeout_s: float) -> str:
        """Return how the last run of a worker has failed, as soon as its process has ended.

        Args:
            number: Number of the worker, from 0.
            timeout_s: How long to wait for the end of the process.

        Returns:
            The traceback, or its exit status or signal; empty if it has not failed.
        """
        return self._supervisor.reason(number, timeout_s)

    def kill(self, number: int) -> None:
        """End the process of a worker at once, by SIGKILL; nothing if it does not run.

        Args:
            number: Number of the worker, from 0.
        """
        self._supervisor.kill(number)

    def wait(self) -> None:
        """Block until no worker runs or will start again."""
        self._supervisor.wait()

    def close(self) -> None:
        """End the processes, and wait for their end; at most about 3 s, or 1 s after Ctrl-C. Idempotent."""
        # Of a call that Ctrl-C has interrupted, a person waits for the end; what it makes is used no more.
        if isinstance(sys.exception(), KeyboardInterrupt):
            self._supervisor.close(_INTERRUPTED_S)
        else:
            self._supervisor.close()
        self._own_threads.give_back()

    def _environment_of(self, number: int) -> dict[str, str]:
        gpus = self._gpus
        gpu = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": str(gpus[number % len(gpus)])}
        further = {} if self._further is None else self._further(number)
        own = self._environment | gpu | dict(further)
        return share(self._n_processes, os.environ | own) | own
