"""Single calls to a coordinator: its status, what administrators do, and workers without a stream."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, PeerLost
from ...process import Closing, check_process
from ...trust import Outage, Place, UnknownHostError
from ..credentials import ClientCredentials
from ..job.status import Status
from ..pings import Pings
from ..requirements import import_grpc
from ..wire import requests
from ..wire.formats import ACTIONS, FORMATS, STATUS
from ..wire.requests import Action, AdminReply, Request
from .channels import error_of, open_channel

__all__ = ["CoordinatorClient", "ask", "unary"]

#: gRPC's own error is a ValueError: a thread has closed the channel before another one could begin a call.
_CLOSED = "the connection to the coordinator at {} was closed"


def unary(
    channel: Any,
    address: str,
    timeout_s: float,
    method: str,
    data: bytes,
    credentials: ClientCredentials | None = None,
) -> bytes:
    """Call a method; return the bytes of its answer.

    Raises:
        PeerLost: no coordinator answers in time, or what was asked for is over.
        ConfigError: the caller may not ask for it.
        WireError: the request or the answer passes a limit.
    """
    grpc = import_grpc()
    try:
        answer: bytes = channel.unary_unary(method)(data, timeout=timeout_s)
    except grpc.RpcError as error:
        raise error_of(error, address, credentials) from None
    except ValueError:
        raise PeerLost(_CLOSED.format(address)) from None
    return answer


def ask(request: Request, send: Callable[[str, bytes], bytes]) -> Any:
    """Return the answer to a request, which `send` gives to a method of the coordinator."""
    kind = type(request)
    answer = send(requests.method_of(kind), FORMATS[kind].encode(request))
    return FORMATS[requests.REPLIES[kind]].decode(answer)


@dataclass
class _Lent:
    """A channel to a host, and how many calls use it."""

    host: str
    channel: Any
    n_calls: int = 0


class CoordinatorClient(Closing):
    """Calls to a coordinator; a context manager.

    Args:
        address: Place of the coordinator, HOST:PORT or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``. Of several hosts
            the client asks the first one that answers when it is made, and after a call without an answer the next one.
            `status` and `watch` ask each of them.
        credentials: Credentials with which the caller proves what it is.
        timeout_s: Seconds that an answer of one host may take.

    Raises:
        ConfigError: gRPC is not installed; the place or a file is malformed; place and credentials have different token
            files; another machine is to be reached without TLS.

    All calls raise `ForkedError` in a fork of the process that made it.
    """

    def __init__(
        self, address: str, credentials: ClientCredentials | None = None, timeout_s: float = 10.0
    ) -> None:
        self._place = Place.parse(address, "coordinator")
        self._credentials = self._place.credentials_or(credentials or ClientCredentials())
        self._timeout_s = timeout_s
        self._outage = Outage(self._place.addresses, time.monotonic())
        #: Of the present host; None: it is opened for the next call.
        self._lent: _Lent | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        if len(self._place.addresses) == 1:
            self._lent = self._opened()
        else:
            with suppress(PeerLost):  # a call that needs an answer raises it again
                self.status()

    def status(self) -> Status:
        """Return what the job does, and what it waits for.

        Raises:
            PeerLost: no coordinator answers in time, at any of the hosts.
            ConfigError: the caller may not ask for it.
        """
        for _ in self._place.addresses:
            with suppress(PeerLost, UnknownHostError):
                return STATUS.decode(self._unary(requests.STATUS, b""))
        raise PeerLost(self._outage.cause)

    def watch(self) -> Iterator[Status]:
        """Iterate over the status: the present one, then one after each change.

        Raises:
            PeerLost: no coordinator answers, or it has ended.
            ConfigError: the caller may not ask for it.
        """
        grpc = import_grpc()
        # The first host that answers is watched.
        self.status()
        with self._asking() as (channel, host):
            try:
                stream = channel.unary_stream(requests.WATCH)(b"")
            except ValueError:
                raise PeerLost(_CLOSED.format(host)) from None
            try:
                for data in stream:
                    yield STATUS.decode(data)
            except grpc.RpcError as error:
                raise error_of(error, host, self._credentials) from None
            finally:
                stream.cancel()

    def administer(self, action: Action) -> tuple[str, ...]:
        """Have the coordinator do something; return what it logged.

        Raises:
            PeerLost: no coordinator answers in time.
            ConfigError: the caller is no administrator, or the job is another one than that of the place.
            WireError: it cannot be done; the text says why.
        """
        job = self._place.job
        if job is not None and (name := self.status().name) != job:
            raise ConfigError(
                f'coordinator at {self._outage.host}: expected job "{job}", got "{name}"; nothing was done'
            )
        reply: AdminReply = FORMATS[AdminReply].decode(self._unary(requests.ADMIN, ACTIONS.encode(action)))
        return reply.log

    def request(self, request: Request) -> Any:
        """Send a request of a worker without a stream, and return its answer.

        Raises:
            PeerLost: no coordinator answers in time, or what was asked for is over.
            ConfigError: the caller may not ask for it.
            WireError: the request or the answer passes a limit.
        """
        return ask(request, self._unary)

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            self._is_closed = True
            if self._lent is not None:
                self._lent.channel.close()

    def _opened(self) -> _Lent:
        host = self._outage.host
        return _Lent(host, open_channel(host, self._credentials, Pings()))

    @contextmanager
    def _asking(self) -> Iterator[tuple[Any, str]]:
        """Lend a channel, and its host, to one call. After a call without an answer, the next one takes the next host."""
        check_process(self._pid, f"the client of the coordinator at {self._outage.host}")
        lent = None
        try:
            with self._lock:
                if self._is_closed:
                    raise PeerLost(_CLOSED.format(self._outage.host))
                lent = self._lent = self._lent or self._opened()
                lent.n_calls += 1
            yield lent.channel, lent.host
        except (PeerLost, UnknownHostError) as error:
            with self._lock:
                # The call of another thread may have moved on already.
                if lent is self._lent:
                    self._outage.failed(time.monotonic(), str(error))
                    # gRPC itself connects to a single host again. Of several hosts each attempt has a channel of its own: one
                    # that has failed does not try for some time, and the host may be there again.
                    if len(self._place.addresses) > 1 and not self._is_closed:
                        self._lent = None
            raise
        finally:
            if lent is not None:
                with self._lock:
                    lent.n_calls -= 1
                    # Calls of other threads may still be under way.
                    is_left = lent is not self._lent and not lent.n_calls
                if is_left:
                    lent.channel.close()

    def _unary(self, method: str, data: bytes) -> bytes:
        with self._asking() as (channel, host):
            return unary(channel, host, self._timeout_s, method, data, self._credentials)
