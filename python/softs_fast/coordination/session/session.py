"""The connection of a worker to its coordinator: it lasts, is made again when it breaks, and tells at once what comes."""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import ConfigError, PeerLost, SoftsError
from ...process import check_process
from ...trust import Address, Der, Outage, Place, UnknownHostError
from ...user_code import text_of_error
from ..credentials import ClientCredentials
from ..job.messages import FromWorker, Hello, Refused, Step, ToWorker
from ..pings import Pings
from ..requirements import import_grpc
from ..wire import requests
from ..wire.formats import FROM_WORKER, TO_WORKER
from ..wire.requests import Request
from .calls import ask, unary
from .channels import error_of, open_channel
from .outbox import Outbox

__all__ = ["ORPHAN_S", "Listener", "Session"]

#: A worker trains on for so long without a coordinator, unless it says otherwise.
ORPHAN_S = 3600.0

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

    def lost(self, text: str, is_warning: bool) -> None:
        """There is no connection any more, or an attempt has failed; the next one is made.

        Args:
            text: Cause in words; of several hosts, the last one of each.
            is_warning: Whether people are to be told: once, after some seconds without a connection.
        """

    def ended(self, error: SoftsError) -> None:
        """The coordinator has refused the worker, or one of them the certificate of the other: no attempt is made."""


