"""From SIGKILL of a worker process of a flow to the exception of `steps`: `python -m benches.dataflow_deaths [--rounds 30]`.

A flow of two processes, started by a fleet as users start it. Worker 1 is killed by the master's process itself while it

* main: is inside of a function, * hook: is inside of a hook, * idle: waits for orders, as worker 0 works,
* publish: shows weights, for which worker 0 waits,
* take: waits for weights that worker 0 shows, * save: writes its part of a common save of the journal, and that is not to
  begin anew, * setup: makes the object of its role,

and the master waits in `steps`, or for the workers to begin. Median and the largest, milliseconds of the wall clock; beside
it the time until the kernel reports the end of the process, which takes down its memory first; and the load before each line.
In setup there is no flow yet: the exception comes when the other worker has ended, too, in good order; before that the log
of the fleet names the worker and the signal, and that time is printed as well.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import softs_fast.dataflow as df
from softs_fast.errors import FlowError

#: By phase the worker that says that it is inside of something long, and what it says.
PLACES = {
    "main": (1, "second.double"),
    "hook": (1, "rest"),
    "idle": (0, "first.double"),
    "publish": (1, "publish"),
    "take": (1, "param_realloc"),
    "save": (1, "save_state"),
    "setup": (1, ""),
}
#: What each step that is interrupted would take, seconds.
LONG_S = 60.0


class Notes:
    """Something of a role that a common save has."""

    def __init__(self, role: Sleeper) -> None:
        self._role = role

    def state_dict(self) -> dict[str, int]:
        """Return what is saved."""
        self._role.sleep_in("save")
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take it again."""


class Sleeper(df.Role):
    """Works for long in one place, from the second step on."""

    place, folder, is_first, is_warm = "", "", False, False

    def setup(self, mesh: df.Mesh) -> None:
        if self.place == "setup" and not self.is_first:
            path = Path(self.folder, "new")
            path.write_text(str(os.getpid()))
            path.rename(Path(self.folder, "pid"))
            time.sleep(LONG_S)
        self.net = nn.Linear(4, 4)
        self.notes = Notes(self)

    def sleep_in(self, place: str) -> None:
        """Work for long if this is the place."""
        if self.is_warm and self.place == place:
            time.sleep(LONG_S)

    def modules(self) -> dict[str, nn.Module]:
        self.sleep_in("take" if self.is_first else "publish")
        return super().modules()

    def double(self, rows: df.Rows) -> dict[str, Any]:
        self.is_warm |= rows.step > 0
        self.sleep_in("idle" if self.is_first else "main")
        return {"y" if self.is_first else "z": rows["x"] * 2}

    def train(self, rows: df.Rows) -> None:
        self.is_warm |= self.place == "save"


def rest(role: Sleeper) -> None:
    """A hook that works for long."""
    role.sleep_in("hook")


def numbers() -> Iterator[dict[str, Any]]:
    """Yield rows without end."""
    while True:
        yield {"x": torch.ones(4)}


def make_flow(place: str, folder: str) -> df.Flow:
    """Return a flow; from its second step on one process works for long.

    Args:
        place: One of `PLACES`.
        folder: Folder for the journal, and for the number of a process that begins.
    """
    told = {"place": place, "folder": folder}
    second = df.place(type("Second", (Sleeper,), told), on=[1], name="second")
    one = type("First", (Sleeper,), {**told, "is_first": True})
    first = df.place(one, name="first", follows=second if place == "publish" else None)
    after = [df.publish(first)] if place == "publish" else []
    after += [df.param_realloc(first, second, eta=0.5)] if place == "take" else []
    calls = [
        df.call(second.double, "x -> z", rows=4, after=[df.hook(rest)]),
        df.call(first.double, "x, z -> y", rows=4),
        df.call(second.train, "y", rows=4, after=after),  # so worker 1 is not started again
    ]
    journal = df.Journal(Path(folder, "journal"), max_restarts=0) if place == "save" else None
    return df.Flow(calls, source=numbers(), watchdog_s=None, journal=journal)


