"""Single calls to a coordinator: its status, what administrators do, and workers without a stream."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import ConfigError, PeerLost
from ...process import check_process
from ...trust import Place, UnknownHostError
from ..credentials import ClientCredentials
from ..job.status import Status
from ..pings import Pings
from ..requirements import import_grpc
from ..wire import requests
from ..wire.formats import ACTIONS, FORMATS, STATUS
from ..wire.requests import Action, AdminReply, Request
from .channels import error_of, open_channel

__all__ = ["CoordinatorClient", "call"]


def call(
    channel: Any,
    address: str,
    request: Request,
    timeout_s: float,
    credentials: ClientCredentials | None = None,
) -> Any:
    """Send a request, and return its answer.

    Raises:
        PeerLost: no coordinator answers in time, or what was asked for is over.
        ConfigError: the caller may not ask for it.
        WireError: the request or the answer passes a limit.
    """
    kind = type(request)
    data = FORMATS[kind].encode(request)
    answer = _unary(channel, address, requests.method_of(kind), data, timeout_s, credentials)
    return FORMATS[requests.REPLIES[kind]].decode(answer)


class CoordinatorClient:
    """Calls to a coordinator; a context manager.

    Args:
        address: Place of the coordinator, HOST:PORT or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``. Of several hosts
            the client asks the first one that accepts a connection, and after a call without an answer the next one. `status`
            and `watch` ask each of them.
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
        self._address = self._place.answering()
        addresses = self._place.addresses
        begin = addresses.index(self._address) + 1
        self._turns = itertools.cycle(addresses[begin:] + addresses[:begin])
        self._credentials = self._place.credentials_or(credentials or ClientCredentials())
        self._timeout_s = timeout_s
        self._channel = open_channel(self._address, self._credentials, Pings())
        #: Channel of a call that no coordinator has answered.
        self._lost: Any = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def status(self) -> Status:
        """Return what the job does, and what it waits for.

        Raises:
            PeerLost: no coordinator answers in time, at any of the hosts.
            ConfigError: the caller may not ask for it.
        """
        causes = []
        for _ in self._place.addresses:
            try:
                return STATUS.decode(self._unary(requests.STATUS, b""))
            except (PeerLost, UnknownHostError) as error:
                causes.append(str(error))
        raise PeerLost("; ".join(causes))

    def watch(self) -> Iterator[Status]:
        """Iterate over the status: the present one, then one after each change.

        Raises:
            PeerLost: no coordinator answers, or it has ended.
            ConfigError: the caller may not ask for it.
        """
        grpc = import_grpc()
        # The first host that answers is watched.
        self.status()
        with self._asking() as channel:
            stream = channel.unary_stream(requests.WATCH)(b"")
            try:
                for data in stream:
                    yield STATUS.decode(data)
            except grpc.RpcError as error:
                raise error_of(error, self._address, self._credentials) from None
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
                f'coordinator at {self._address}: expected job "{job}", got "{name}"; nothing was done'
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
        with self._asking() as channel:
            return call(channel, self._address, request, self._timeout_s, self._credentials)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def __enter__(self) -> CoordinatorClient:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """Lend the channel to one call. After a call without an answer, the next one takes the next host."""
        check_process(self._pid, f"the client of the coordinator at {self._address}")
        with self._lock:
            if self._channel is self._lost:
                self._channel.close()
                self._address = next(self._turns)
                self._channel = open_channel(self._address, self._credentials, Pings())
            channel = self._channel
        try:
            yield channel
        except PeerLost:
            # gRPC itself connects to a single host again.
            if len(self._place.addresses) > 1:
                self._lost = channel
            raise

    def _unary(self, method: str, data: bytes) -> bytes:
        with self._asking() as channel:
            return _unary(channel, self._address, method, data, self._timeout_s, self._credentials)


def _unary(
    channel: Any,
    address: str,
    method: str,
    data: bytes,
    timeout_s: float,
    credentials: ClientCredentials | None = None,
) -> bytes:
    grpc = import_grpc()
    try:
        answer: bytes = channel.unary_unary(method)(data, timeout=timeout_s)
    except grpc.RpcError as error:
        raise error_of(error, address, credentials) from None
    except ValueError as error:
        # The channel was closed by another thread.
        raise PeerLost(f"coordinator at {address}: {error}") from None
    return answer
