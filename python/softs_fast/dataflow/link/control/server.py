"""The master's end of the control stream."""

from __future__ import annotations

import logging
import re
import time
from types import TracebackType
from typing import Any

from .... import _core
from ....errors import PeerLost, PeerTimeout
from ....process import raise_descriptor_limit
from ....repeated_log import RepeatedLog
from .events import Joined, Left, Published, Received
from .limits import ControlLimits

__all__ = ["ControlServer"]

logger = logging.getLogger(__name__)

#: A process that has not joined, of another host or of this one, as the native side names it. Texts with ports and reasons that a
#: stranger chooses would be new each time.
_STRANGER = re.compile(r"a process at (\S+):\d+|process \d+")


class ControlServer:
    """Listens for the workers of a flow, and exchanges messages with them.

    Messages of one worker, and those to it, keep their order. Everything may be called by several threads; one of them
    receives. A process that ends, by whatever signal, is reported as `Left` at once; one that is stopped is not.

    Args:
        listen: `ipc://PATH`, `ipc://*` for a socket in a new folder that only this user may enter, or `tcp://HOST:PORT`.
            Without a token only loopback, and there only processes of this user.
        token: Token that workers must prove to have; 22 to 512 visible characters, see `softs_fast.trust.new_token`. It is not sent.
            What follows is not encrypted, so other hosts are for a network that you trust.
        incarnation: Number of this master; each one that takes over a flow has a higher one. Workers that know a
            higher one are refused, and refuse this master.
        oldest: Lowest incarnation of workers that are taken; None: those of `incarnation` alone.
        limits: Limits of sizes and numbers.

    Raises:
        ConfigError: an endpoint or a token is malformed, or other hosts could reach it and there is no token.
        EndpointInUse: a process listens there already.
        PeerLost: the system has no more descriptors or threads.

    Example:
        >>> with ControlServer(incarnation=1) as server:
        ...     server.endpoint.startswith("ipc://")
        True
    """

    def __init__(
        self,
        *,
        listen: str = "ipc://*",
        token: str | None = None,
        incarnation: int = 1,
        oldest: int | None = None,
        limits: ControlLimits | None = None,
    ) -> None:
        limits = limits or ControlLimits()
        self._log = RepeatedLog(logger)
        lowest = incarnation if oldest is None else oldest
        raise_descriptor_limit()
        self._native = _core.FlowServer(
            listen, token, incarnation, lowest, limits.native(), limits.lost_after_s
        )

    @property
    def endpoint(self) -> str:
        """Where workers connect to, wildcards resolved."""
        return self._native.endpoint

    def send(self, worker: int, payload: bytes) -> None:
        """Send a message to a worker that has joined; never wait for it.

        A worker that has left gets nothing, and neither does its successor before `receive` has returned its `Joined`.

        Args:
            worker: its number.
            payload: at most `frame_bytes` of both ends.

        Raises:
            PeerBusy: too much waits for the worker already.
            PeerLost: it is not connected.
            ConfigError: the message is too long.
            ForkedError: this is a fork of the process that listens.
        """
        self._native.send(worker, payload)

    def receive(self, timeout_s: float | None = None) -> list[Joined | Received | Left]:
        """Wait without the GIL until something has come; return all of it, in order.

        Connections that did not join are logged as warnings: of each address one every 10 s, with a count.

        Args:
            timeout_s: seconds; None: without end. 0 only takes what is there.

        Returns:
            Nothing if the time is over.

        Raises:
            PeerLost: the server was closed, and all that had come before was returned.
            ForkedError: this is a fork of the process that listens.
        """
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        left = timeout_s
        while (taken := self._native.receive(left)) is not None:
            events, records, ended = taken
            for level, text in records:
                found = _STRANGER.match(text)
                self._log.log(level, text if found is None else found[1] or "this host", text)
            if events:
                return [_event(fields) for fields in events]
            if ended is not None:
                raise PeerLost(f"control server at {self.endpoint}: {ended}")
            if give_up is not None:
                left = max(0.0, give_up - time.monotonic())
        return []

    def ask(self, worker: int, what: str, timeout_s: float) -> bytes:
        """Return what a worker has last published under a name.

        A native thread of the worker answers, also while its Python holds the GIL.

        Args:
            worker: its number.
            what: the name.
            timeout_s: seconds.

        Raises:
            PeerTimeout: no answer in time; the worker may be stopped.
            PeerLost: the worker is not connected, or leaves.
            PeerBusy: too much waits for the worker already.
            ConfigError: it has published nothing under this name.
            ForkedError: this is a fork of the process that listens.
        """
        return self.ask_with_age(worker, what, timeout_s).value

    def ask_with_age(self, worker: int, what: str, timeout_s: float) -> Published:
        """As `ask`, with the age of the value by the clock of the worker.

        Args:
            worker: its number.
            what: the name.
            timeout_s: seconds.

        Raises:
            PeerTimeout: no answer in time; the worker may be stopped.
            PeerLost: the worker is not connected, or leaves.
            PeerBusy: too much waits for the worker already.
            ConfigError: it has published nothing under this name.
            ForkedError: this is a fork of the process that listens.
        """
        answer = self._native.ask(worker, what, timeout_s)
        if answer is None:
            raise PeerTimeout(
                f"worker {worker} did not answer {what!r} within {timeout_s:.3f} s; it is connected: is it stopped?"
            )
        value, age_us = answer
        return Published(value, age_us * 1e-6)

    def close(self, timeout_s: float = 1.0) -> None:
        """End all connections; workers receive `Ended`. Idempotent; in a fork it does nothing.

        Args:
            timeout_s: seconds at most until what was sent has been written.
        """
        self._native.close(timeout_s)
        self._log.flush()

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _event(fields: tuple[Any, ...]) -> Joined | Received | Left:
    # The most frequent first.
    if fields[0] == "received":
        return Received(fields[1], fields[2])
    if fields[0] == "joined":
        return Joined(fields[1], fields[2], fields[3], fields[4])
    return Left(fields[1], fields[2])