class Killer:
    """Kills worker 1 when it is where it should be.

    Args:
        flow: Flow of the worker.
        place: One of `PLACES`.
        folder: Folder of the flow, see `make_flow`.

    Attributes:
        killed_s: Time at which the signal was sent, by `time.perf_counter`.
        ended_s: Time at which the kernel has reported the end of the process, by `time.perf_counter`.
    """

    def __init__(self, flow: df.Flow, place: str, folder: str) -> None:
        self.killed_s = self.ended_s = 0.0
        self._flow, self._place, self._folder = flow, place, folder
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def join(self) -> None:
        """Wait until it is done."""
        self._thread.join()

    def _run(self) -> None:
        pid = self._pid()
        time.sleep(0.05)
        process = os.pidfd_open(pid)
        self.killed_s = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        select.select([process], [], [])
        self.ended_s = time.perf_counter()
        os.close(process)

    def _pid(self) -> int:
        if self._place == "setup":
            path = Path(self._folder, "pid")
            while not path.exists():
                time.sleep(0.005)
            return int(path.read_text())
        worker, name = PLACES[self._place]
        while (inside := self._flow.ask("inside"))[worker].get("name") != name or not self._is_late(inside):
            time.sleep(0.005)
        return int(inside[1]["pid"])

    def _is_late(self, inside: dict[int, dict[str, Any]]) -> bool:
        """Whether it is the long one: others of the name end at once."""
        return bool(inside[PLACES[self._place][0]]["seconds"] > 0.05)


class Named(logging.Handler):
    """Notes when the log names a worker that has ended.

    Attributes:
        at_s: Time at which the log named the worker, by `time.perf_counter`; 0 before.
    """

    at_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        if record.levelno >= logging.ERROR and "SIGKILL" in record.getMessage():
            self.at_s = self.at_s or time.perf_counter()


def round_of(place: str) -> tuple[float, float, float]:
    """Return milliseconds from the kill to the exception, to the end of the process as the kernel reports it, and to the log."""
    log, named = logging.getLogger("softs_fast.fleet"), Named()
    log.addHandler(named)
    try:
        found, killer = interrupted(place)
    finally:
        log.removeHandler(named)
    times = (found, killer.ended_s, named.at_s)
    whole_ms, kernel_ms, named_ms = ((one - killer.killed_s) * 1e3 for one in times)
    return whole_ms, kernel_ms, named_ms


def interrupted(place: str) -> tuple[float, Killer]:
    """Run a flow until its worker has been killed; returns when the exception came, and what killed it."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"place": place, "folder": folder}
        flow = df.Flow.in_processes("benches.dataflow_deaths:make_flow", arguments, max_restarts=0)
        killer = Killer(flow, place, folder)
        if place == "setup":
            killer.start()
            with contextlib.suppress(FlowError):
                flow.initialize()
                raise RuntimeError("the flow has begun")
            caught_s = time.perf_counter()
            killer.join()
        else:
            with flow:
                next(flow.steps(1))
                killer.start()
                with contextlib.suppress(FlowError):
                    list(flow.steps(2))
                    raise RuntimeError("the flow went on")
                caught_s = time.perf_counter()
                killer.join()
                pid = flow.ask("inside")[0]["pid"]
                os.kill(pid, signal.SIGKILL)  # it may sleep, and the end of the flow would wait for it
    return caught_s, killer


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--place", choices=list(PLACES), action="append")
    arguments = parser.parse_args()
    for place in arguments.place or PLACES:
        load = os.getloadavg()[0]
        found = [round_of(place) for _ in range(arguments.rounds)]
        whole, kernel, named = zip(*found, strict=True)
        own = [one - other for one, other, _ in found]
        texts = [
            f"{name} {statistics.median(values):.1f} (largest {max(values):.1f})"
            for name, values in (
                ("exception", whole),
                ("process has ended", kernel),
                ("from there", own),
                *([("named in the log", named)] if place == "setup" else []),
            )
        ]
        print(f"{place}: {', '.join(texts)} ms, of {len(found)}; load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
