"""A worker's end of the control stream."""

from __future__ import annotations

import socket
from types import TracebackType

from .... import _core
from ....errors import PeerLost
from .events import Ended
from .limits import ControlLimits

__all__ = ["ControlClient"]


class ControlClient:
    """Joins the master of a flow, and exchanges messages with it.

    Everything may be called by several threads; one of them receives. The connection lives as long as this object and
    is not made again: a worker that has lost its master joins with another client.

    Args:
        endpoint: Endpoint of the master.
        worker: Number of this worker, which no other one has, below 2^32.
        token: Token that both ends must prove to have; None on one host. It is not sent.
        incarnation: Incarnation of the master that this worker was started for; older masters are refused.
        limits: Limits of sizes.

    Raises:
        HelloError: one end refused the other, or the master did not answer in time; the text says why.
        PeerLost: no process listens there, or it belongs to another user.
        ConfigError: endpoint or token are malformed, or the master is on another host and there is no token.

    Example:
        >>> from softs_fast.dataflow.link.control import ControlServer
        >>> with ControlServer(incarnation=1) as server, ControlClient(server.endpoint, 0, incarnation=1) as client:
        ...     client.publish("spec", b"cpu")
        ...     joined = server.receive()
        ...     server.ask(0, "spec", timeout_s=10)
        b'cpu'
    """

    def __init__(
        self,
        endpoint: str,
        worker: int,
        *,
        token: str | None = None,
        incarnation: int = 1,
        limits: ControlLimits | None = None,
    ) -> None:
        self._native = _core.FlowClient(
            endpoint, worker, socket.gethostname(), token, incarnation, (limits or ControlLimits()).native()
        )
        self._endpoint = endpoint

    @property
    def incarnation(self) -> int:
        """Of the master that this worker has joined."""
        return self._native.incarnation

    def publish(self, what: str, value: bytes) -> None:
        """Answer questions of this name with this value from now on; the native thread does it.

        Args:
            what: the name, at most 255 bytes; at most 256 names.
            value: at most 17 bytes less than `frame_bytes`.

        Raises:
            ConfigError: name or value are too long, or there are too many names.
            ForkedError: this is a fork of the process that has joined.
        """
        self._native.publish(what, value)

    def stack_pipe(self) -> int:
        """Open a pipe for `answer_stack`; return the descriptor that a handler writes to. The caller closes it.

        Raises:
            PeerLost: the system has no more descriptors.
            ForkedError: this is a fork of the process that has joined.
        """
        return self._native.stack_pipe()

    def answer_stack(self, what: str, signal: int) -> None:
        """Answer questions of this name with what a handler of a signal writes in the thread that calls this now.

        The native thread sends the signal to that thread when it is asked, reads what comes within half a second, and
        answers. If the signal has another handler by then, the answer says so, and nothing is sent.

        Args:
            what: the name, at most 255 bytes.
            signal: number of a signal with a handler that is C, and that writes to the pipe of `stack_pipe`.

        Raises:
            ConfigError: the signal has no handler, the name is too long, or there is no pipe.
            ForkedError: this is a fork of the process that has joined.
        """
        self._native.answer_stack(what, signal)

    def send(self, payload: bytes) -> None:
        """Send a message to the master; never wait for it.

        Args:
            payload: at most `frame_bytes` of both ends.

        Raises:
            PeerBusy: too much waits for the master already.
            PeerLost: the connection has ended.
            ConfigError: the message is too long.
            ForkedError: this is a fork of the process that has joined.
        """
        self._native.send(payload)

    def receive(self, timeout_s: float | None = None) -> list[bytes | Ended]:
        """Wait without the GIL until something has come; return all of it, in order.

        Args:
            timeout_s: seconds; None: without end. 0 only takes what is there.

        Returns:
            Nothing if the time is over. `Ended` is the last item, once.

        Raises:
            PeerLost: the connection has ended, and `Ended` was returned before.
            ForkedError: this is a fork of the process that has joined.
        """
        taken = self._native.receive(timeout_s)
        if taken is None:
            return []
        messages, ended = taken
        if ended is not None:
            return [*messages, Ended(ended)]
        if not messages:
            raise PeerLost(
                f"the connection to the master at {self._endpoint} has ended: {self._native.ended}"
            )
        return [*messages]

    def close(self, timeout_s: float = 1.0) -> None:
        """Leave the master. Idempotent; in a fork it does nothing.

        Args:
            timeout_s: seconds at most until what was sent has been written.
        """
        self._native.close(timeout_s)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
