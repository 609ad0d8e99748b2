"""The two ends of the stream of a flow over native ones: their threads read and write, and answer questions while Python is busy.

The layout of the bytes is in docs/wire.md, section 6.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections import deque
from typing import Any, NamedTuple

from ... import _core
from ...errors import ConfigError, FlowError, PeerBusy, PeerLost, WireError
from ...process import raise_descriptor_limit
from ...repeated_log import RepeatedLog
from ...trust import Der
from .events import Joined, Left, LinkEvent, Published, Received
from .layouts import KnownLayouts
from .messages import MAX_BYTES, End, HookTask, Message, Refused, decode, encode

__all__ = ["MasterStream", "StreamLimits", "WorkerStream", "join", "listen_at"]

logger = logging.getLogger(__name__)

#: How long the writing of what was sent may take at the end, seconds.
_CLOSE_S = 1.0
#: A process that has not joined, of another host or of this one, as the native side names it. Texts with ports and reasons that a
#: stranger chooses would be new each time.
_STRANGER = re.compile(r"a process at (\S+):\d+|process \d+")


class StreamLimits(NamedTuple):
    """Limits of one end.

    Attributes:
        message_bytes: Bytes of one message; of a published value 17 bytes less. Those of the end with less hold for both.
        unsent_bytes: Bytes that may wait for one peer that does not read. A single message always may.
        unread_bytes: Bytes of one peer that may wait for `receive`; beyond them its connection is not read.
        workers: Workers that may be joined at the same time; of a master.
        handshake_s: Seconds from connecting to joining.
    """

    message_bytes: int = MAX_BYTES
    unsent_bytes: int = 64 << 20
    unread_bytes: int = 64 << 20
    workers: int = 4096
    handshake_s: float = 10.0


def listen_at(
    endpoint: str,
    credentials: Der | None,
    *,
    lost_after_s: float = 30.0,
    limits: StreamLimits | None = None,
) -> _core.FlowServer:
    """Listen for workers, as the native end of a master.

    Args:
        endpoint: Endpoint that workers connect to: `ipc://PATH`, `ipc://*` for a socket in a new folder that only this user
            may enter, or `tcp://HOST:PORT`.
        credentials: What both ends show each other in TLS 1.3, as `TlsFiles.der` returns it. None: plain bytes, of this user
            alone, on this host alone.
        lost_after_s: Seconds without a sign of life after which a worker on another host has left.
        limits: Limits of sizes and numbers.

    Raises:
        ConfigError: endpoint or credentials are malformed, or other hosts could connect without credentials.
        EndpointInUse: a process listens there already.
        PeerLost: the system has no more descriptors or threads.
    """
    raise_descriptor_limit()
    return _core.FlowServer(endpoint, credentials, limits or StreamLimits(), lost_after_s)


def join(
    endpoint: str, credentials: Der | None, worker: int, *, limits: StreamLimits | None = None
) -> _core.FlowClient:
    """Join a master, as the native end of a worker.

    Args:
        endpoint: Endpoint of the master.
        credentials: As those of the master, see `listen_at`.
        worker: Number of this worker, or its seat, below 2^32.
        limits: Limits of sizes.

    Raises:
        HelloError: one end refused the other; the text says why.
        PeerLost: no process listens there, it belongs to another user, or does not answer in time.
        ConfigError: endpoint or credentials are malformed.
    """
    return _core.FlowClient(endpoint, worker, socket.gethostname(), credentials, limits or StreamLimits())


class MasterStream:
    """The master's end: messages to and from all workers, in order for each.

    Everything may be called by several threads; one of them receives. A process that ends, by whatever signal, is reported
    as `Left` at once; one that is stopped is not.

    Args:
        native: Native end, which is closed with this one.

    Attributes:
        endpoint: Endpoint that workers connect to, wildcards resolved.
    """

    def __init__(self, native: _core.FlowServer) -> None:
        self._log = RepeatedLog(logger)
        self._native: _core.FlowServer | None = native
        self.endpoint = native.endpoint
        #: Of each connection, what was sent and what was received.
        self._sent: dict[int, KnownLayouts] = {}
        self._got: dict[int, KnownLayouts] = {}
        #: Workers that a message was not sent to, because no more of it could wait: another one would be out of turn.
        self._cut_off: set[int] = set()
        #: Fields of what has arrived and was not returned yet, and the error that comes before it.
        self._arrived: deque[tuple[Any, ...]] = deque()
        self._error: WireError | None = None
        #: The hook that was sent last, and its bytes: all its workers get the same.
        self._last_hook: tuple[HookTask | None, bytes] = (None, b"")

    def send(self, worker: int, message: Message) -> None:
        """Send a message, and never wait for it; one to a worker that has left is dropped, and `receive` reports that.

        Raises:
            FlowError: too much waits for the worker already. It gets nothing more then, as messages have an order. Of
                the end of the flow it learns when the connection ends.
            WireError: the message is too long.
            ForkedError: this is a fork of the process that listens.
        """
        native = self._open()
        try:
            if worker in self._cut_off and not isinstance(message, End | Refused):
                raise PeerBusy("a message before this one was not sent")
            native.send(worker, self._encoded(worker, message))
        except PeerBusy as error:
            self._cut_off.add(worker)
            if not isinstance(message, End | Refused):
                raise FlowError(f"worker {worker} takes no more orders: {error}") from error
        except PeerLost:
            self._drop_sent(worker)  # its successor has got none of it

    def _drop_sent(self, worker: int) -> None:
        self._sent.pop(worker, None)
        self._cut_off.discard(worker)

    def _encoded(self, worker: int, message: Message) -> bytes:
        if not isinstance(message, HookTask):
            return encode(message, self._sent.setdefault(worker, KnownLayouts()))
        if message != self._last_hook[0]:
            self._last_hook = message, encode(message)
        return self._last_hook[1]

    def receive(self, timeout_s: float) -> list[LinkEvent]:
        """Return what has happened, as soon as something has, or nothing when the time is over. The GIL is free meanwhile.

        Connections that did not join are logged as warnings: of each address one every 10 s, with a count.

        Raises:
            WireError: a worker has sent what is no message. All that arrived before it was returned, and what arrived
                after it is returned next.
            PeerLost: this end was closed.
            ForkedError: this is a fork of the process that listens.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not self._arrived:
            arrived = self._receive(timeout_s)
            for kind, worker, *_ in arrived:
                if kind == "left":
                    # What is sent from here on goes to its successor.
                    self._drop_sent(worker)
            self._arrived.extend(arrived)
        events: list[LinkEvent] = []
        while self._arrived:
            try:
                event = self._event(*self._arrived.popleft())
            except WireError as found:
                if not events:
                    raise
                self._error = found
                return events
            events.append(event)
        return events

    def _receive(self, timeout_s: float) -> list[tuple[Any, ...]]:
        end_s = time.monotonic() + timeout_s
        while (taken := self._open().receive(max(0.0, end_s - time.monotonic()))) is not None:
            events, records, ended = taken
            for level, text in records:
                found = _STRANGER.match(text)
                self._log.log(level, text if found is None else found[1] or "this host", text)
            if events:
                return events
            if ended is not None:
                raise PeerLost(f"the connections at {self.endpoint}: {ended}")
        return []

    def _event(self, kind: str, worker: int, *fields: Any) -> LinkEvent:
        if kind == "received":
            return Received(worker, decode(fields[0], self._got[worker]))
        if kind == "joined":
            self._got[worker] = KnownLayouts()
            return Joined(worker, *fields)
        # Each process of a worker may have a number of its own: nothing is kept of those that have left.
        self._got.pop(worker, None)
        return Left(worker, *fields)

    def ask(self, worker: int, what: str, timeout_s: float) -> Published:
        """Return what a worker has published under a name; a native thread of it answers, also while it holds the GIL.

        Raises:
            FlowError: it has published nothing of that name, has left, or does not answer in time.
            ForkedError: this is a fork of the process that listens.
        """
        try:
            answer = self._open().ask(worker, what, timeout_s)
        except (PeerLost, PeerBusy, ConfigError) as error:
            raise FlowError(f"worker {worker} does not answer {what!r}: {error}") from error
        if answer is None:
            raise FlowError(
                f"worker {worker} does not answer {what!r} within {timeout_s:.3f} s; it is connected: is it stopped?"
            )
        value, age_us = answer
        return Published(value, age_us * 1e-6)

    def close(self) -> None:
        """End all connections; workers learn that. Idempotent; in a fork it does nothing."""
        # The native object has descriptors until it is dropped, and its last reference is here.
        native, self._native = self._native, None
        if native is not None:
            native.close(_CLOSE_S)
            self._log.flush()

    def _open(self) -> _core.FlowServer:
        if self._native is None:
            raise PeerLost(f"the connections at {self.endpoint} were closed")
        return self._native


