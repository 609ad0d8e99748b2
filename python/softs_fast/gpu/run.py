"""Runs one step within its limit, whatever it does, and ends all processes that it has started."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from . import step as step_process
from .plan import Step

__all__ = ["Outcome", "run_step"]

#: What is kept of a step's output: its end, bytes.
_TAIL_BYTES = 16 << 10
_RESULT_BYTES = 8 << 20
#: A process that has sent its result ends within this, or is killed; one that was killed is gone within it, or is left.
_END_S = 5.0
#: When a step is late, its processes are asked where they are, and killed once they have written nothing for so long, or
#: after so long; seconds.
_SILENCE_S, _PLACES_S = 0.5, 2.0


@dataclass(frozen=True)
class Outcome:
    """What became of a step.

    Attributes:
        state: One of passed, skipped, failed, killed (by a signal) or timed out.
        seconds: How long the step ran.
        reason: Reason why the step has not passed; empty if it has.
        result: Value that the step's function returned; None if it returned nothing.
        output: The end of what the step and its processes wrote.
    """

    state: str
    seconds: float
    reason: str = ""
    result: Any = None
    output: str = ""


def run_step(step: Step, quick: bool, start_method: str = "forkserver") -> Outcome:
    """Run a step in a session of its own.

    Args:
        step: Step to run.
        quick: Whether the function shall do less.
        start_method: Start method of multiprocessing. `spawn` loads all modules again; `forkserver` has loaded torch
            once.
    """
    context: Any = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        # No module of softs_fast, and nothing that uses CUDA: a fork of a process that has used it cannot.
        context.set_forkserver_preload(["torch", "torch.distributed"])
    result, result_there = context.Pipe(duplex=False)
    output, output_there = context.Pipe(duplex=False)
    arguments = (step.function, quick, step.needs_gpu, result_there, output_there)
    process = context.Process(target=step_process.main, args=arguments)
    with result, output:
        with result_there, output_there:
            # The first one waits until the server has loaded torch, as the process that looked for devices did before.
            process.start()
        began = time.monotonic()
        watch = _Watch(process, result, output)
        try:
            in_time = watch.follow(began + step.limit_s)
            seconds = time.monotonic() - began
            if not in_time:
                _signal(_members(process.pid), step_process.TELL_PLACES)
                watch.read_places()
        finally:
            left = _end(process)
        watch.drain()
        outcome = _outcome(watch, process.exitcode, in_time, step.limit_s, seconds, left)
    if not process.is_alive():
        process.close()
    return outcome


class _Watch:
    """Reads what a step writes, so that it never waits for that."""

    def __init__(self, process: Any, result: Connection, output: Connection) -> None:
        self._process = process
        self._result: Connection | None = result
        self._output: Connection | None = output
        os.set_blocking(output.fileno(), False)
        self.tail = b""
        self.told: dict[str, Any] | None = None

    def follow(self, until: float) -> bool:
        """Read until the process has ended; return False if it has not in time."""
        while True:
            sources = [self._process.sentinel, *filter(None, [self._result, self._output])]
            ready = wait(sources, max(0.0, until - time.monotonic()))
            if not ready:
                return self.told is not None
            if self._output in ready:
                self._read()
            if self._result in ready:
                self._receive()
                # What is left of the process does not count against its limit.
                until = time.monotonic() + _END_S
            if self._process.sentinel in ready:
                return True

    def read_places(self) -> None:
        """Read until the processes have written nothing for a while; they may also never cease to write."""
        give_up = time.monotonic() + _PLACES_S
        while self._output is not None and time.monotonic() < give_up and wait([self._output], _SILENCE_S):
            self._read()

    def drain(self) -> None:
        """Read the rest, once the processes have ended."""
        while self._read():
            pass
        if self._result is not None and self._result.poll():
            self._receive()

    def _read(self) -> bool:
        if self._output is None:
            return False
        try:
            data = os.read(self._output.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        if not data:
            self._output = None
        return bool(data)

    def _receive(self) -> None:
        assert self._result is not None
        with suppress(EOFError, OSError, ValueError):
            self.told = json.loads(self._result.recv_bytes(_RESULT_BYTES))
        self._result = None


def _outcome(
    watch: _Watch, status: int | None, in_time: bool, limit_s: float, seconds: float, left: set[int]
) -> Outcome:
    told = watch.told or {}
    state, reason = told.get("state", "failed"), told.get("reason", "")
    if not in_time:
        state, reason = "timed out", f"not done within {limit_s:g} s"
    elif watch.told is None and status is not None and status < 0:
        state, reason = "killed", f"by {_signal_name(-status)}"
    elif watch.told is None:
        reason = f"ended with status {status}, without a result"
    elif status == -signal.SIGKILL:
        reason = reason or f"did not end by itself within {_END_S:g} s after its result"
    elif status not in (0, None):
        state, reason = "failed", f"ended with {_status_text(status)} after its result"
    if left:
        state = "timed out" if state == "timed out" else "failed"
        reason += f"; processes {sorted(left)} do not end, although they were killed"
    output = watch.tail.decode(errors="replace")
    return Outcome(state, seconds, reason.removeprefix("; "), told.get("result"), output)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _status_text(status: int) -> str:
    return _signal_name(-status) if status < 0 else f"status {status}"


def _end(process: Any) -> set[int]:
    """Kill a process and all of its session; return those that are left, which the kernel cannot end now."""
    give_up = time.monotonic() + _END_S
    while True:
        if process.is_alive():
            process.kill()
        found = _members(process.pid)
        _signal(found, signal.SIGKILL)
        process.join(0.01)
        if not found and not process.is_alive():
            return set()
        if time.monotonic() > give_up:
            return found | {process.pid}


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _members(session: int) -> set[int]:
    """Return the processes of a session that have not ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The fields follow the name, which is in parentheses: state, parent, group, session.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has gone
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.add(int(path.parent.name))
    return found
