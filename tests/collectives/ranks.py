"""Runs a function in several processes at once, one per rank, and collects what they return or raise.

The processes are forks of a server that has torch loaded (tests/conftest.py), so a rank starts in some milliseconds.
"""

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

WATCHDOG_S = 40.0

_context = multiprocessing.get_context("forkserver")


@dataclass
class Raised:
    """What a rank raised."""

    kind: str
    text: str
    trace: str = field(repr=False)


@dataclass
class Ranks:
    """Running processes, and the pipes on which they report."""

    processes: list[Any]
    pipes: list[Connection]

    def receive(self, rank: int) -> Any:
        """Return what a rank reports next, within the watchdog's time; Raised if it ended by an exception."""
        if not self.pipes[rank].poll(WATCHDOG_S):
            raise AssertionError(f"rank {rank} reports nothing for {WATCHDOG_S} s")
        return self.pipes[rank].recv()

    def results(self) -> list[Any]:
        """Return what every rank reports next; None of one that died."""
        said: list[Any] = [None] * len(self.pipes)
        for rank in range(len(self.pipes)):
            try:
                said[rank] = self.receive(rank)
            except EOFError:
                continue
        return said

    def stop(self) -> None:
        """End whatever still runs."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for pipe in self.pipes:
            pipe.close()


def start(function: Callable[..., Any], size: int, *args: Any) -> Ranks:
    """Start `function(say, rank, size, *args)` in a process per rank; `say` reports before it returns."""
    processes = []
    pipes = []
    for rank in range(size):
        here, there = _context.Pipe()
        process = _context.Process(target=_main, args=(there, function, rank, size, args), daemon=True)
        process.start()
        there.close()
        processes.append(process)
        pipes.append(here)
    return Ranks(processes, pipes)


def run(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Run `function(say, rank, size, *args)` in a process per rank; returns what each returns, fails if one raises."""
    ranks = start(function, size, *args)
    try:
        waiting = set(ranks.pipes)
        while waiting:
            ready = wait(list(waiting), WATCHDOG_S)
            assert ready, (
                f"ranks {[ranks.pipes.index(pipe) for pipe in waiting]} report nothing for {WATCHDOG_S} s"
            )
            for pipe in ready:
                waiting.discard(pipe)
        results = ranks.results()
    finally:
        ranks.stop()
    for rank, result in enumerate(results):
        assert not isinstance(result, Raised), f"rank {rank}: {result.trace}"
    return results


def _main(
    pipe: Connection, function: Callable[..., Any], rank: int, size: int, args: tuple[Any, ...]
) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        pipe.send(function(pipe.send, rank, size, *args))
    except BaseException as error:
        pipe.send(Raised(type(error).__name__, str(error), traceback.format_exc()))
