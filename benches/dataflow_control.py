"""The stream of a flow between its master and its workers: `python -m benches.dataflow_control [--rounds 500] [--opponents PYTHON]`.

* Round trip: the master sends a message with 64 bytes to each of n workers, Python of each worker answers, and the master has received
  all answers. Beside it, in turns, actor calls of Ray and of Monarch with the same bytes, by an interpreter that has
  them (an environment outside the tree); they are no dependencies.
* A flow's call, as a user makes it: post, flush and result of a hook that does nothing, on all n workers of a role, in a
  flow of processes that a fleet has started. It has a ticket, is checked at both ends, and each worker reports it; this is
  what compares with a call of actors.
* A question to a worker that holds the GIL.
* From SIGKILL to `Left`, of a worker that waits for a message.

Medians and the 99th percentile, milliseconds of the wall clock, and the load before each line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import softs_fast.dataflow as df
from benches.control_worker import HOLD, PAYLOAD, work
from softs_fast.dataflow.link.events import Joined, Left, Received
from softs_fast.dataflow.link.stream import MasterStream, listen_at

WORKERS = (1, 4, 32)
WARM_UP = 20
#: One wait for messages.
WAIT_S = 60.0
#: So long the workers of a flow may take until they have begun, each with an import of torch.
START_S = 900.0


@contextmanager
def running(server: MasterStream, n: int) -> Iterator[list[Any]]:
    """Run n workers that have joined."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benches.control_worker"])
    processes = [context.Process(target=work, args=(server.endpoint, worker)) for worker in range(n)]
    for process in processes:
        process.start()
    joined = 0
    while joined < n:
        joined += sum(isinstance(event, Joined) for event in server.receive(WAIT_S))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def round_trips(n: int, rounds: int) -> list[float]:
    """Return milliseconds from the first message to the last answer of n workers."""
    found = []
    with closing(MasterStream(listen_at("ipc://*", None))) as server, running(server, n):
        for turn in range(WARM_UP + rounds):
            begun = time.perf_counter()
            for worker in range(n):
                server.send(worker, PAYLOAD)
            answers = 0
            while answers < n:
                answers += sum(isinstance(event, Received) for event in server.receive(WAIT_S))
            if turn >= WARM_UP:
                found.append((time.perf_counter() - begun) * 1e3)
    return found


def flow_calls(n: int, rounds: int) -> list[float]:
    """Return milliseconds from the post of a hook on n workers of a flow to its result."""
    found = []
    make_flow = "benches.control_flow:make_flow"
    with df.Flow.in_processes(make_flow, {"n": n}, start_timeout_s=START_S) as flow:
        [nothing] = flow.declaration.hooks
        for turn in range(WARM_UP + rounds):
            begun = time.perf_counter()
            call = flow.post(nothing)
            flow.flush(call)
            call.result()
            if turn >= WARM_UP:
                found.append((time.perf_counter() - begun) * 1e3)
    return found


def questions(rounds: int) -> list[float]:
    """Return milliseconds of a question to a worker that holds the GIL."""
    found = []
    with closing(MasterStream(listen_at("ipc://*", None))) as server, running(server, 1):
        server.send(0, HOLD)
        server.receive(WAIT_S)
        for turn in range(WARM_UP + rounds):
            begun = time.perf_counter()
            server.ask(0, "spec", 60)
            if turn >= WARM_UP:
                found.append((time.perf_counter() - begun) * 1e3)
    return found


def deaths(rounds: int) -> list[float]:
    """Return milliseconds from SIGKILL to the departure of a worker."""
    found = []
    for _ in range(rounds):
        with closing(MasterStream(listen_at("ipc://*", None))) as server, running(server, 1) as (process,):
            pid = process.pid
            assert pid is not None
            begun = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            while not any(isinstance(event, Left) for event in server.receive(WAIT_S)):
                pass
            found.append((time.perf_counter() - begun) * 1e3)
    return found


def opponent(python: str, name: str, n: int, rounds: int) -> list[float] | str:
    """Return milliseconds of an opponent in a process of its own, or why there are none."""
    command = [python, "-m", "benches.control_opponents", name, str(n), str(rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"did not run: {error}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return f"failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"
    result = json.loads(lines[-1])
    return result.get("absent") or result["milliseconds"]


def report(what: str, found: list[float] | str, load: float) -> None:
    """Print one line."""
    if isinstance(found, str):
        print(f"{what:<44} {found}", flush=True)
        return
    ordered = sorted(found)
    tail = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    median = statistics.median(ordered)
    print(f"{what:<44} {median:9.3f} {tail:9.3f} {ordered[0]:9.3f} {load:6.1f}", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--opponents", default=sys.executable, help="interpreter that has ray, torchmonarch")
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    arguments = parser.parse_args()
    rounds = arguments.rounds
    print(f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}, {rounds} rounds")
    print(f"{'milliseconds':<44} {'median':>9} {'p99':>9} {'least':>9} {'load':>6}")
    for n in arguments.workers:
        load = os.getloadavg()[0]
        report(f"round trip, {n} workers", round_trips(n, rounds), load)
        load = os.getloadavg()[0]
        report(f"  call of a flow, {n} workers", flow_calls(n, rounds), load)
        for name in ("ray", "monarch"):
            load = os.getloadavg()[0]
            report(f"  {name}, {n} actors", opponent(arguments.opponents, name, n, rounds), load)
    load = os.getloadavg()[0]
    report("question to a worker that holds the GIL", questions(rounds), load)
    load = os.getloadavg()[0]
    report("SIGKILL to Left", deaths(max(10, rounds // 20)), load)


if __name__ == "__main__":
    main()