class WorkerStream:
    """A worker's end. Everything may be called by several threads; one of them receives.

    The connection lives as long as this object and is not made again: a worker that has lost its master joins with
    another one.

    Args:
        native: Native end, which is closed with this one.
    """

    def __init__(self, native: _core.FlowClient) -> None:
        self._native: _core.FlowClient | None = native
        self._sent, self._got = KnownLayouts(), KnownLayouts()
        # Layouts are sent before they are named, whatever threads send.
        self._lock = threading.Lock()

    def publish(self, what: str, value: bytes) -> None:
        """Have a question of the master answered with a value from now on; the native thread does it.

        Args:
            what: Name of the question, at most 255 bytes; at most 256 names.
            value: Answer, at most 17 bytes less than a message.

        Raises:
            ConfigError: name or value are too long, or there are too many names.
            ForkedError: this is a fork of the process that has joined.
        """
        self._open().publish(what, value)

    def stack_pipe(self) -> int:
        """Open a pipe for `answer_stack`; returns the descriptor that a handler writes to. The caller closes it.

        Raises:
            PeerLost: the system has no more descriptors.
            ForkedError: this is a fork of the process that has joined.
        """
        return self._open().stack_pipe()

    def answer_stack(self, what: str, signal: int) -> None:
        """Answer questions of this name with what a handler of a signal writes in the thread that calls this now.

        The native thread sends the signal to that thread when it is asked, reads what comes within half a second, and
        answers. If the signal has another handler by then, the answer says so, and nothing is sent.

        Args:
            what: Name of the question, at most 255 bytes.
            signal: Number of a signal with a handler that is C, and that writes to the pipe of `stack_pipe`.

        Raises:
            ConfigError: the signal has no handler, the name is too long, or there is no pipe.
            ForkedError: this is a fork of the process that has joined.
        """
        self._open().answer_stack(what, signal)

    def send(self, message: Message) -> None:
        """Send a message, and never wait for it; any thread may call, and no handler of a signal.

        Raises:
            PeerLost: the master has ended, or too much waits for it already: then the connection ends, too, as messages
                have an order.
            WireError: the message is too long.
            ForkedError: this is a fork of the process that has joined.
        """
        with self._lock:
            native = self._open()
            try:
                native.send(encode(message, self._sent))
            except PeerBusy as error:
                logger.error("this worker leaves: its master takes no more: %s", error)
                WorkerStream.close(self)
                raise PeerLost(f"the master takes no more: {error}") from error

    def receive(self, timeout_s: float | None) -> list[Message]:
        """Return messages, as soon as there are some, or nothing when the time is over; None: without end.

        Raises:
            PeerLost: the master has ended, or this end was closed, perhaps by another thread; what came before was returned.
            ForkedError: this is a fork of the process that has joined.
        """
        native = self._open()
        messages = native.receive(timeout_s)
        if messages is None:
            return []
        if not messages:
            raise PeerLost(f"the master has ended: {native.ended}")
        return [decode(one, self._got) for one in messages]

    def close(self) -> None:
        """Leave the master, and end a `receive` of another thread; idempotent, and in a fork it does nothing."""
        native, self._native = self._native, None
        if native is not None:
            native.close(_CLOSE_S)

    def _open(self) -> _core.FlowClient:
        if self._native is None:
            raise PeerLost("the connection to the master was closed")
        return self._native
