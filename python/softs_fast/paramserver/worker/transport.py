"""One HTTP request and its answer, by urllib3: certificates, time-outs, and why it failed."""

from __future__ import annotations

import http.client
from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import ConfigError
from ...trust import TlsFiles, refusal_of
from ..requirements import import_package
from ..wire.invite import Invite
from .retries import Trouble

__all__ = ["Response", "Transport", "TransportError", "asked_seconds", "foreign"]

#: For a connection, and for each piece of a body that is sent.
_CONNECT_S = 15.0
#: For the first byte of an answer, beyond what the server may hold it, and for each later piece.
_ANSWER_S = 30.0
#: Bytes that are sent at once, so that each has a time-out of its own: `sendall` has one for all.
_PIECE = 256 << 10


class TransportError(Exception):
    """There is no answer, or the rest of one.

    Attributes:
        trouble: Cause of the error.
        status: HTTP status of a foreign page; 0 without one.
        asked_s: Seconds of the header Retry-After.
        body: Beginning of a foreign page.
    """

    def __init__(
        self, trouble: Trouble, text: str, status: int = 0, asked_s: float = 0.0, body: bytes = b""
    ) -> None:
        super().__init__(text)
        self.trouble = trouble
        self.status = status
        self.asked_s = asked_s
        self.body = body


class Response:
    """An answer of which the body has not been read.

    Attributes:
        status: HTTP status.
        headers: Headers of the answer, by name in any case.
    """

    def __init__(self, raw: Any, errors: tuple[type[Exception], ...]) -> None:
        self._raw = raw
        self._errors = errors
        self._is_read = False
        self.status: int = raw.status
        self.headers: Any = raw.headers

    def read(self, n: int) -> bytes:
        """Return the next n bytes; fewer only at the end.

        Raises:
            TransportError: the connection was lost before the end of the body.
        """
        try:
            data: bytes = self._raw.read(n)
        except self._errors as error:
            raise TransportError(Trouble.CUT, _text(error)) from None
        self._is_read = len(data) < n
        return data

    def readinto(self, room: memoryview) -> int:
        """Fill the beginning of `room` with what has arrived; 0 at the end.

        Raises:
            TransportError: the connection was lost before the end of the body.
        """
        # At most a piece at once: what has arrived is kept, should the connection be lost.
        room = room[:_PIECE]
        # urllib3 would copy each byte three times: its `readinto` is one of a `read`.
        answer: http.client.HTTPResponse = self._raw.connection.answer
        try:
            n = answer.readinto(room)
        except self._errors as error:
            raise TransportError(Trouble.CUT, _text(error)) from None
        self._is_read = answer.isclosed()
        return n

    def close(self) -> None:
        """Give the connection back to the pool; one with more to read is closed."""
        try:
            if not self._is_read and self._raw.read(1):
                self._raw.close()
        except self._errors:
            self._raw.close()
        self._raw.release_conn()


