"""Workers in processes of their own, which do what messages of the master tell them."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waiting import WATCHDOG_S

from softs_fast.dataflow.link.control import ControlClient, ControlServer, Ended, Joined, Left, Received
from softs_fast.errors import SoftsError


def work(endpoint: str, worker: int, options: dict[str, Any]) -> None:
    """Join and obey: `echo TEXT`, `hold SECONDS` (with the GIL), `fork`, `burst N`, `leave`."""
    client = ControlClient(endpoint, worker, **options)
    client.publish("spec", json.dumps({"pid": os.getpid()}).encode())
    while True:
        for item in client.receive():
            if isinstance(item, Ended):
                return
            command, _, rest = item.partition(b" ")
            if command == b"echo":
                client.send(rest)
            elif command == b"hold":
                client.send(b"holding")
                hold(float(rest))
                client.send(b"held")
            elif command == b"fork":
                client.send(b"forked %d" % lasting_fork())
            elif command == b"burst":
                for number in range(int(rest)):
                    client.send(b"%d" % number)
            elif command == b"leave":
                client.close()
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
def running(server: ControlServer, *workers: int, **options: Any) -> Iterator[dict[int, Any]]:
    """Run workers that have joined; kill what is left of them at the end."""
    context = multiprocessing.get_context("forkserver")
    processes = {
        worker: context.Process(target=work, args=(server.endpoint, worker, options)) for worker in workers
    }
    for process in processes.values():
        process.start()
    try:
        joined: set[int] = set()
        while joined < set(workers):
            joined |= {event.worker for event in events(server) if isinstance(event, Joined)}
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.join()
            process.close()


def events(server: ControlServer) -> list[Joined | Received | Left]:
    """Wait for the next events."""
    found = server.receive(WATCHDOG_S)
    assert found, f"nothing came within {WATCHDOG_S} s"
    return found


def messages(server: ControlServer, n: int) -> list[bytes]:
    """Wait for n messages; nothing else may come before them."""
    found: list[bytes] = []
    while len(found) < n:
        for event in events(server):
            assert isinstance(event, Received), event
            found.append(event.payload)
    assert len(found) == n
    return found


def departure(server: ControlServer) -> Left:
    """Wait for the departure of a worker; drop messages before it."""
    while True:
        for event in events(server):
            if isinstance(event, Left):
                return event


def refusal(endpoint: str, worker: int, **options: Any) -> str:
    """Return why a worker of this process does not join."""
    try:
        ControlClient(endpoint, worker, **options).close()
    except SoftsError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"worker {worker} has joined")
