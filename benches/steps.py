"""Steps of a WorkerNode: what they cost beside the all-reduce of their gradients, and how long a lost worker delays them.

``python -m benches.steps --workers 4 --mib 64``. In each step all workers first reduce the gradients by the engine
alone, then make the small reduction that is the barrier of a step, then end the step, which does both again and tells
the coordinator; applying the gradients does nothing. Each is measured from when all begin it to the end of the slowest
worker. Engines are measured one after the other in each round. Then a worker is killed, and started again, some times:
how long it takes until the step of the others ends, and until they commit one. Last, eight workers join at once.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from softs_fast.coordination.node import TrainingState, WorkerNode, link_engine, memory_engine
from softs_fast.gpu import ranks

ENGINES: dict[str, Callable[[int], Any]] = {
    "link": lambda _: link_engine,
    "memory": lambda _: memory_engine,
    "nodes of two": lambda number: functools.partial(memory_engine, host=str(number // 2)),
}
WARM_UP = 3
# Said in place of the number of workers of a committed step.
JOINS, LOST = -1, 0
N_JOINS = 8


def train(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Make steps; report the times of each, or that it is committed."""
    model = torch.nn.Linear(options["n_weights"], 1, bias=False)
    gradient = torch.zeros_like(model.weight)
    flag = torch.zeros(1, dtype=torch.int32)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.0), apply=lambda: None)
    number = options["number"]
    if not options["measures"]:
        say((time.monotonic(), JOINS))
    with WorkerNode(
        options["address"], state, seat=number, engine=ENGINES[options["engine"]](number)
    ) as node:
        while node.committed < options["n_steps"]:
            with node.step() as step:
                model.weight.grad = gradient
                if options["measures"]:
                    assert node.strategy is not None
                    node.strategy.barrier()
                    began = time.monotonic()
                    node.strategy.all_reduce_gradients({"weight": gradient})
                    alone = time.monotonic()
                    node.strategy.barrier()
                    aligned = time.monotonic()
                    node.strategy.all_reduce(flag, "max")
                    passed = time.monotonic()
            ended = time.monotonic()
            if options["measures"]:
                say((alone - began, passed - aligned, ended - passed))
            else:
                say((ended, node.size if step.is_committed else LOST))


