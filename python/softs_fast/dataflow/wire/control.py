"""Links over the control stream: native threads read and write, and answer questions while Python is busy."""

from __future__ import annotations

from ...errors import ConfigError, FlowError, PeerBusy, PeerLost, PeerTimeout
from ..control import ControlClient, ControlLimits, ControlServer, Ended
from ..control import Joined as ControlJoined
from ..control import Received as ControlReceived
from .frames import Assembler, cut
from .links import Joined, Left, LinkEvent, Received
from .messages import Message, decode, encode

__all__ = ["ControlMaster", "ControlWorker"]


class ControlMaster:
    """The master's end; see `MasterLink`.

    Args:
        token: that workers have to have.
        listen: where, see `ControlServer`.
        limits: sizes, and when a worker on another host counts as dead.

    Raises:
        ConfigError: endpoint or token are malformed.
        EndpointInUse: a process listens there already.
        PeerLost: the system has no more descriptors or threads.
    """

    def __init__(self, token: str, *, listen: str = "ipc://*", limits: ControlLimits | None = None) -> None:
        self._server = ControlServer(listen=listen, token=token, limits=limits)
        self._assemblers: dict[int, Assembler] = {}

    @property
    def endpoint(self) -> str:
        """Where workers connect to."""
        return self._server.endpoint

    def send(self, worker: int, message: Message) -> None:
        """Send a message; one to a worker that has left is dropped, and `receive` reports that.

        Raises:
            FlowError: too much waits for the worker already.
            WireError: the message is too long.
        """
        try:
            for frame in cut(encode(message)):
                self._server.send(worker, frame)
        except PeerBusy as error:
            raise FlowError(f"worker {worker} takes no more orders: {error}") from error
        except PeerLost:
            return

    def receive(self, timeout_s: float) -> list[LinkEvent]:
        """Return what has happened, as soon as something has, or nothing when the time is over."""
        events: list[LinkEvent] = []
        for event in self._server.receive(timeout_s):
            if isinstance(event, ControlReceived):
                data = self._assemblers[event.worker].take(event.payload)
                if data is not None:
                    events.append(Received(event.worker, decode(data)))
            elif isinstance(event, ControlJoined):
                self._assemblers[event.worker] = Assembler()
                events.append(Joined(event.worker, event.pid, event.host))
            else:
                events.append(Left(event.worker, event.reason))
        return events

    def ask(self, worker: int, what: str, timeout_s: float) -> bytes:
        """Return what a worker has published under a name, also while its Python code is busy.

        Raises:
            FlowError: it has published nothing of that name, has left, or does not answer in time.
        """
        try:
            return self._server.ask(worker, what, timeout_s)
        except (PeerTimeout, PeerLost, PeerBusy, ConfigError) as error:
            raise FlowError(f"worker {worker} does not answer {what!r}: {error}") from error

    def close(self) -> None:
        """End all connections; idempotent."""
        self._server.close()


class ControlWorker:
    """A worker's end; see `WorkerLink`.

    Args:
        endpoint: of the master.
        token: that the master has, too.
        worker: number of this worker.

    Raises:
        HelloError: the master refused this worker.
        PeerLost: no master listens there.
    """

    def __init__(self, endpoint: str, token: str, worker: int) -> None:
        self._client = ControlClient(endpoint, worker, token=token)
        self._assembler = Assembler()

    def publish(self, what: str, value: bytes) -> None:
        """Have a question of the master answered with a value from now on."""
        self._client.publish(what, value)

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            PeerLost: the master has ended.
            WireError: the message is too long.
        """
        for frame in cut(encode(message)):
            self._client.send(frame)

    def receive(self, timeout_s: float) -> list[Message]:
        """Return messages, as soon as there are some, or nothing when the time is over.

        Raises:
            PeerLost: the master has ended.
        """
        messages: list[Message] = []
        for frame in self._client.receive(timeout_s):
            if isinstance(frame, Ended):
                if not messages:
                    raise PeerLost(f"the master has ended: {frame.reason}")
                return messages  # the next call raises
            data = self._assembler.take(frame)
            if data is not None:
                messages.append(decode(data))
        return messages

    def close(self) -> None:
        """End the connection; idempotent."""
        self._client.close()
