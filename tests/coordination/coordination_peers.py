"""A coordinator, or one worker, in a process of its own: forks of zygote.py that call `run`.

A coordinator reports its lines. A worker says Ready whenever it can, reports what it is told, and does what it is asked.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import sys
import threading
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from patience import pings

from softs_fast import cli
from softs_fast.coordination.credentials import ClientCredentials
from softs_fast.coordination.job import messages as m
from softs_fast.coordination.requirements import import_grpc
from softs_fast.coordination.session.session import Session
from softs_fast.errors import ForkedError, SoftsError
from softs_fast.records import plain

import_grpc()
_lock = threading.Lock()


def say(event: str, **more: Any) -> None:
    """Report an event, with the time on the clock that processes share."""
    with _lock:
        sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **more}, default=str) + "\n")
        sys.stdout.flush()


class Member:
    """A listener without an engine."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.told = (0, 0)
        self.is_member = False
        self.session: Session | None = None

    def hello(self) -> m.Hello:
        """Return the first message; it goes on with the epoch in which it is."""
        options = self.options
        engine = self.told if self.is_member else (0, 0)
        state = m.WorkerState(*self.told) if self.is_member else m.WorkerState()
        return m.Hello(
            options.get("job", "job"),
            options["worker_id"],
            options.get("incarnation", 1),
            options.get("seat"),
            options.get("at", ""),
            state,
            engine_boot=engine[0],
            engine_epoch=engine[1],
        )

    def received(self, message: m.ToWorker) -> None:
        """Say Ready when there is no engine."""
        match message:
            case m.Welcome() if not self.is_member:
                self.ready()
            case m.Table():
                self.told, self.is_member = (message.boot, message.epoch), True
            case m.Fence():
                self.told, self.is_member = (message.boot, message.epoch), False
                self.ready()
        # Last: what the test asks for then finds the worker as it says.
        say(type(message).__name__, **plain(message))

    def ready(self) -> None:
        """Wait for a table."""
        assert self.session is not None
        self.session.send(m.Ready(m.WorkerState(), *self.told))

    def lost(self, text: str, is_warning: bool) -> None:
        """Report it."""
        say("lost", text=text, is_warning=is_warning)

    def ended(self, error: SoftsError) -> None:
        """Report it."""
        say("over", kind=type(error).__name__, text=str(error))


def forks(member: Member, n: int, how: str) -> list[int]:
    """Fork children, which use the session and end; their exit statuses."""
    statuses = []
    for _ in range(n):
        child = os.fork()
        if child == 0:
            try:
                assert member.session is not None
                member.session.send(m.Leave("from a fork"))
            except ForkedError:
                pass
            else:
                os._exit(3)
            if how == "exit":
                sys.exit(0)
            os._exit(0)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return statuses


def work(options: dict[str, Any]) -> None:
    """Run until standard input ends."""
    files = {name: Path(path) for name, path in options.get("credentials", {}).items()}
    member = Member(options)
    member.session = Session(options["address"], member, ClientCredentials(**files), pings())
    member.session.start()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        epoch, result = member.told[1], None
        match command:
            case "fault":
                member.session.send(m.Fault(epoch, 1, None, *arguments))
            case "leave":
                member.session.send(m.Leave(*arguments))
            case "hold the GIL":
                ctypes.PyDLL(None).usleep(ctypes.c_uint(int(arguments[0] * 1e6)))
            case "fork":
                result = forks(member, *arguments)
            case "close":
                member.session.close()
        say("done", result=result)


class Reported(io.TextIOBase):
    """A stream of which each line is an event."""

    def __init__(self, event: str, out: TextIO) -> None:
        self._event, self._out, self._rest = event, out, ""

    def write(self, text: str) -> int:
        """Report whole lines."""
        with _lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._out.write(json.dumps({"event": self._event, "text": line}) + "\n")
            self._out.flush()
        return len(text)


def coordinate(options: list[str]) -> None:
    """Run ``softs-fast coordinator run`` with options."""
    warnings.simplefilter("error")
    lines, log = Reported("line", sys.stdout), Reported("log", sys.stdout)
    with redirect_stdout(lines), redirect_stderr(log):
        status = cli.main(["coordinator", "run", *options])
    if status:
        sys.exit(status)


def run(role: str, options: Any) -> None:
    """Run a peer."""
    {"coordinator": coordinate, "worker": work}[role](options)
