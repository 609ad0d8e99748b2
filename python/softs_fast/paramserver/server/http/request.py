"""One HTTP request and its answer: limits of bodies, signatures."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from ....errors import WireError
from ....records import Record
from ...wire import answers, signing
from ...wire.answers import Code
from ...wire.frame import Frame
from ...wire.header import HEADER_BYTES
from ...wire.limits import MAX_REQUEST_BYTES
from ...wire.messages import Failure, decode, encode

if TYPE_CHECKING:
    from .budget import Budget
    from .connection import Connection
    from .uploads import Part

__all__ = ["CONNECTION", "Refusal", "Reply", "Request", "decoded", "failure", "no_route", "send_reply"]

#: The key of the connection in the state of a scope.
CONNECTION = "softs_fast.connection"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_Record = TypeVar("_Record", bound=Record)


_MAX_FIELDS = 8


class Refusal(Exception):
    """A request that is answered by an error.

    Args:
        status: HTTP status.
        record: Body of the answer.
        retry_s: Seconds of the header Retry-After; 0 for none.
    """

    def __init__(self, status: int, record: Any, retry_s: float = 0.0) -> None:
        super().__init__(status, record)
        self.reply = Reply.of(record, status, retry_s)


class Disconnected(Exception):
    """The peer has closed the connection before the end of its request."""


def failure(
    code: Code, message: str, remedy: str = "", *, retry_s: float = 0.0, status: int | None = None
) -> Refusal:
    """Return an error with a code; its status is that of the code unless another one is given."""
    return Refusal(code.status if status is None else status, Failure(code.value, message, remedy), retry_s)


def no_route(request: Request) -> Refusal:
    """Return the error for a request that is not in the table of `wire.answers`."""
    text = f"there is no {request.method} {request.path[:64]}"
    return failure(Code.BAD_REQUEST, text, status=HTTPStatus.NOT_FOUND)


def decoded(kind: type[_Record], body: bytes, limit: int = MAX_REQUEST_BYTES) -> _Record:
    """Return the record of a body.

    Raises:
        Refusal: It is none of this kind.
    """
    try:
        return decode(kind, body, limit)
    except WireError as error:
        raise failure(Code.BAD_REQUEST, str(error)) from None


@dataclass
class Reply:
    """What is sent.

    Attributes:
        status: HTTP status.
        body: JSON, or another content.
        content_type: Content type of the body.
        frame: Weights, instead of a body.
        begin: Byte of the frame from which on it is sent.
        offset: Value of Upload-Offset.
        retry_s: Seconds of the header Retry-After; 0 for none.
        headers: More headers.
    """

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    frame: Frame | None = None
    begin: int = 0
    offset: int | None = None
    retry_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record, status: int = HTTPStatus.OK, retry_s: float = 0.0) -> Reply:
        """Return an answer with a record."""
        return cls(status, encode(record), retry_s=retry_s)


class Request:
    """A request of which the body has not been read.

    Args:
        scope: ASGI scope of the request.
        receive: ASGI receive function of the request.
        budget: Budget of what is read before the request is proven.
    """

    def __init__(self, scope: Message, receive: Receive, budget: Budget) -> None:
        self._receive = receive
        self._budget = budget
        self._is_read = self._is_proven = False
        self._early = bytearray()
        self._n = 0
        self.connection: Connection = scope["state"][CONNECTION]
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        query = scope["query_string"].decode("latin-1")
        self.target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        self._query = query
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.authorization = self._parse_authorization()
        #: Key that signs the answer; None for none.
        self.key: bytes | None = None

    @cached_property
    def query(self) -> dict[str, str]:
        """Fields of the query.

        Raises:
            Refusal: There are too many.
        """
        try:
            return dict(parse_qsl(self._query, max_num_fields=_MAX_FIELDS))
        except ValueError:
            raise failure(Code.BAD_REQUEST, f"a query has more than {_MAX_FIELDS} fields") from None

    def wait_s(self, most: float) -> float:
        """Return the seconds for which the request may be held.

        Raises:
            Refusal: The query says no number.
        """
        try:
            return min(max(0.0, float(self.query.get("wait", "0"))), most)
        except ValueError:
            raise failure(Code.BAD_REQUEST, "wait is no number of seconds") from None

    def prove(self) -> None:
        """Note that the signature was checked: from now on the body costs the budget nothing."""
        self._is_proven = True
        self._budget.prove(self.connection)

    def digits(self, name: str, limit: int) -> int | None:
        """Return a header that is a number, or None.

        Raises:
            Refusal: it is none, or greater than the limit.
        """
        value = self.headers.get(name.lower())
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= limit):
            raise failure(Code.BAD_REQUEST, f"{name} is {value[:32]!r}; need a number up to {limit}")
        return int(value)

    async def pieces(self, limit: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Args:
            limit: bytes that it may have.

        Raises:
            Refusal: it is longer.
            Disconnected: the peer is gone.
        """
        length = self.headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 18 or int(length) > limit:
            raise _too_long(limit)
        while not self._is_read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            self._is_read = not message.get("more_body", False)
            data: bytes = message.get("body", b"")
            self._n += len(data)
            if self._n > limit:
                raise _too_long(limit)
            if data:
                if not self._is_proven:
                    self._budget.hold(self.connection, len(data))
                yield data

    async def head(self, n: int, limit: int) -> bytes:
        """Return the first n bytes of the body, fewer if it is shorter; `body` returns these too.

        Raises:
            Refusal: The body is longer than the limit.
            Disconnected: The peer is gone.
        """
        if len(self._early) < n:
            async for piece in self.pieces(limit):
                self._early += piece
                if len(self._early) >= n:
                    break
        return bytes(self._early[:n])

    async def body(self, limit: int) -> bytes:
        """Return the whole body.

        Raises:
            Refusal: it is longer than the limit.
            Disconnected: the peer is gone.
        """
        return b"".join([bytes(self._early), *[piece async for piece in self.pieces(limit)]])

    def length(self, limit: int) -> int | None:
        """Return the bytes of the body, as the head says; None of a body in chunks, into which a proxy may cut it.

        Raises:
            Refusal: there are more than the limit.
        """
        if "transfer-encoding" in self.headers:
            return None
        n = self.digits("Content-Length", 1 << 62) or 0
        if n > limit:
            raise _too_long(limit)
        return n

    async def read_into(self, part: Part, limit: int) -> bool:
        """Read the body, of at most `limit` bytes, into a part; return False if that does not take all of it.

        Raises:
            Refusal: it is longer than the limit.
            Disconnected: the peer is gone.
        """
        n = self.length(limit)
        if n is None:
            async for piece in self.pieces(limit):
                room = part.room()
                if len(room) < len(piece):
                    return False
                room[: len(piece)] = piece
                part.arrived(len(piece))
            return True
        is_whole = await self.connection.read_into(part, n)
        if self.connection.cycle.disconnected:
            raise Disconnected
        return is_whole

    def is_signed(self, key: bytes, digested: bytes = b"", upload_offset: int | None = None) -> bool:
        """Return whether the signature is one by this key, in constant time."""
        given = self.authorization
        if given is None:
            return False
        expected = signing.request_mac(
            key,
            worker_id=given.worker_id,
            method=self.method,
            target=self.target,
            n=given.n,
            upload_offset=upload_offset,
            digested=digested,
        )
        return hmac.compare_digest(expected, given.mac)

    def _parse_authorization(self) -> signing.Authorization | None:
        try:
            return signing.Authorization.parse(self.headers.get("authorization", ""))
        except WireError:
            return None


