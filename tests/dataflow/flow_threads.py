"""Workers of a flow as threads of this process, and connections in memory: deaths at any message."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.messages import Message, Ready
from softs_fast.dataflow.link.stream import MasterStream, WorkerStream
from softs_fast.dataflow.process.worker import FlowWorker
from softs_fast.dataflow.workers.processes import ProcessBackend
from softs_fast.errors import ConfigError, FlowError, PeerLost


class MemoryHub(MasterStream):
    """The master's end of all connections."""

    def __init__(self) -> None:
        self.links: dict[int, MemoryLink] = {}
        self.sent: list[tuple[int, Message]] = []
        #: Called with each message of a worker before it arrives.
        self.on_message: Callable[[int, Message], None] = lambda worker, message: None
        self.server = _Server(self)
        super().__init__(cast(Any, self.server))

    def connect(self, worker: int) -> MemoryLink:
        """Return a worker's end."""
        self.links[worker] = MemoryLink(self, worker)
        self.server.events.put(("joined", worker, 1000 + worker, "here"))
        return self.links[worker]

    def kill(self, worker: int) -> None:
        """End the connection of a worker, as the death of its process does."""
        client = self.links[worker].client
        if not client.is_dead:
            client.is_dead = True
            client.inbox.put(None)  # wakes it
            self.server.events.put(("left", worker, "the connection has ended"))

    def send(self, worker: int, message: Message) -> None:
        """Send a message to a worker."""
        self.sent.append((worker, message))
        super().send(worker, message)


class MemoryLink(WorkerStream):
    """A worker's end."""

    def __init__(self, hub: MemoryHub, worker: int) -> None:
        self.client = _Client(hub, worker)
        self._hub, self._worker = hub, worker
        super().__init__(cast(Any, self.client))

    def send(self, message: Message) -> None:
        """Send a message to the master."""
        if not isinstance(message, Ready):  # deaths while workers begin are another matter
            self._hub.on_message(self._worker, message)
        super().send(message)


class _Server:
    """Stands for the native end of a master."""

    endpoint = "memory"

    def __init__(self, hub: MemoryHub) -> None:
        self.events: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._hub = hub

    def send(self, worker: int, payload: bytes) -> None:
        self._hub.links[worker].client.inbox.put(payload)

    def receive(self, timeout_s: float) -> tuple[list[tuple[Any, ...]], list[Any], None] | None:
        try:
            one = self.events.get(timeout=timeout_s) if timeout_s else self.events.get_nowait()
        except queue.Empty:
            return None
        return [one], [], None

    def ask(self, worker: int, what: str, timeout_s: float) -> tuple[bytes, int]:
        published = self._hub.links[worker].client.published
        if what not in published:
            raise ConfigError(f"worker {worker} has published no {what!r}")
        value, at_s = published[what]
        return value, int((time.monotonic() - at_s) * 1e6)

    def close(self, timeout_s: float) -> None:
        for worker in self._hub.links:
            self._hub.kill(worker)


class _Client:
    """Stands for the native end of a worker."""

    ended = "it was killed"

    def __init__(self, hub: MemoryHub, worker: int) -> None:
        self.inbox: queue.Queue[bytes | None] = queue.Queue()
        self.published: dict[str, tuple[bytes, float]] = {}
        self.is_dead = False
        self._hub, self._worker = hub, worker

    def publish(self, what: str, value: bytes) -> None:
        self.published[what] = value, time.monotonic()

    def stack_pipe(self) -> int:
        return os.open(os.devnull, os.O_WRONLY)  # nothing reads what is written there

    def answer_stack(self, what: str, signal: int) -> None:
        self.publish(what, b"no stack: this worker is a thread")

    def send(self, payload: bytes) -> None:
        if self.is_dead:
            raise PeerLost("the master has ended")
        self._hub.server.events.put(("received", self._worker, payload))

    def receive(self, timeout_s: float | None) -> list[bytes] | None:
        frame = None
        if not self.is_dead:
            try:
                frame = self.inbox.get_nowait() if timeout_s == 0 else self.inbox.get(timeout=timeout_s)
            except queue.Empty:
                return None
        return [] if frame is None or self.is_dead else [frame]

    def close(self, timeout_s: float) -> None:
        self._hub.kill(self._worker)


class ThreadWorkers:
    """Workers as threads; their stores are real."""

    def __init__(self, build: Callable[[], Declaration], lines: list[str], workers: tuple[int, ...]) -> None:
        self.hub = MemoryHub()
        self._make = lambda worker: FlowWorker(worker, build, lines, self.hub.connect)
        self.workers = {worker: self._make(worker) for worker in workers}
        self.reasons: dict[int, str] = {}
        #: How many may be started again, all together.
        self.left = 0

    def start(self) -> MemoryHub:
        """Start all."""
        for worker in self.workers.values():
            try:
                worker.start()
            except Exception as error:
                raise FlowError(f"the workers of the flow could not begin: {error}") from error
        return self.hub

    def why(self, worker: int) -> str:
        """Return why one has ended."""
        return self.reasons.get(worker, "")

    def kill(self, worker: int, reason: str) -> None:
        """End the connection of a worker; a thread cannot be ended."""
        self.hub.kill(worker)

    def restarts(self, worker: int) -> bool:
        """Start a worker again that has left; returns whether there is one."""
        if self.hub.links[worker].client.is_dead and self.left:
            self.left -= 1
            self.workers[worker].stop()
            self.workers[worker] = self._make(worker)
            self.workers[worker].start()
        return not self.hub.links[worker].client.is_dead

    def close(self) -> None:
        """End all."""
        for worker in self.workers.values():
            if worker._thread.ident is not None:
                worker.stop()


def in_threads(make: Callable[[], df.Flow]) -> tuple[df.Flow, ThreadWorkers]:
    """Return a flow of which each worker is a thread with an object of its own for each of its roles."""
    flow = make()
    declaration = flow.declaration
    workers = ThreadWorkers(lambda: make().declaration, declaration.lines(), declaration.workers)
    flow._use(ProcessBackend(declaration, workers))
    return flow, workers


def when(hub: MemoryHub, test: Callable[[int, Message], bool], action: Callable[[], Any]) -> threading.Event:
    """Do something once, before the first message of a worker that a test accepts arrives; returns what is set then."""
    done = threading.Event()

    def look(worker: int, message: Message) -> None:
        if not done.is_set() and test(worker, message):
            action()
            done.set()

    hub.on_message = look
    return done
