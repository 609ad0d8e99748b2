"""Single calls to a coordinator: its status, what administrators do, and workers without a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ...errors import ConfigError, PeerLost
from ...process import check_process
from ..credentials import ClientCredentials
from ..job.status import Status
from ..pings import Pings
from ..requirements import import_grpc
from ..wire import requests
from ..wire.formats import ACTIONS, FORMATS, STATUS
from ..wire.requests import Action, AdminReply, Request
from .channels import error_of, open_channel, place_of

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
            the first one that accepts a connection is asked.
        credentials: Credentials with which the caller proves what it is.
        timeout_s: Seconds that an answer may take.

    Raises:
        ConfigError: gRPC is not installed; the place or a file is malformed; place and credentials have different token
            files; another machine is to be reached without TLS.

    All calls raise `ForkedError` in a fork of the process that made it.
    """

    def __init__(
        self, address: str, credentials: ClientCredentials | None = None, timeout_s: float = 10.0
    ) -> None:
        place = place_of(address)
        self._job = place.job
        self._address = place.answering()
        self._credentials = place.credentials_or(credentials or ClientCredentials())
        self._timeout_s = timeout_s
        self._channel = open_channel(self._address, self._credentials, Pings())
        self._pid = os.getpid()

    def status(self) -> Status:
        """Return what the job does, and what it waits for.

        Raises:
            PeerLost: no coordinator answers in time.
            ConfigError: the caller may not ask for it.
        """
        return STATUS.decode(self._unary(requests.STATUS, b""))

    def watch(self) -> Iterator[Status]:
        """Iterate over the status: the present one, then one after each change.

        Raises:
            PeerLost: no coordinator answers, or it has ended.
            ConfigError: the caller may not ask for it.
        """
        self._check_process()
        grpc = import_grpc()
        stream = self._channel.unary_stream(requests.WATCH)(b"")
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
        if self._job is not None and (name := self.status().name) != self._job:
            raise ConfigError(
                f'coordinator at {self._address}: expected job "{self._job}", got "{name}"; nothing was done'
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
        self._check_process()
        return call(self._channel, self._address, request, self._timeout_s, self._credentials)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def __enter__(self) -> CoordinatorClient:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def _check_process(self) -> None:
        check_process(self._pid, f"the client of the coordinator at {self._address}")

    def _unary(self, method: str, data: bytes) -> bytes:
        self._check_process()
        return _unary(self._channel, self._address, method, data, self._timeout_s, self._credentials)


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
