"""Workers in processes of their own, which do what messages of the master tell them. All messages here are texts."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from token_files import credentials
from waiting import WATCHDOG_S

from softs_fast.dataflow.link.events import Joined, Left, LinkEvent, Received
from softs_fast.dataflow.link.messages import Abort, Message
from softs_fast.dataflow.link.stream import MasterStream, WorkerStream, join, listen_at
from softs_fast.errors import FlowError, PeerLost, SoftsError
from softs_fast.trust import Der

#: An endpoint of other hosts, and what its ends show each other.
ANY, SHOWN = "tcp://127.0.0.1:0", credentials("a")
#: Endpoint and credentials of both ends: of one host, and of several.
each_way = pytest.mark.parametrize("way", [("ipc://*", None), (ANY, SHOWN)], ids=["plain", "TLS"])
Way = tuple[str, Der | None]


def say(text: str) -> Message:
    """Return a message that has a text."""
    return Abort(1, text)


def said(message: Message) -> str:
    """Return the text of a message."""
    assert isinstance(message, Abort)
    return message.reason


def work(endpoint: str, worker: int, credentials: Der | None) -> None:
    """Join and obey: `echo TEXT`, `hold SECONDS` (with the GIL), `fork`, `burst N`, `leave`."""
    stream = WorkerStream(join(endpoint, credentials, worker))
    stream.publish("spec", json.dumps({"pid": os.getpid()}).encode())
    while True:
        try:
            messages = stream.receive(None)
        except PeerLost:
            return
        for message in messages:
            command, _, rest = said(message).partition(" ")
            if command == "echo":
                stream.send(say(rest))
            elif command == "hold":
                stream.send(say("holding"))
                hold(float(rest))
                stream.send(say("held"))
            elif command == "fork":
                stream.send(say(f"forked {lasting_fork()}"))
            elif command == "burst":
                for number in range(int(rest)):
                    stream.send(say(str(number)))
            elif command == "leave":
                stream.close()
                return


def hold(seconds: float) -> None:
    """Sleep in C with the GIL, as an extension that does not release it."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def lasting_fork() -> int:
    """Fork a process that has copies of all descriptors, and lives until it is killed."""
    if pid := os.fork():
        return pid
    signal.pause()
    os._exit(0)


@contextmanager
def opened(
    endpoint: str = "ipc://*", credentials: Der | None = None, **options: Any
) -> Iterator[MasterStream]:
    """Be a master."""
    with closing(MasterStream(listen_at(endpoint, credentials, **options))) as master:
        yield master


@contextmanager
def joined(
    master: MasterStream, worker: int, credentials: Der | None = None, **options: Any
) -> Iterator[WorkerStream]:
    """Be a worker of which the master knows that it has joined."""
    with closing(WorkerStream(join(master.endpoint, credentials, worker, **options))) as stream:
        assert isinstance(events(master)[0], Joined)
        yield stream


@contextmanager
def both(
    endpoint: str = "ipc://*", credentials: Der | None = None, **options: Any
) -> Iterator[tuple[MasterStream, WorkerStream]]:
    """Be a master and its worker 0, which has joined."""
    with (
        opened(endpoint, credentials, **options) as master,
        joined(master, 0, credentials, **options) as worker,
    ):
        yield master, worker


@contextmanager
def running(master: MasterStream, *workers: int, credentials: Der | None = None) -> Iterator[dict[int, Any]]:
    """Run workers that have joined; kill what is left of them at the end."""
    context = multiprocessing.get_context("forkserver")
    processes = {
        worker: context.Process(target=work, args=(master.endpoint, worker, credentials))
        for worker in workers
    }
    for process in processes.values():
        process.start()
    try:
        joined: set[int] = set()
        while joined < set(workers):
            joined |= {event.worker for event in events(master) if isinstance(event, Joined)}
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.join()
            process.close()


def events(master: MasterStream) -> list[LinkEvent]:
    """Wait for the next events."""
    found = master.receive(WATCHDOG_S)
    assert found, f"nothing came within {WATCHDOG_S} s"
    return found


def texts(master: MasterStream, n: int) -> list[str]:
    """Wait for n messages; nothing else may come before them."""
    found: list[str] = []
    while len(found) < n:
        for event in events(master):
            assert isinstance(event, Received), event
            found.append(said(event.message))
    assert len(found) == n
    return found


def departure(master: MasterStream) -> Left:
    """Wait for the departure of a worker; drop messages before it."""
    while True:
        for event in events(master):
            if isinstance(event, Left):
                return event


def refusal(endpoint: str, worker: int, credentials: Der | None = None, **options: Any) -> str:
    """Return why a worker of this process does not join."""
    try:
        join(endpoint, credentials, worker, **options).close(0)
    except SoftsError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"worker {worker} has joined")


def flood(send: Callable[[Message], None]) -> tuple[int, str]:
    """Send messages of 64 KiB until one is refused; returns how many were taken, and why one was not."""
    for number in range(1000):
        try:
            send(say(f"{number:x<65536}"))
        except (FlowError, PeerLost) as error:
            return number, str(error)
    raise AssertionError("1000 messages were taken")
