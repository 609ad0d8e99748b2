"""What is asked next, and what an answer means: machines without sockets, driven by `session`.

An exchange is run until `answered` returns that it is done. Each attempt is one request, which `next` returns. `failed`
tells that no answer of the server came, with the status of a foreign page, or 0: the next request must then find out
what the server has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from ...errors import ConfigError, SoftsError, WireError
from ...records import Record
from ..wire import answers
from ..wire.answers import Code
from ..wire.frame import Frame, check_header
from ..wire.header import HEADER_BYTES, FrameHeader
from ..wire.limits import WHOLE_FRAME_BYTES
from ..wire.manifest import Manifest
from ..wire.messages import Counted, Failure, Stale, Summary, UploadState, decode
from ..wire.tensors import Memory
from .retries import Trouble
from .sizes import PartSizes, PollWait

__all__ = ["Answer", "Call", "Download", "Exchange", "Request", "Upload", "refusal"]

_Record = TypeVar("_Record", bound=Record)


@dataclass(frozen=True)
class Request:
    """One attempt.

    Attributes:
        method: HTTP method.
        target: Path and query.
        digested: Part of the body that is signed: JSON, or the header of a frame; see `wire.signing`.
        body: Pieces of the body as it travels, one after the other.
        offset: Value of Upload-Offset.
        begin: Byte of the frame from which on it is wanted, for a download.
        etag: ETag of the frame of which that byte is wanted.
        held_s: Seconds that the server may hold the request.
    """

    method: str
    target: str
    digested: bytes = b""
    body: tuple[bytes | memoryview, ...] = ()
    offset: int | None = None
    begin: int = 0
    etag: str = ""
    held_s: float = 0.0


@dataclass(frozen=True)
class Answer:
    """An answer with the server's signature.

    Attributes:
        status: HTTP status.
        body: JSON; b"" for frames, which go into the `Download`.
        offset: Value of Upload-Offset, if the answer has it.
        asked_s: Seconds of the header Retry-After; 0 without it.
    """

    status: int
    body: bytes = b""
    offset: int | None = None
    asked_s: float = 0.0

    def record(self, kind: type[_Record]) -> _Record:
        """Return the body as a record.

        Raises:
            WireError: it is none.
        """
        return decode(kind, self.body)

    def code(self) -> str:
        """Return the code of an error; "" if this is none, or the body has none."""
        if self.status < HTTPStatus.BAD_REQUEST or not self.body:
            return ""
        try:
            return self.record(Failure).code
        except WireError:
            return ""


def refusal(answer: Answer, what: str) -> SoftsError:
    """Return the exception for an answer that ends a worker.

    Args:
        answer: Answer with a status that no exchange expects.
        what: Request that was made, for the text.
    """
    try:
        failure = answer.record(Failure)
    except WireError:
        failure = Failure(
            "", f"the server answered {answer.status}", "install the same version on both sides"
        )
    number = next((f" ({code.number})" for code in Code if code == failure.code), "")
    text = f"{what}: {failure.message}{'; ' if failure.remedy else ''}{failure.remedy}{number}"
    return (
        WireError(text)
        if answer.status
        in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.BAD_REQUEST)
        else ConfigError(text)
    )


class Call:
    """One request with JSON, that may be repeated as it is.

    Args:
        method: HTTP method.
        target: Path and query.
        body: JSON.
        expected: Statuses that are results; any other one is an error.
        held_s: Seconds that the server may hold the request.
    """

    def __init__(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        expected: tuple[int, ...] = (HTTPStatus.OK, HTTPStatus.NO_CONTENT),
        held_s: float = 0.0,
    ) -> None:
        self._request = Request(method, target, body, (body,) if body else (), held_s=held_s)
        self._expected = expected
        self.answer: Answer | None = None

    def next(self) -> Request:
        """Return the request."""
        return self._request

    def answered(self, answer: Answer, seconds: float) -> bool:
        """Keep the answer.

        Raises:
            ConfigError: the server refuses the request.
            WireError: it does not understand it.
        """
        if answer.status not in self._expected:
            raise refusal(answer, f"{self._request.method} {self._request.target}")
        self.answer = answer
        return True

    def failed(self, trouble: Trouble, seconds: float, status: int) -> None:
        """The same request follows."""


class Upload:
    """One push: announced by its header, sent in parts, finished when the server has counted or refused it.

    After a failure it asks which bytes the server has. An upload that the server does not know is announced again: the
    server counts each (worker, T, V) once.

    Args:
        frame: Frame of the push.
        sizes: Sizes of parts.
        on_progress: Function that takes the number of bytes that the server has.
    """

    def __init__(
        self, frame: Frame, sizes: PartSizes, on_progress: Callable[[int], None] = lambda n: None
    ) -> None:
        self._header = frame.header.encode()
        self._payload = memoryview(frame.payload)
        self._where = f"{answers.PUSH}/{answers.version_text(frame.header.timeline, frame.header.version)}"
        self._sizes = sizes
        self._on_progress = on_progress
        #: Where the server is: None: it must be announced; -1: ask.
        self._offset: int | None = None
        self._is_whole = len(frame) <= WHOLE_FRAME_BYTES
        self._sent = 0
        self.result: Counted | Stale | Summary | None = None

    def next(self) -> Request:
        """Announce, ask, or send the next part."""
        if self._offset is None:
            body = (self._header, self._payload) if self._is_whole else (self._header,)
            self._sent = len(self._payload) if self._is_whole else 0
            return Request("POST", answers.PUSH, self._header, body)
        if self._offset < 0:
            self._sent = 0
            return Request("HEAD", self._where)
        part = self._payload[self._offset : self._offset + self._sizes.bytes]
        self._sent = len(part)
        return Request("PUT", self._where, self._header, (part,), offset=self._offset)

    def answered(self, answer: Answer, seconds: float) -> bool:
        """Take an answer.

        Raises:
            ConfigError: the server refuses the worker.
            WireError: it refuses the push, such as one that is not finite.
        """
        code = answer.code()
        match answer.status:
            case HTTPStatus.OK if self._offset is not None and self._offset < 0:
                self._move_to(answer.offset if answer.offset is not None else 0)
            case HTTPStatus.OK:
                self.result = answer.record(Counted)
                self._on_progress(len(self._payload))
                return True
            case HTTPStatus.CREATED | HTTPStatus.ACCEPTED:
                state = answer.record(UploadState)
                if self._offset is not None:
                    self._sizes.passed(self._sent, seconds)
                self._sizes.limit(state.max_part_bytes)
                self._move_to(state.next_offset)
            case HTTPStatus.CONFLICT if code == Code.STALE:
                self.result = answer.record(Stale)
                return True
            case HTTPStatus.GONE:
                self.result = answer.record(Summary)
                return True
            case HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                self._move_to(answer.record(UploadState).next_offset)
            case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                self._shorten()
            case HTTPStatus.NOT_FOUND if self._offset is not None and code == Code.NO_UPLOAD:
                self._offset = None
            case _ if self._offset is not None and self._offset < 0:
                # An answer to HEAD has no body that says why: that to an announcement does.
                self._offset = None
            case HTTPStatus.BAD_REQUEST if code == Code.BAD_DIGEST:
                # The server has dropped the upload.
                self._offset = None
            case _:
                raise refusal(answer, "a push")
        return False

    def failed(self, trouble: Trouble, seconds: float, status: int) -> None:
        """What the server has is not known: ask, or announce again."""
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            self._shorten()
        elif self._offset is not None:
            if self._sent and trouble is Trouble.CUT:
                self._sizes.cut()
            self._offset = -1

    def rejoined(self) -> None:
        """The worker has joined again: what the server had of the upload is gone, or not known."""
        self._offset = None

    def _move_to(self, offset: int) -> None:
        if offset > len(self._payload):
            raise WireError(f"the server wants byte {offset} of a push of {len(self._payload)} bytes")
        if offset == len(self._payload):
            # All bytes are there, but no result: the answer with it was lost. The announcement asks for it.
            if self._offset is None:
                raise WireError(
                    f"the server has all {offset} bytes of a push, and neither counts nor refuses it"
                )
            self._offset = None
        else:
            self._offset = offset
        self._on_progress(offset)

    def _shorten(self) -> None:
        if self._offset is None and self._is_whole:
            self._is_whole = False
        elif not self._sizes.refused(self._sent):
            raise WireError(
                f"a part of {self._sent} bytes is too long for a proxy on the road (413); use another tunnel"
            )
        if self._offset is not None:
            self._offset = -1


class Download:
    """Weights that are newer than those of the worker: a frame, kept as it arrives, so that a cut costs nothing twice.

    Args:
        target: Function that returns path and query for a given wait in seconds.
        poll: Wait of a poll: how long the server may hold a request; it is told of cuts.
        manifest: Manifest of the model.
        job: Bytes of the invite that name the job.
        memory: Memory for the payload; None: new memory.
    """

    def __init__(
        self,
        target: Callable[[float], str],
        poll: PollWait,
        manifest: Manifest,
        job: bytes,
        memory: Memory | None = None,
    ) -> None:
        self._target, self._poll = target, poll
        self._manifest, self._job = manifest, job
        self._head: bytes = b""
        self.header: FrameHeader | None = None
        self._memory = memory or Memory(0)
        self.payload = memoryview(bytearray())
        self._digest = hashlib.sha256()
        self.n_received = 0
        self.summary: Summary | None = None

    def next(self) -> Request:
        """Ask for a frame, or for the rest of one."""
        if self.header is not None:
            etag = self.header.signed_digest.hex()
            begin = HEADER_BYTES + self.n_received
            return Request("GET", self._target(0.0), begin=begin, etag=etag)
        wait_s = self._poll.seconds
        return Request("GET", self._target(wait_s), held_s=wait_s)

    def head(self, status: int) -> bytes | None:
        """Return the 128 bytes of the header that an answer with this status continues; None if it begins a frame."""
        return self._head if status == HTTPStatus.PARTIAL_CONTENT and self.header is not None else None

    def begin(self, head: bytes) -> None:
        """Take the 128 bytes of a header, after the signature was checked.

        Raises:
            WireError: it is none, or one of another job or model.
        """
        header = FrameHeader.decode(head)
        check_header(header, self._manifest, self._job)
        self._head, self.header, self.n_received = head, header, 0
        self.payload, self._digest = self._memory.take(header.encoded_bytes), hashlib.sha256()

    def room(self) -> memoryview:
        """Return where the next bytes go."""
        return self.payload[self.n_received :]

    def received(self, n: int) -> None:
        """Count bytes that were written to `room`."""
        self._digest.update(self.payload[self.n_received : self.n_received + n])
        self.n_received += n

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are there."""
        return self.header is not None and self.n_received == len(self.payload)

    @property
    def is_intact(self) -> bool:
        """Whether the bytes have the digest that the signed header says."""
        return self.header is not None and self._digest.digest() == self.header.digest

    def answered(self, answer: Answer, seconds: float) -> bool:
        """Take an answer.

        Raises:
            ConfigError: the server refuses the worker.
            WireError: the server does not understand it.
        """
        match answer.status:
            case HTTPStatus.OK | HTTPStatus.PARTIAL_CONTENT:
                return self.is_complete
            case HTTPStatus.NO_CONTENT:
                self._poll.ended()
                return True
            case HTTPStatus.GONE:
                self.summary = answer.record(Summary)
                return True
            case HTTPStatus.PRECONDITION_FAILED | HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # The server holds later weights by now.
                self.restart()
                return False
            case _:
                raise refusal(answer, "weights")

    def failed(self, trouble: Trouble, seconds: float, status: int) -> None:
        """What was received stays; the rest is asked for."""
        if self.header is None and trouble in (Trouble.CUT, Trouble.FOREIGN):
            self._poll.cut(seconds)

    def restart(self) -> None:
        """Drop what was received."""
        self._head, self.header, self.n_received, self.payload = b"", None, 0, memoryview(bytearray())


Exchange = Call | Upload | Download
