"""Paths, header names, status codes and names of errors: what both sides spell alike.

| request | answers |
|---|---|
| GET /v1/invite, where clients have certificates of a token file | 200 Admission |
| POST /v1/join | 200 JoinAnswer; 401; 403; 409 other-manifest; 426 protocol; 503 full |
| GET /v1/model?have=T.V&wait=S&codec=C | 200 frame, 206 a range of it; 204 nothing newer; 410 Summary |
| POST /v1/push (128 bytes of header, or the whole frame) | 201 UploadState; 200 Counted; 409 Stale; 422 |
| PUT /v1/push/T.V with Upload-Offset | 202 UploadState; 200 Counted; 409 Stale; 416 UploadState; 422; 400 digest |
| HEAD /v1/push/T.V | 200 with Upload-Offset; 404 no-upload |
| POST /v1/heartbeat Heartbeat | 204 with Softs-Version |
| POST /v1/data DataRequest | 200 DataRange; 204 the epoch is exhausted; 409 spent |
| POST /v1/leave Leave, /v1/pause {}, /v1/resume {} | 204 |
| GET /v1/status?since=K&wait=S | 200 Status; 204 |
| POST /v1/control Control | 204; 401 |

401, 403, 404 unknown-id and 429 may answer any request. Errors are `messages.Failure`, or a class that has its `code`.
"""

from __future__ import annotations

import enum
import re
from typing import Self

from ...errors import WireError

__all__ = [
    "CONTROL",
    "DATA",
    "HEADERS",
    "HEARTBEAT",
    "INVITE",
    "JOIN",
    "LEAVE",
    "MAC",
    "MODEL",
    "PAUSE",
    "PUSH",
    "RESUME",
    "STATUS",
    "UPLOAD_OFFSET",
    "VERSION",
    "Code",
    "parse_version",
    "version_text",
]

JOIN, MODEL, PUSH, HEARTBEAT = "/v1/join", "/v1/model", "/v1/push", "/v1/heartbeat"
DATA, LEAVE, PAUSE, RESUME = "/v1/data", "/v1/leave", "/v1/pause", "/v1/resume"
STATUS, CONTROL, INVITE = "/v1/status", "/v1/control", "/v1/invite"

#: T.V of the server's weights, in each answer.
VERSION = "Softs-Version"
#: Of each answer: `signing.answer_mac`.
MAC = "Softs-Mac"
#: In bytes of the payload.
UPLOAD_OFFSET = "Upload-Offset"
#: Of each answer; a proxy must neither keep nor change it.
HEADERS = {"Cache-Control": "no-store, no-transform"}


class Code(enum.StrEnum):
    """`code` of a Failure.

    Attributes:
        status: HTTP status of an answer with it, unless `docs/paramserver.md` names another one.
        number: Number for people: docs/paramserver.md has a table by it. It stays the same, and is used for nothing else.
    """

    status: int

    def __new__(cls, text: str, status: int) -> Self:
        """Make one; the order of the class numbers them, so new ones come last."""
        made = str.__new__(cls, text)
        made._value_, made.status = text, status
        return made

    BAD_MAC = "bad-mac", 401  # Join again; to a join: the invite is another one.
    REPLAYED = "replayed", 401  # The counter was used before, perhaps because a proxy sent the request twice.
    KICKED = "kicked", 403
    UNKNOWN_ID = "unknown-id", 404  # Join again.
    NO_UPLOAD = "no-upload", 404  # Announce the push again.
    STALE = "stale", 409
    OTHER_MANIFEST = "other-manifest", 409
    SPENT = "spent", 409  # The lease was used or taken back; ask with the next number.
    OVER = "over", 410
    TOO_LONG = "too-long", 413
    BAD_RANGE = "bad-range", 416  # 412 for a frame that is gone.
    NOT_FINITE = "not-finite", 422
    BAD_PUSH = "bad-push", 422  # Header against manifest, no samples, too old.
    PROTOCOL = "protocol", 426
    BAD_DIGEST = "bad-digest", 400  # The upload was dropped.
    BAD_REQUEST = "bad-request", 400  # 404 for what there is not, 408 for a join that takes too long.
    BUSY = "busy", 429
    FULL = "full", 503
    INTERNAL = "internal", 500

    @property
    def number(self) -> str:
        return f"PS{[*Code].index(self) + 1:02}"


_VERSION = re.compile(r"([0-9]{1,10})\.([0-9]{1,19})")


def version_text(timeline: int, version: int) -> str:
    """Return T.V as text."""
    return f"{timeline}.{version}"


def parse_version(text: str) -> tuple[int, int]:
    """Return (T, V).

    Raises:
        WireError: the text is no T.V.
    """
    if (found := _VERSION.fullmatch(text)) is None:
        raise WireError(f"{text[:64]!r} is no version; need T.V, such as 1.42")
    return int(found[1]), int(found[2])
