"""Workers of a flow as threads of this process, and connections in memory: deaths at any message."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.frames import Assembler, cut
from softs_fast.dataflow.link.layouts import KnownLayouts
from softs_fast.dataflow.link.links import Joined, Left, LinkEvent, Published, Received
from softs_fast.dataflow.link.messages import Message, Ready, decode, encode
from softs_fast.dataflow.process.worker import FlowWorker
from softs_fast.dataflow.workers.processes import ProcessBackend
from softs_fast.errors import FlowError, PeerLost


class MemoryHub:
    """Both ends of all connections. Messages travel as bytes, so all of them are encoded and decoded."""

    def __init__(self) -> None:
        self.to_master: queue.Queue[LinkEvent | tuple[int, bytes]] = queue.Queue()
        self.links: dict[int, MemoryLink] = {}
        self.sent: list[tuple[int, Message]] = []
        #: Called with each message of a worker before it arrives.
        self.on_message: Callable[[int, Message], None] = lambda worker, message: None
        self._assemblers: dict[int, Assembler] = {}
        #: Of each connection, what was sent and what has arrived.
        self._known: dict[int, tuple[KnownLayouts, KnownLayouts]] = {}

    def connect(self, worker: int) -> MemoryLink:
        """Return a worker's end."""
        self.links[worker] = MemoryLink(self, worker)
        self._assemblers[worker], self._known[worker] = Assembler(), (KnownLayouts(), KnownLayouts())
        self.to_master.put(Joined(worker, 1000 + worker, "here"))
        return self.links[worker]

    def kill(self, worker: int) -> None:
        """End the connection of a worker, as the death of its process does."""
        link = self.links[worker]
        if not link.is_dead:
            link.is_dead = True
            link.inbox.put(None)  # wakes it
            self.to_master.put(Left(worker, "the connection has ended"))

    def send(self, worker: int, message: Message) -> None:
        """Send a message to a worker."""
        self.sent.append((worker, message))
        for frame in cut(encode(message, self._known[worker][0])):
            self.links[worker].inbox.put(frame)

    def receive(self, timeout_s: float) -> list[LinkEvent]:
        """Return what has happened."""
        events: list[LinkEvent] = []
        give_up = time.monotonic() + timeout_s
        while not events:
            try:
                one = (
                    self.to_master.get(timeout=max(give_up - time.monotonic(), 0.0))
                    if timeout_s
                    else self.to_master.get_nowait()
                )
            except queue.Empty:
                return events
            if isinstance(one, tuple):
                data = self._assemblers[one[0]].take(one[1])
                if data is not None:
                    events.append(Received(one[0], decode(data, self._known[one[0]][1])))
            else:
                events.append(one)
        return events

    def ask(self, worker: int, what: str, timeout_s: float) -> Published:
        """Return what a worker has published, and how old it is."""
        if what not in self.links[worker].published:
            raise FlowError(f"worker {worker} has published no {what!r}")
        value, at_s = self.links[worker].published[what]
        return Published(value, time.monotonic() - at_s)

    def close(self) -> None:
        """End all connections."""
        for worker in self.links:
            self.kill(worker)


class MemoryLink:
    """A worker's end."""

    def __init__(self, hub: MemoryHub, worker: int) -> None:
        self.inbox: queue.Queue[bytes | None] = queue.Queue()
        self.published: dict[str, tuple[bytes, float]] = {}
        self.is_dead = False
        self._hub = hub
        self._worker = worker
        self._assembler = Assembler()
        self._sent, self._got = KnownLayouts(), KnownLayouts()

    def publish(self, what: str, value: bytes) -> None:
        """Keep an answer."""
        self.published[what] = value, time.monotonic()

    def stack_pipe(self) -> int:
        """Nothing reads what is written there."""
        return os.open(os.devnull, os.O_WRONLY)

    def answer_stack(self, what: str, signal: int) -> None:
        """There is no native thread that could answer."""
        self.publish(what, b"no stack: this worker is a thread")

    def send(self, message: Message) -> None:
        """Send a message to the master."""
        if not isinstance(message, Ready):  # deaths while workers begin are another matter
            self._hub.on_message(self._worker, message)
        self._check()
        for frame in cut(encode(message, self._sent)):
            self._hub.to_master.put((self._worker, frame))

    def receive(self, timeout_s: float | None) -> list[Message]:
        """Return messages."""
        self._check()
        try:
            frame = self.inbox.get_nowait() if timeout_s == 0 else self.inbox.get(timeout=timeout_s)
        except queue.Empty:
            self._check()
            return []
        if frame is None:
            self._check()
            return []
        data = self._assembler.take(frame)
        return [] if data is None else [decode(data, self._got)]

    def close(self) -> None:
        """End the connection."""
        self._hub.kill(self._worker)

    def _check(self) -> None:
        if self.is_dead:
            raise PeerLost("the master has ended")


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
        if self.hub.links[worker].is_dead and self.left:
            self.left -= 1
            self.workers[worker].stop()
            self.workers[worker] = self._make(worker)
            self.workers[worker].start()
        return not self.hub.links[worker].is_dead

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