class Transport:
    """Connections to one server, for several threads.

    Args:
        invite: URL and certificate, or place with a token file.
        proxy: URL of an HTTP proxy; None for none. The environment is not read.

    Raises:
        ConfigError: urllib3 is not installed, the proxy is no URL of one, or the token file cannot be used.
    """

    def __init__(self, invite: Invite, proxy: str | None = None) -> None:
        self._urllib3 = import_package("urllib3")
        exceptions = self._urllib3.exceptions
        self._errors: tuple[type[Exception], ...] = (
            exceptions.HTTPError,
            http.client.HTTPException,
            OSError,
        )
        self._pool_classes = _pool_classes(self._urllib3)
        self._proxy = proxy
        self._pools: Any = None
        self.move(invite)

    def move(self, invite: Invite) -> None:
        """Use another URL from now on, and the token file as it is now.

        Raises:
            ConfigError: the proxy is no URL of one, or the token file cannot be used.
        """
        options: dict[str, Any] = {"retries": False, "maxsize": 4, "block": False}
        if invite.pin is not None:
            # The certificate has no name that could be checked: it is this one, or the connection is refused.
            options |= {
                "cert_reqs": "CERT_NONE",
                "assert_fingerprint": invite.pin.hex(),
                "assert_hostname": False,
            }
        self._files = TlsFiles(token_file=None if invite.place is None else invite.place.token_file)
        if self._files.verifies_peers:
            options |= {
                "ssl_context": self._files.ssl_client(),
                "server_hostname": self._files.server_name(invite.url),
            }
        before = self._pools
        try:
            self._pools = (
                self._urllib3.PoolManager(**options)
                if self._proxy is None
                else self._urllib3.ProxyManager(self._proxy, **options)
            )
        except self._urllib3.exceptions.HTTPError as error:
            raise ConfigError(f"the proxy is {self._proxy!r}: {error}") from None
        self._pools.pool_classes_by_scheme = self._pool_classes
        self._url = invite.url
        if before is not None:
            before.clear()

    def send(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: Iterable[bytes | memoryview] = (),
        held_s: float = 0.0,
    ) -> Response:
        """Send a request; return its answer when the head has arrived.

        Args:
            method: HTTP method.
            target: Path and query, from "/v1/" on.
            headers: Headers of the request.
            body: Pieces of the body.
            held_s: Seconds that the server may hold the request.

        Raises:
            TransportError: there is no answer.
        """
        pieces = [memoryview(piece) for piece in body]
        n = sum(len(piece) for piece in pieces)
        timeout = self._urllib3.Timeout(connect=_CONNECT_S, read=_ANSWER_S + held_s)
        # Without Accept-Encoding no proxy has a reason to compress.
        headers = {**headers, "Accept-Encoding": "identity", "User-Agent": "softs-fast"}
        if n or method in ("POST", "PUT"):
            headers["Content-Length"] = str(n)
        try:
            raw = self._pools.request(
                method,
                self._url + target,
                body=_in_pieces(pieces) if n else None,
                headers=headers,
                timeout=timeout,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except self._errors as error:
            raise self._failure(error) from None
        return Response(raw, self._errors)

    def close(self) -> None:
        """Close all connections."""
        self._pools.clear()

    def _failure(self, error: Exception) -> TransportError:
        exceptions = self._urllib3.exceptions
        if isinstance(error, exceptions.NameResolutionError):
            return TransportError(Trouble.NO_NAME, _text(error))
        if isinstance(error, exceptions.SSLError):
            cause = error.args[0] if error.args else None
            refusal = refusal_of(cause, self._files) if isinstance(cause, Exception) else None
            if refusal is not None or "ingerprint" in str(error):
                return TransportError(Trouble.CERTIFICATE, refusal or _text(error))
        return TransportError(Trouble.CUT, _text(error))


def foreign(response: Response, body: bytes) -> TransportError:
    """Return what an answer without the server's signature means.

    Args:
        response: Answer without the server's signature.
        body: Part of its body that has been read.
    """
    asked_s = asked_seconds(response)
    trouble = Trouble.BUSY if response.status in (429, 503) and asked_s else Trouble.FOREIGN
    location = response.headers.get("Location", "")
    kind = response.headers.get("Content-Type", "no type")
    text = f"{response.status}, {kind[:64]}{' to ' if location else ''}{location[:128]}"
    return TransportError(trouble, text, response.status, asked_s, body)


def asked_seconds(response: Response) -> float:
    """Return the seconds that Retry-After asks for; 0 without it, or if it is a date."""
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 0.0


def _pool_classes(urllib3: Any) -> dict[str, type[Any]]:
    """Return pools by scheme of which the connections have the answer of `http.client`, as `answer`."""

    def with_answer(connection: type[Any]) -> type[Any]:
        def response_class(self: Any, *arguments: Any, **options: Any) -> http.client.HTTPResponse:
            answer = self.answer = http.client.HTTPResponse(*arguments, **options)
            return answer

        return type(connection.__name__, (connection,), {"response_class": response_class})

    return {
        scheme: type(pool.__name__, (pool,), {"ConnectionCls": with_answer(pool.ConnectionCls)})
        for scheme, pool in (("http", urllib3.HTTPConnectionPool), ("https", urllib3.HTTPSConnectionPool))
    }


def _in_pieces(body: Iterable[memoryview]) -> Iterator[memoryview]:
    for whole in body:
        for begin in range(0, len(whole), _PIECE):
            yield whole[begin : begin + _PIECE]


def _text(error: Exception) -> str:
    """The error without the address of an object in it."""
    return str(error).split("object at 0x")[-1].partition(": ")[2] or str(error) or type(error).__name__