async def send_reply(send: Send, reply: Reply, request: Request, version: str) -> None:
    """Send an answer, with a signature if the request has a key for it."""
    headers = {**answers.HEADERS, **reply.headers, answers.VERSION: version}
    head = b"" if reply.frame is None else reply.frame.header.encode()
    if reply.frame is not None:
        total = len(reply.frame)
        headers["Content-Type"] = "application/octet-stream"
        headers["Content-Length"] = str(total - reply.begin)
        headers["ETag"] = f'"{reply.frame.header.signed_digest.hex()}"'
        if reply.status == HTTPStatus.PARTIAL_CONTENT:
            headers["Content-Range"] = f"bytes {reply.begin}-{total - 1}/{total}"
    elif reply.status != HTTPStatus.NO_CONTENT:
        if reply.body:
            headers["Content-Type"] = reply.content_type
        headers["Content-Length"] = str(len(reply.body))
    if reply.offset is not None:
        headers[answers.UPLOAD_OFFSET] = str(reply.offset)
    if reply.retry_s > 0:
        headers["Retry-After"] = str(max(1, round(reply.retry_s)))
    if request.key is not None:
        mac = request.authorization.mac if request.authorization is not None else ""
        headers[answers.MAC] = signing.answer_mac(
            request.key,
            request=mac,
            status=reply.status,
            version=version,
            upload_offset=headers.get(answers.UPLOAD_OFFSET),
            digested=head if reply.frame is not None else b"" if request.method == "HEAD" else reply.body,
        )
    await send(
        {
            "type": "http.response.start",
            "status": int(reply.status),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    if reply.frame is None or request.method == "HEAD":
        body = b"" if request.method == "HEAD" else reply.body
        await send({"type": "http.response.body", "body": body})
        return
    if reply.begin < HEADER_BYTES:
        await send({"type": "http.response.body", "body": head[reply.begin :], "more_body": True})
    await request.connection.write_from(memoryview(reply.frame.payload)[max(0, reply.begin - HEADER_BYTES) :])
    await send({"type": "http.response.body", "body": b""})


def _too_long(limit: int) -> Refusal:
    return failure(Code.TOO_LONG, f"the body is longer than {limit} bytes")
