"""Masters of flows in processes of their own: on a host of a network, or waiting after each step for a test."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flows import kill, summary
from host_workers import HostWorkers, in_child
from networks import move_to
from waiting import WATCHDOG_S, eventually

import softs_fast.dataflow as df
from softs_fast.errors import FlowError


def run_master(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    host_pid: int,
    function: str,
    options: dict[str, Any],
    n_steps: int,
) -> None:
    """Run steps on a host; says the summary, or the error after the first step."""
    move_to(host_pid)

    def run() -> None:
        flow = df.Flow.on_hosts(function, **options)
        if n_steps:
            say(summary(flow, n_steps))
            return
        with flow:
            say(next(flow.steps(1)).number)
            try:
                list(flow.steps())
                say("the source has ended")
            except FlowError as error:
                say(str(error))

    in_child(run)


def be_paced_master(
    function: str, arguments: dict[str, Any], options: dict[str, Any], n_steps: int, path: str
) -> None:
    """Be a master of workers on hosts; the numbers of the steps go to a file.

    Args:
        function: Name of the function that makes the flow.
        arguments: Arguments of the function.
        options: Options of `df.Flow.on_hosts`.
        n_steps: Number of steps.
        path: Path of the file; the one with ".go" behind its name has the number of the last step that may begin.
    """
    torch.manual_seed(3)  # for functions without a role
    with df.Flow.on_hosts(function, arguments, **options) as flow, open(path, "a") as file:
        for step in flow.steps(n_steps):
            file.write(f"{step.number} {step.repeated}\n")
            file.flush()
            eventually(
                lambda n=step.number: not int(Path(f"{path}.go").read_text() or 0) <= n < n_steps,  # type: ignore[misc]
                "the next step may begin",
                within_s=4 * WATCHDOG_S,
            )


class PacedRun:
    """One run of a flow of which processes are killed.

    Args:
        workers: Workers that have been started.
        n_steps: Number of steps of the run.
        path: Path of the file for the numbers of the steps.
    """

    def __init__(self, workers: HostWorkers, n_steps: int, path: Path) -> None:
        self._workers, self._n_steps, self._path = workers, n_steps, path
        self._go(0)
        self.start()

    def start(self) -> None:
        """Start a master."""
        options = {"listen": self._workers.endpoint, "token_file": str(self._workers.token)}
        told = (self._workers.function, self._workers.arguments, options, self._n_steps, str(self._path))
        self._master = multiprocessing.get_context("forkserver").Process(target=be_paced_master, args=told)
        self._master.start()

    def run_until(self, step: int, *, then: int) -> None:
        """Wait until a step is complete and the flow stands, and let it go on to another one."""
        self._go(step)
        # Python and torch begin anew: on a loaded machine that takes long.
        eventually(
            lambda: max(self.steps(), default=0) >= step,
            f"step {step}",
            watched=self._master,
            within_s=4 * WATCHDOG_S,
        )
        self._go(then)

    def kill_worker(self, worker: int) -> int:
        """SIGKILL the process of a worker; its launcher starts another one. Returns its pid."""
        launcher = self._workers.processes[worker].pid
        [pid] = map(int, Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split())
        kill(pid)
        return pid

    def kill_master(self) -> None:
        """SIGKILL the master."""
        assert self._master.pid is not None
        kill(self._master.pid)
        self._master.join(WATCHDOG_S)
        assert self._master.exitcode == -signal.SIGKILL
        self._master.close()

    def end(self) -> int:
        """Wait for the end of the master; returns its exit code."""
        self._go(self._n_steps)
        self._master.join(4 * WATCHDOG_S)
        code: int | None = self._master.exitcode
        self._master.close()
        assert code is not None
        return code

    def steps(self) -> list[int]:
        """Return the numbers of the steps that were complete, with those that were repeated."""
        if not self._path.exists():
            return []
        return [int(line.split()[0]) for line in self._path.read_text().splitlines()]

    def _go(self, step: int) -> None:
        # A reader finds the old number, or the new one.
        new = Path(f"{self._path}.new")
        new.write_text(str(step))
        new.rename(f"{self._path}.go")
