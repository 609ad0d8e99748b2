"""Runs a function in several processes at once, one per rank, and collects what they return or raise."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

__all__ = ["Raised", "Ranks", "run", "set_start_method", "start"]

#: A rank that reports nothing for so long hangs, seconds.
WATCHDOG_S = 40.0

_start_method = "forkserver"


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
        """Return what a rank reports next, within the watchdog's time; Raised if it ended by an exception.

        Raises:
            AssertionError: it reports nothing.
            EOFError: it has ended.
        """
        if not self.pipes[rank].poll(WATCHDOG_S):
            raise AssertionError(f"rank {rank} reports nothing for {WATCHDOG_S} s")
        return self.pipes[rank].recv()

    def results(self) -> list[Any]:
        """Return what every rank reports next; None of one that died.

        Raises:
            AssertionError: a rank reports nothing.
        """
        said: list[Any] = [None] * len(self.pipes)
        for rank in range(len(self.pipes)):
            try:
                said[rank] = self.receive(rank)
            except EOFError:
                continue
        return said

    def __enter__(self) -> Ranks:
        """Return it."""
        return self

    def __exit__(self, *error: object) -> None:
        """End whatever still runs."""
        self.stop()

    def stop(self) -> None:
        """End whatever still runs."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for pipe in self.pipes:
            pipe.close()


def set_start_method(method: str) -> None:
    """Choose how this process starts ranks.

    Args:
        method: one of multiprocessing. `fork` starts them in milliseconds, and needs a caller that has not used CUDA.
            Default: `forkserver`, which is as quick if its server has loaded torch.
    """
    global _start_method
    _start_method = method


def start(function: Callable[..., Any], size: int, *args: Any) -> Ranks:
    """Start `function(say, rank, size, *args)` in a process per rank; `say` reports before it returns."""
    context: Any = multiprocessing.get_context(_start_method)
    processes = []
    pipes = []
    for rank in range(size):
        here, there = context.Pipe()
        process = context.Process(target=_main, args=(there, function, rank, size, args), daemon=True)
        process.start()
        there.close()
        processes.append(process)
        pipes.append(here)
    return Ranks(processes, pipes)


def run(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Run `function(say, rank, size, *args)` in a process per rank, and return what each returns; None of one that died.

    Raises:
        AssertionError: a rank raised, or reports nothing.
    """
    results: list[Any] = [None] * size
    with start(function, size, *args) as ranks:
        waiting: dict[Any, int] = dict(zip(ranks.pipes, range(size), strict=True))
        while waiting:
            ready = wait(list(waiting), WATCHDOG_S)
            if not ready:
                raise AssertionError(f"ranks {sorted(waiting.values())} report nothing for {WATCHDOG_S} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                with suppress(EOFError):
                    results[rank] = ranks.receive(rank)
                # The others may wait for it in vain.
                if isinstance(results[rank], Raised):
                    raise AssertionError(f"rank {rank}: {results[rank].trace}")
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