class Session:
    """A connection to a coordinator, from `start` to `close`.

    Args:
        address: Place of the coordinator, HOST:PORT or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``. Each
            attempt to connect takes the next one of several hosts.
        listener: Listener that is told what comes.
        credentials: Credentials with which the worker proves what it is; the files are read again for each
            connection.
        pings: Pings by which it notices that the coordinator does not answer.
        limit_s: Seconds without a connection after which no attempt is made any more.

    Raises:
        ConfigError: gRPC is not installed; the place or a file is malformed; place and credentials have different token
            files; another machine is to be reached without TLS; `limit_s` is not above 0.

    All methods raise `ForkedError` in a fork of the process that made it.
    """

    def __init__(
        self,
        address: str,
        listener: Listener,
        credentials: ClientCredentials | None = None,
        pings: Pings | None = None,
        limit_s: float = ORPHAN_S,
    ) -> None:
        if not limit_s > 0:
            raise ConfigError(f"orphan_s of a worker must be seconds above 0, got {limit_s}")
        self._grpc = import_grpc()
        place = Place.parse(address, "coordinator")
        self._hosts = place.addresses
        self._listener = listener
        self._credentials = place.credentials_or(credentials or ClientCredentials())
        self._pings = pings or Pings()
        # A name may appear when the coordinator is there, as that of a service of Kubernetes does.
        for one in self._hosts:
            with suppress(UnknownHostError):
                open_channel(one, self._credentials, self._pings).close()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._limit_s = limit_s
        self._outage = Outage(self._hosts, time.monotonic(), limit_s)
        self._own_host = ""
        self._connection: _Connection | None = None
        self._thread = threading.Thread(target=self._run, name="softs-session", daemon=True)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self.check_process()
        self._outage = Outage(self._hosts, time.monotonic(), self._limit_s)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why there is no connection, in words; empty while there is one."""
        cause = self._outage.cause
        return f"no connection to the coordinator: {cause}" if cause else ""

    @property
    def advice(self) -> str:
        """Why a wait for an epoch is in vain, or where to look."""
        return self.trouble or "softs-fast coordinator status says what the job waits for"

    @property
    def own_host(self) -> str:
        """The address of this machine on the way to the coordinator.

        Raises:
            ConfigError: there was no connection yet, and the coordinator's host is not known.
        """
        return self._own_host or Address.parse(self._outage.host, "coordinator").own_side()

    @property
    def credentials(self) -> Der | None:
        """Key, certificates and CAs of peers, read now; None if workers show the coordinator no certificate.

        Raises:
            ConfigError: a file cannot be used.
        """
        return self._credentials.der() if self._credentials.has_certificate else None

    def send(self, message: FromWorker) -> None:
        """Send a message, without waiting.

        What a connection has not delivered when it ends is not sent again: a listener says in `hello` what holds then.

        Raises:
            WireError: a part of the message passes a limit.
        """
        self.check_process()
        data = FROM_WORKER.encode(message)
        with self._lock:
            if self._connection is not None:
                outbox = self._connection.outbox
                (outbox.put_step if isinstance(message, Step) else outbox.put)(data)

    def request(self, request: Request, timeout_s: float) -> Any:
        """Send a request on the present connection, and return its answer.

        Raises:
            PeerLost: there is no connection, it ends, no answer comes in time, or what was asked for is over.
            ConfigError: the worker may not ask for it.
            WireError: the request or the answer passes a limit.
        """
        self.check_process()
        with self._lock:
            connection = self._connection
        if connection is None:
            hosts, cause = " or ".join(self._hosts), self._outage.cause
            raise PeerLost(
                f"there is no connection to the coordinator at {hosts} now{cause and f': {cause}'}"
            )
        send = functools.partial(unary, connection.channel, self._outage.host, timeout_s)
        return ask(request, send)

    def close(self) -> None:
        """Send what was said, then end the connection. Idempotent; not in a call of the listener."""
        self.check_process()
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                self._connection.outbox.put(None)
                if self._outage.cause:
                    # Nothing has come on this connection, so nothing is delivered by it.
                    self._connection.call.cancel()
        if self._thread.ident is None:
            return
        self._thread.join(_CLOSE_S)
        with self._lock:
            if self._connection is not None:
                self._connection.call.cancel()
        self._thread.join()

    def check_process(self) -> None:
        """Raise ForkedError if another process made the session."""
        check_process(self._pid, f"the session with the coordinator at {self._outage.host}")

    def _run(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s * random.uniform(0.5, 1.0)):
            began_s = time.monotonic()
            end = self._serve()
            if self._closed.is_set():
                return
            attempt = self._outage.failed(time.monotonic(), str(end.error), is_refusal=end.is_certificate)
            if end.is_final or (attempt.is_last and end.is_certificate):
                self._listener.ended(end.error)
                return
            if attempt.is_last:
                text = f"{self._limit_s:g} s without a coordinator, the most that this worker waits: {self._outage.cause}"
                self._listener.ended(PeerLost(f"{text}; start the coordinator again, or give more orphan_s="))
                return
            self._listener.lost(self._outage.cause, attempt.is_warning)
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
        # A connection that has lasted was not refused by its certificates.
        credentials: ClientCredentials | None = self._credentials
        try:
            for data in connection.call:
                message = TO_WORKER.decode(data)
                credentials = None
                self._outage.connected()
                try:
                    self._listener.received(message)
                except BaseException as error:
                    # Without this thread the worker would wait for ever, and without a cause.
                    what = f"taking a {type(message).__name__} of the coordinator failed"
                    failure = SoftsError(f"{what}: {text_of_error(error)}")
                    failure.__cause__ = error
                    return _End(failure, is_final=True)
                if isinstance(message, Refused):
                    refused = message
        except self._grpc.RpcError as error:
            if refused is None:
                ours = error_of(error, self._outage.host, credentials)
                is_final = error.code() in self._final_codes()
                return _End(ours, is_final, isinstance(ours, ConfigError))
        except SoftsError as error:
            return _End(error, is_final=True)
        finally:
            with self._lock:
                self._connection = None
            connection.close()
        if refused is None:
            return _End(
                PeerLost(f"the coordinator at {self._outage.host} has closed the connection"), is_final=False
            )
        text = f"the coordinator at {self._outage.host} refuses the worker: {refused.text}"
        return _End(PeerLost(text), is_final=True)

    def _connect(self) -> _Connection:
        # A name server that is away later ends no worker that is connected.
        with suppress(ConfigError):
            self._own_host = Address.parse(self._outage.host, "coordinator").own_side()
        channel = open_channel(self._outage.host, self._credentials, self._pings)
        connection = _Connection(channel, FROM_WORKER.encode(self._listener.hello()))
        with self._lock:
            self._connection = connection
            if self._closed.is_set():
                connection.outbox.put(None)
        return connection

    def _final_codes(self) -> tuple[Any, ...]:
        codes = self._grpc.StatusCode
        return codes.UNAUTHENTICATED, codes.PERMISSION_DENIED, codes.INVALID_ARGUMENT


@dataclass(frozen=True)
class _End:
    """Why a connection has ended, whether it is to be made again, and whether a certificate was refused."""

    error: SoftsError
    is_final: bool
    is_certificate: bool = False


class _Connection:
    """A channel with the stream of a worker."""

    def __init__(self, channel: Any, hello: bytes) -> None:
        self.channel = channel
        self.outbox = Outbox()
        self.outbox.put(hello)
        self.call = channel.stream_stream(requests.SESSION)(iter(self.outbox))

    def close(self) -> None:
        """End the stream; the thread that takes from the outbox ends, too."""
        self.outbox.put(None)
        self.channel.close()