class Coordinator:
    """A coordinator that ends with the block."""

    def __init__(self, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "softs_fast",
            "coordinator",
            "run",
            "--listen",
            "127.0.0.1:0",
            *options,
        ]
        self._process = subprocess.Popen(
            [*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> str:
        """Return its address."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()[1]

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate()


def start(
    address: str, number: int, engine: str, n_weights: int, n_steps: int, measures: bool
) -> ranks.Ranks:
    """Start a worker."""
    options = {
        "address": address,
        "number": number,
        "engine": engine,
        "n_weights": n_weights,
        "n_steps": n_steps,
        "measures": measures,
    }
    return ranks.start(train, 1, options)


def costs(engine: str, n_workers: int, n_weights: int, n_steps: int) -> list[list[float]]:
    """Return for each step the times of the slowest worker: the all-reduce, the barrier, the end of the step; seconds."""
    with Coordinator("--world-size", str(n_workers)) as address:
        workers = [
            start(address, number, engine, n_weights, n_steps + WARM_UP, True) for number in range(n_workers)
        ]
        try:
            steps = [
                [max(times) for times in zip(*(said_by(worker) for worker in workers), strict=True)]
                for _ in range(n_steps + WARM_UP)
            ]
        finally:
            for worker in workers:
                worker.stop()
    return steps[WARM_UP:]


def said_by(worker: ranks.Ranks) -> list[float]:
    """Return what a worker reports next; machines that are busy may take minutes to start it."""
    if not worker.pipes[0].poll(300):
        raise SystemExit("a worker has reported nothing for 5 minutes")
    times = worker.pipes[0].recv()
    if isinstance(times, ranks.Raised):
        raise SystemExit(f"a worker has failed: {times.trace}")
    return list(times)


def joining(engine: str) -> float:
    """Let workers join at once; return the seconds from the begin of the last one to the first step of the slowest one."""
    with Coordinator("--world-size", str(N_JOINS)) as address:
        workers = [start(address, number, engine, 8, 1, False) for number in range(N_JOINS)]
        try:
            readers = [_Reader(worker.pipes[0]) for worker in workers]
            began, _ = max(reader.until(JOINS) for reader in readers)
            ended, _ = max(reader.until(N_JOINS) for reader in readers)
            for reader in readers:
                reader.stop()
        finally:
            for worker in workers:
                worker.stop()
    return ended - began


def recoveries(
    engine: str, n_workers: int, n_kills: int, how: signal.Signals
) -> tuple[list[float], list[float]]:
    """Kill or stop a worker, some times.

    Returns:
        The seconds until the step of all others has ended, and until one is committed among them.
    """
    lost, found = [], []
    with Coordinator("--min-workers", "1", "--max-workers", str(n_workers), "--form-timeout", "1") as address:
        begin = functools.partial(start, address, engine=engine, n_weights=8, n_steps=10**9, measures=False)
        workers = [begin(number) for number in range(n_workers)]
        try:
            for turn in range(n_kills):
                readers = [_Reader(worker.pipes[0]) for worker in workers]
                for reader in readers:
                    reader.until(n_workers)
                victim = turn % n_workers
                pid = workers[victim].processes[0].pid
                at = time.monotonic()
                os.kill(pid, how)
                others = [reader for number, reader in enumerate(readers) if number != victim]
                # A step that all had reduced before the death is committed by the others.
                ends = [reader.until(LOST, n_workers - 1) for reader in others]
                lost.append(max(ends)[0] - at)
                commits = [
                    end if end[1] != LOST else reader.until(n_workers - 1)
                    for reader, end in zip(others, ends, strict=True)
                ]
                found.append(max(commits)[0] - at)
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(pid, signal.SIGKILL)
                for reader in readers:
                    reader.stop()
                workers[victim].stop()
                workers[victim] = begin(victim)
        finally:
            for worker in workers:
                worker.stop()
    return lost, found


class _Reader:
    """Reads what a worker reports, so that the worker never waits."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._said: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def until(self, *sizes: int) -> tuple[float, int]:
        """Return when the next step among so many workers was committed, or what `JOINS` and `LOST` name has happened.

        Args:
            sizes: The numbers that end the wait; the one that did is returned, too.
        """
        while True:
            ended, there = self._said.get(timeout=60)
            if there in sizes:
                return ended, there

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._pipe.poll(0.05):
                    self._said.put(self._pipe.recv())
            except EOFError:
                return


def in_ms(seconds: list[float]) -> list[int]:
    """Return milliseconds in order."""
    return [round(1e3 * one) for one in sorted(seconds)]


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mib", type=float, default=64.0, help="of gradients")
    parser.add_argument("--steps", type=int, default=20, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=6, help="of each engine, by SIGKILL and by SIGSTOP")
    options = parser.parse_args()
    # Workers are forks of a server that has imported what takes long.
    multiprocessing.set_forkserver_preload(["torch", "softs_fast.coordination.node"])
    n_weights = int(options.mib * 2**20) // 4
    steps: dict[str, list[list[float]]] = {engine: [] for engine in ENGINES}
    for _ in range(options.rounds):
        for engine, times in steps.items():
            times += costs(engine, options.workers, n_weights, options.steps)
    for engine, times in steps.items():
        row: dict[str, Any] = {"engine": engine, "workers": options.workers, "mib": options.mib}
        alone, barrier, ended = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        row["all_reduce_ms"], row["barrier_ms"] = round(alone, 2), round(barrier, 2)
        row["step_end_ms"], row["barrier_share"] = round(ended, 2), round(barrier / alone, 4)
        for how in (signal.SIGKILL, signal.SIGSTOP):
            if options.kills:
                lost, found = recoveries(engine, options.workers, options.kills, how)
                row[f"{how.name.lower()}_to_end_of_step_ms"] = in_ms(lost)
                row[f"{how.name.lower()}_ms"] = in_ms(found)
        row["joins_ms"] = in_ms([joining(engine) for _ in range(options.rounds)])
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
