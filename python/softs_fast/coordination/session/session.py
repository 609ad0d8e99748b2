"""The connection of a worker to its coordinator: it lasts, is made again when it breaks, and tells at once what comes."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from typing import Any, Protocol

from ...errors import PeerLost, SoftsError
from ...forks import check_process
from ..addresses import own_address, parse_address
from ..credentials import ClientCredentials
from ..job.messages import FromWorker, Hello, Refused, ToWorker
from ..pings import Pings
from ..requirements import import_grpc
from ..wire import methods
from ..wire.codec import decode_to_worker, encode_from_worker
from ..wire.requests import Request
from .calls import call
from .channels import error_of, open_channel

__all__ = ["Listener", "Session"]

#: The first attempt after a connection that has lasted is made at once, the next ones after pauses that double.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.05, 2.0
#: A connection that has lasted so long was none that is refused again and again.
_LASTING_S = 1.0
#: A coordinator that does not answer pings is given up before; one that answers them ends the stream within this.
_CLOSE_S = 10.0


class Listener(Protocol):
    """What a session tells. All calls come from its thread, one after the other."""

    def hello(self) -> Hello:
        """Return the first message: a connection is about to be made."""

    def received(self, message: ToWorker) -> None:
        """Take a message."""

    def lost(self, text: str) -> None:
        """There is no connection any more, or an attempt has failed; the next one is made."""

    def ended(self, error: SoftsError) -> None:
        """The coordinator has refused the worker, or the files of its credentials are wrong: no attempt is made."""


class Session:
    """A connection to a coordinator, from `start` to `close`.

    Args:
        address: of the coordinator, ``host:port``.
        listener: is told what comes.
        credentials: with which the worker proves what it is; the files are read again for each connection.
        pings: how it notices that the coordinator does not answer.

    Raises:
        ConfigError: gRPC is not installed; the address or a file is malformed; another machine is to be reached without
            TLS.

    All methods raise `ForkedError` in a fork of the process that made it.
    """

    def __init__(
        self,
        address: str,
        listener: Listener,
        credentials: ClientCredentials | None = None,
        pings: Pings | None = None,
    ) -> None:
        self._grpc = import_grpc()
        self._address = address
        self._listener = listener
        self._credentials = credentials or ClientCredentials()
        self._pings = pings or Pings()
        open_channel(address, self._credentials, self._pings).close()
        self._credentials.metadata()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._connection: _Connection | None = None
        self._thread = threading.Thread(target=self._run, name="softs-session", daemon=True)

    def start(self) -> None:
        """Begin to connect; returns at once.

        Raises:
            ForkedError: another process made the session.
        """
        self.check_process()
        self._thread.start()

    @property
    def own_host(self) -> str:
        """The address of this machine on the way to the coordinator.

        Raises:
            ConfigError: the coordinator's host is not known any more.
        """
        return own_address(parse_address(self._address))

    def send(self, message: FromWorker) -> None:
        """Send a message, without waiting.

        What a connection has not delivered when it ends is not sent again: a listener says in `hello` what holds then.

        Raises:
            WireError: a part of the message passes a limit.
            ForkedError: another process made the session.
        """
        self.check_process()
        data = encode_from_worker(message)
        with self._lock:
            if self._connection is not None:
                self._connection.outbox.put(data)

    def request(self, request: Request, timeout_s: float) -> Any:
        """Send a request on the present connection, and return its answer.

        Raises:
            PeerLost: there is no connection, it ends, no answer comes in time, or what was asked for is over.
            ConfigError: the worker may not ask for it.
            WireError: the request or the answer passes a limit.
            ForkedError: another process made the session.
        """
        self.check_process()
        with self._lock:
            connection = self._connection
        if connection is None:
            raise PeerLost(f"there is no connection to the coordinator at {self._address} now")
        return call(connection.channel, self._address, request, connection.metadata, timeout_s)

    def close(self) -> None:
        """Send what was said, then end the connection. Idempotent; not in a call of the listener.

        Raises:
            ForkedError: another process made the session.
        """
        self.check_process()
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                self._connection.outbox.put(None)
        if self._thread.ident is None:
            return
        self._thread.join(_CLOSE_S)
        with self._lock:
            if self._connection is not None:
                self._connection.call.cancel()
        self._thread.join()

    def check_process(self) -> None:
        """Raise ForkedError if another process made the session."""
        check_process(self._pid, f"the session with the coordinator at {self._address}")

    def _run(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s * random.uniform(0.5, 1.0)):
            began_s = time.monotonic()
            end = self._serve()
            if self._closed.is_set():
                return
            if end.is_final:
                self._listener.ended(end.error)
                return
            self._listener.lost(str(end.error))
            has_lasted = time.monotonic() - began_s > _LASTING_S
            pause_s = 0.0 if has_lasted else min(max(2 * pause_s, _MIN_PAUSE_S), _MAX_PAUSE_S)

    def _serve(self) -> _End:
        """Connect, and tell the listener what comes until the connection ends."""
        try:
            connection = self._connect()
        except SoftsError as error:
            # Files that are being replaced may be whole again at the next attempt.
            return _End(error, is_final=False)
        refused: Refused | None = None
        try:
            for data in connection.call:
                message = decode_to_worker(data)
                self._listener.received(message)
                if isinstance(message, Refused):
                    refused = message
        except self._grpc.RpcError as error:
            if refused is None:
                return _End(error_of(error, self._address), error.code() in self._final_codes())
        except SoftsError as error:
            return _End(error, is_final=True)
        finally:
            with self._lock:
                self._connection = None
            connection.close()
        if refused is None:
            return _End(
                PeerLost(f"the coordinator at {self._address} has closed the connection"), is_final=False
            )
        text = f"the coordinator at {self._address} refuses the worker: {refused.text}"
        return _End(PeerLost(text), is_final=True)

    def _connect(self) -> _Connection:
        metadata = self._credentials.metadata()
        channel = open_channel(self._address, self._credentials, self._pings)
        connection = _Connection(channel, metadata, encode_from_worker(self._listener.hello()))
        with self._lock:
            self._connection = connection
            if self._closed.is_set():
                connection.outbox.put(None)
        return connection

    def _final_codes(self) -> tuple[Any, ...]:
        codes = self._grpc.StatusCode
        return codes.UNAUTHENTICATED, codes.PERMISSION_DENIED, codes.INVALID_ARGUMENT


class _End:
    """Why a connection has ended, and whether it is to be made again."""

    def __init__(self, error: SoftsError, is_final: bool) -> None:
        self.error = error
        self.is_final = is_final


class _Connection:
    """A channel with the stream of a worker; `outbox` ends with None."""

    def __init__(self, channel: Any, metadata: Any, hello: bytes) -> None:
        self.channel = channel
        self.metadata = metadata
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.outbox.put(hello)
        self.call = channel.stream_stream(methods.SESSION)(iter(self.outbox.get, None), metadata=metadata)

    def close(self) -> None:
        """End the stream; the thread that takes from the outbox ends, too."""
        self.outbox.put(None)
        self.channel.close()
