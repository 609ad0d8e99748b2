"""Links over the control stream: native threads read and write, and answer questions while Python is busy."""

from __future__ import annotations

import logging
import threading
from collections import deque

from ...errors import ConfigError, FlowError, PeerBusy, PeerLost, PeerTimeout, WireError
from .control import ControlClient, ControlLimits, ControlServer, Ended, Published
from .control import Joined as ControlJoined
from .control import Left as ControlLeft
from .control import Received as ControlReceived
from .frames import Assembler, cut
from .layouts import KnownLayouts
from .links import Joined, Left, LinkEvent, Received
from .messages import End, HookTask, Message, Refused, decode, encode

__all__ = ["ControlMaster", "ControlWorker"]

_log = logging.getLogger(__name__)


class ControlMaster:
    """The master's end; see `MasterLink`.

    Args:
        token: Token that workers must have.
        listen: Endpoint that workers connect to; see `ControlServer`.
        limits: Limits of sizes, and when a worker on another host counts as dead.
        incarnation: Incarnation of the master; see `ControlServer`.
        oldest: Lowest incarnation of workers that are taken; see `ControlServer`.

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
        limits: ControlLimits | None = None,
        incarnation: int = 1,
        oldest: int | None = None,
    ) -> None:
        self._server: ControlServer | None = ControlServer(
            listen=listen, token=token, incarnation=incarnation, oldest=oldest, limits=limits
        )
        self._endpoint = self._server.endpoint
        self._assemblers: dict[int, Assembler] = {}
        #: Of each connection, what was sent and what was received.
        self._sent: dict[int, KnownLayouts] = {}
        self._got: dict[int, KnownLayouts] = {}
        #: Workers that were sent a part of a message, because no more of it could wait.
        self._cut_off: set[int] = set()
        #: What has arrived and was not returned yet, and the error that comes before it.
        self._arrived: deque[ControlJoined | ControlReceived | ControlLeft] = deque()
        self._error: WireError | None = None
        #: The hook that was sent last, and its frames: all its workers get the same.
        self._last_hook: tuple[HookTask | None, list[bytes]] = (None, [])

    @property
    def endpoint(self) -> str:
        """Where workers connect to."""
        return self._endpoint

    def send(self, worker: int, message: Message) -> None:
        """Send a message; one to a worker that has left is dropped, and `receive` reports that.

        Raises:
            FlowError: too much waits for the worker already. It gets nothing more then: it would be read as the rest of
                the message of which a part was sent. Of the end of the flow it learns when the connection ends.
            WireError: the message is too long.
        """
        server = self._open()
        try:
            if worker in self._cut_off:
                raise PeerBusy("a message to it was sent in part")
            for frame in self._frames(worker, message):
                server.send(worker, frame)
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
        """Return what has happened, as soon as something has, or nothing when the time is over.

        Raises:
            WireError: a worker has sent what is no message. All that arrived before it was returned, and what arrived
                after it is returned next.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not self._arrived:
            arrived = self._open().receive(timeout_s)
            for one in arrived:
                if isinstance(one, ControlLeft):
                    # What is sent from here on goes to its successor.
                    self._drop_sent(one.worker)
            self._arrived.extend(arrived)
        events: list[LinkEvent] = []
        while self._arrived:
            try:
                event = self._event(self._arrived.popleft())
            except WireError as found:
                if not events:
                    raise
                self._error = found
                return events
            if event is not None:
                events.append(event)
        return events

    def _event(self, event: ControlJoined | ControlReceived | ControlLeft) -> LinkEvent | None:
        if isinstance(event, ControlReceived):
            data = self._assemblers[event.worker].take(event.payload)
            return None if data is None else Received(event.worker, decode(data, self._got[event.worker]))
        if isinstance(event, ControlJoined):
            self._assemblers[event.worker], self._got[event.worker] = Assembler(), KnownLayouts()
            return Joined(event.worker, event.pid, event.host)
        # Each process of a worker may have a number of its own: nothing is kept of those that have left.
        self._assemblers.pop(event.worker, None)
        self._got.pop(event.worker, None)
        return Left(event.worker, event.reason)

    def ask(self, worker: int, what: str, timeout_s: float) -> bytes:
        """Return what a worker has published under a name, also while its Python code is busy.

        Raises:
            FlowError: it has published nothing of that name, has left, or does not answer in time.
        """
        return self.ask_with_age(worker, what, timeout_s).value

    def ask_with_age(self, worker: int, what: str, timeout_s: float) -> Published:
        """As `MasterLink.ask_with_age`.

        Raises:
            FlowError: see `ask`.
        """
        try:
            return self._open().ask_with_age(worker, what, timeout_s)
        except (PeerTimeout, PeerLost, PeerBusy, ConfigError) as error:
            raise FlowError(f"worker {worker} does not answer {what!r}: {error}") from error

    def close(self) -> None:
        """End all connections; idempotent."""
        # The native object has descriptors until it is dropped, and its last reference is here.
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _open(self) -> ControlServer:
        if self._server is None:
            raise PeerLost(f"the connections at {self._endpoint} were closed")
        return self._server


class ControlWorker:
    """A worker's end; see `WorkerLink`.

    Args:
        endpoint: Endpoint of the master.
        token: Token that the master has, too.
        worker: Number of this worker, or its seat.

    Raises:
        HelloError: the master refused this worker.
        PeerLost: no master listens there.
    """

    def __init__(self, endpoint: str, token: str, worker: int) -> None:
        self._client: ControlClient | None = ControlClient(endpoint, worker, token=token)
        self._assembler = Assembler()
        self._sent, self._got = KnownLayouts(), KnownLayouts()
        # Frames of one message follow each other, and layouts are sent before they are named, whatever threads send.
        self._lock = threading.Lock()

    def publish(self, what: str, value: bytes) -> None:
        """Have a question of the master answered with a value from now on."""
        self._open().publish(what, value)

    def stack_pipe(self) -> int:
        """Open a pipe for `answer_stack`; see `ControlClient`."""
        return self._open().stack_pipe()

    def answer_stack(self, what: str, signal: int) -> None:
        """Answer a question with what the handler of a signal writes in this thread; see `ControlClient`."""
        self._open().answer_stack(what, signal)

    def send(self, message: Message) -> None:
        """Send a message; any thread may call.

        Raises:
            PeerLost: the master has ended, or too much waits for it already: then the connection ends, too, as a part of
                the message was sent.
            WireError: the message is too long.
        """
        with self._lock:
            client = self._open()
            try:
                for frame in cut(encode(message, self._sent)):
                    client.send(frame)
            except PeerBusy as error:
                _log.error("this worker leaves: its master takes no more: %s", error)
                self.close()
                raise PeerLost(f"the master takes no more: {error}") from error

    def receive(self, timeout_s: float | None) -> list[Message]:
        """Return messages, as soon as there are some, or nothing when the time is over; None: without end.

        Raises:
            PeerLost: the master has ended, or this end was closed, perhaps by another thread.
        """
        messages: list[Message] = []
        for frame in self._open().receive(timeout_s):
            if isinstance(frame, Ended):
                if not messages:
                    raise PeerLost(f"the master has ended: {frame.reason}")
                return messages  # the next call raises
            data = self._assembler.take(frame)
            if data is not None:
                messages.append(decode(data, self._got))
        return messages

    def close(self) -> None:
        """End the connection, and a `receive` of another thread; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self) -> ControlClient:
        if self._client is None:
            raise PeerLost("the connection to the master was closed")
        return self._client
