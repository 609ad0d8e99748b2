"""Links over the native stream of a flow: its threads read and write, and answer questions while Python is busy.

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
from .frames import Assembler, cut
from .layouts import KnownLayouts
from .links import Joined, Left, LinkEvent, Published, Received
from .messages import End, HookTask, Message, Refused, decode, encode

__all__ = ["MasterStream", "StreamLimits", "WorkerStream"]

logger = logging.getLogger(__name__)

#: The native ends can order masters by a number. A worker of a flow knows one master alone, so all have the same.
_INCARNATION = 1
#: How long the writing of what was sent may take at the end, seconds.
_CLOSE_S = 1.0
#: A process that has not joined, of another host or of this one, as the native side names it. Texts with ports and reasons that a
#: stranger chooses would be new each time.
_STRANGER = re.compile(r"a process at (\S+):\d+|process \d+")


class StreamLimits(NamedTuple):
    """Limits of one end. Of the two sizes of a frame the smaller one holds for both directions.

    Attributes:
        frame_bytes: Bytes of one frame; of a published value 17 bytes less.
        unsent_bytes: Bytes that may wait for one peer that does not read. A single frame always may.
        unread_bytes: Bytes of one peer that may wait for `receive`; beyond them its connection is not read.
        workers: Workers that may be joined at the same time; of a master.
        handshake_s: Seconds from connecting to joining.
    """

    frame_bytes: int = 1 << 20
    unsent_bytes: int = 64 << 20
    unread_bytes: int = 64 << 20
    workers: int = 4096
    handshake_s: float = 10.0


class MasterStream:
    """The master's end; see `MasterLink`. Everything may be called by several threads; one of them receives.

    A process that ends, by whatever signal, is reported as `Left` at once; one that is stopped is not.

    Args:
        token: Token that workers must prove to have; 22 to 512 visible characters, see `softs_fast.trust.new_token`. It is not
            sent. What follows is not encrypted, so other hosts are for a network that you trust.
        listen: Endpoint that workers connect to: `ipc://PATH`, `ipc://*` for a socket in a new folder that only this user may
            enter, or `tcp://HOST:PORT`.
        lost_after_s: Seconds without a sign of life after which a worker on another host has left.
        limits: Limits of sizes and numbers.

    Raises:
        ConfigError: endpoint or token are malformed.
        EndpointInUse: a process listens there already.
        PeerLost: the system has no more descriptors or threads.
    """

    def __init__(
        self,
        token: str,
        *,
        listen: str = "ipc://*",
        lost_after_s: float = 30.0,
        limits: StreamLimits | None = None,
    ) -> None:
        raise_descriptor_limit()
        self._log = RepeatedLog(logger)
        self._native: _core.FlowServer | None = _core.FlowServer(
            listen, token, _INCARNATION, _INCARNATION, limits or StreamLimits(), lost_after_s
        )
        self._endpoint = self._native.endpoint
        self._assemblers: dict[int, Assembler] = {}
        #: Of each connection, what was sent and what was received.
        self._sent: dict[int, KnownLayouts] = {}
        self._got: dict[int, KnownLayouts] = {}
        #: Workers that were sent a part of a message, because no more of it could wait.
        self._cut_off: set[int] = set()
        #: Fields of what has arrived and was not returned yet, and the error that comes before it.
        self._arrived: deque[tuple[Any, ...]] = deque()
        self._error: WireError | None = None
        #: The hook that was sent last, and its frames: all its workers get the same.
        self._last_hook: tuple[HookTask | None, list[bytes]] = (None, [])

    @property
    def endpoint(self) -> str:
        """Where workers connect to, wildcards resolved."""
        return self._endpoint

    def send(self, worker: int, message: Message) -> None:
        """Send a message, and never wait for it; one to a worker that has left is dropped, and `receive` reports that.

        Raises:
            FlowError: too much waits for the worker already. It gets nothing more then: it would be read as the rest of
                the message of which a part was sent. Of the end of the flow it learns when the connection ends.
            WireError: the message is too long.
            ForkedError: this is a fork of the process that listens.
        """
        native = self._open()
        try:
            if worker in self._cut_off:
                raise PeerBusy("a message to it was sent in part")
            for frame in self._frames(worker, message):
                native.send(worker, frame)
        except PeerBusy as error:
            self._cut_off.add(worker)
            if not isinstance(message, End | Refused):
                raise FlowError(f"worker {worker} takes no more orders: {error}") from error
        except PeerLost:
            self._drop_sent(worker)  # its successor has got none of it

    def _drop_sent(self, worker: int) -> None:
        self._sent.pop(worker, None)
        self._cut_off.discard(worker)

    def _frames(self, worker: int, message: Message) -> list[bytes]:
        if not isinstance(message, HookTask):
            return list(cut(encode(message, self._sent.setdefault(worker, KnownLayouts()))))
        if message != self._last_hook[0]:
            self._last_hook = message, list(cut(encode(message)))
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
            if event is not None:
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
                raise PeerLost(f"the connections at {self._endpoint}: {ended}")
        return []

    def _event(self, kind: str, worker: int, *fields: Any) -> LinkEvent | None:
        if kind == "received":
            data = self._assemblers[worker].take(*fields)
            return None if data is None else Received(worker, decode(data, self._got[worker]))
        if kind == "joined":
            self._assemblers[worker], self._got[worker] = Assembler(), KnownLayouts()
            pid, host, _ = fields
            return Joined(worker, pid, host)
        # Each process of a worker may have a number of its own: nothing is kept of those that have left.
        self._assemblers.pop(worker, None)
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
            raise PeerLost(f"the connections at {self._endpoint} were closed")
        return self._native


class WorkerStream:
    """A worker's end; see `WorkerLink`. Everything may be called by several threads; one of them receives.

    The connection lives as long as this object and is not made again: a worker that has lost its master joins with
    another one.

    Args:
        endpoint: Endpoint of the master.
        token: Token that the master has, too.
        worker: Number of this worker, or its seat, below 2^32.
        limits: Limits of sizes.

    Raises:
        HelloError: one end refused the other, or the master did not answer in time; the text says why.
        PeerLost: no process listens there, or it belongs to another user.
        ConfigError: endpoint or token are malformed.
    """

    def __init__(self, endpoint: str, token: str, worker: int, *, limits: StreamLimits | None = None) -> None:
        self._native: _core.FlowClient | None = _core.FlowClient(
            endpoint, worker, socket.gethostname(), token, _INCARNATION, limits or StreamLimits()
        )
        self._assembler = Assembler()
        self._sent, self._got = KnownLayouts(), KnownLayouts()
        # Frames of one message follow each other, and layouts are sent before they are named, whatever threads send.
        self._lock = threading.Lock()

    def publish(self, what: str, value: bytes) -> None:
        """Have a question of the master answered with a value from now on; the native thread does it.

        Args:
            what: Name of the question, at most 255 bytes; at most 256 names.
            value: Answer, at most 17 bytes less than a frame.

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
        """Send a message, and never wait for it; any thread may call.

        Raises:
            PeerLost: the master has ended, or too much waits for it already: then the connection ends, too, as a part of
                the message was sent.
            WireError: the message is too long.
            ForkedError: this is a fork of the process that has joined.
        """
        with self._lock:
            native = self._open()
            try:
                for frame in cut(encode(message, self._sent)):
                    native.send(frame)
            except PeerBusy as error:
                logger.error("this worker leaves: its master takes no more: %s", error)
                self.close()
                raise PeerLost(f"the master takes no more: {error}") from error

    def receive(self, timeout_s: float | None) -> list[Message]:
        """Return messages, as soon as there are some, or nothing when the time is over; None: without end.

        Raises:
            PeerLost: the master has ended, or this end was closed, perhaps by another thread; what came before was returned.
            ForkedError: this is a fork of the process that has joined.
        """
        native = self._open()
        taken = native.receive(timeout_s)
        if taken is None:
            return []
        # The end comes once, behind the last frames; from then on there are none.
        frames, _ = taken
        if not frames:
            raise PeerLost(f"the master has ended: {native.ended}")
        messages: list[Message] = []
        for frame in frames:
            data = self._assembler.take(frame)
            if data is not None:
                messages.append(decode(data, self._got))
        return messages

    def close(self) -> None:
        """Leave the master, and end a `receive` of another thread; idempotent, and in a fork it does nothing."""
        native, self._native = self._native, None
        if native is not None:
            native.close(_CLOSE_S)

    def _open(self) -> _core.FlowClient:
        if self._native is None:
            raise PeerLost("the connection to the master was closed")
        return self._native
