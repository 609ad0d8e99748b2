"""From SIGKILL of a worker process of a flow to the exception of `steps`: `python -m benches.dataflow_deaths [--rounds 30]`.

A flow of two processes, started by a fleet as users start it. Worker 1 is killed by the master's process itself while it

* main: is inside of a function, * hook: is inside of a hook, * idle: waits for orders, as worker 0 works,

and the master waits in `steps`. Median and the largest, milliseconds of the wall clock; beside it the time until the
kernel reports the end of the process, which takes down its memory first; and the load before each line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

import softs_fast.dataflow as df
from softs_fast.errors import FlowError

PLACES = ("main", "hook", "idle")
#: What each step that is interrupted would take, seconds.
LONG_S = 60.0


class Sleeper(df.Role):
    """Works for long where it is told to."""

    place, is_first, is_warm = "", False, False

    def double(self, rows: df.Rows) -> dict[str, Any]:
        if self.place == ("idle" if self.is_first else "main") and rows.step:
            time.sleep(LONG_S)
        return {"y" if self.is_first else "z": rows["x"] * 2}

    def train(self, rows: df.Rows) -> None:
        pass


def rest(role: Sleeper) -> None:
    """A hook that works for long."""
    if role.place == "hook" and role.is_warm:
        time.sleep(LONG_S)
    role.is_warm = True


def numbers() -> Iterator[dict[str, Any]]:
    """Yield rows without end."""
    while True:
        yield {"x": torch.ones(4)}


def make_flow(place: str) -> df.Flow:
    """Return a flow; from its second step on one process works for long."""
    first = df.place(type("First", (Sleeper,), {"place": place, "is_first": True}), name="first")
    second = df.place(type("Second", (Sleeper,), {"place": place}), on=[1], name="second")
    calls = [
        df.call(second.double, "x -> z", rows=4, after=[df.hook(rest)]),
        df.call(first.double, "x, z -> y", rows=4),
        df.call(second.train, "y", rows=4),  # so worker 1 is not started again
    ]
    return df.Flow(calls, source=numbers(), watchdog_s=None)


def round_of(place: str) -> tuple[float, float]:
    """Return milliseconds from the kill to the exception, and to the end of the process as the kernel reports it."""
    killed_s = ended_s = 0.0
    with df.Flow.in_processes("benches.dataflow_deaths:make_flow", {"place": place}) as flow:
        next(flow.steps(1))
        wanted = {"main": (1, "second.double"), "hook": (1, "rest"), "idle": (0, "first.double")}[place]

        def kill() -> None:
            nonlocal killed_s, ended_s
            while (inside := flow.ask("inside"))[wanted[0]].get("name") != wanted[1]:
                time.sleep(0.005)
            time.sleep(0.05)
            pid = inside[1]["pid"]
            process = os.pidfd_open(pid)
            killed_s = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            select.select([process], [], [])
            ended_s = time.perf_counter()
            os.close(process)

        killer = threading.Thread(target=kill)
        killer.start()
        with contextlib.suppress(FlowError):
            list(flow.steps(2))
            raise RuntimeError("the flow went on")
        found = (time.perf_counter() - killed_s) * 1e3
        killer.join()
        pid = flow.ask("inside")[0]["pid"]
        os.kill(pid, signal.SIGKILL)  # it sleeps, and the end of the flow would wait for it
    return found, (ended_s - killed_s) * 1e3


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--place", choices=PLACES, action="append")
    arguments = parser.parse_args()
    for place in arguments.place or PLACES:
        load = os.getloadavg()[0]
        found = [round_of(place) for _ in range(arguments.rounds)]
        whole, kernel = zip(*found, strict=True)
        own = [one - other for one, other in found]
        texts = [
            f"{name} {statistics.median(values):.1f} (largest {max(values):.1f})"
            for name, values in (("exception", whole), ("process has ended", kernel), ("from there", own))
        ]
        print(f"{place}: {', '.join(texts)} ms, of {len(found)}; load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
