"""Signatures of requests and answers: HMAC-SHA256 with a key that never travels.

Keys are made by HKDF-SHA256 from the secret of the invite:

* the *join key*: salt = the client's nonce, info = "SF1 join" and the job. It signs the request to join and its answer.
* the *session key*: salt = the client's nonce and the server's, info = "SF1 session", the job and the worker id. It
  signs all other requests of this worker, and the answers to them.
* the *answer key*: no salt, info = "SF1 answer" and the job. It signs answers to requests with an id that the server
  does not know (404), or with a wrong mac (401): there is no session then.

**What is signed in a request**, joined by line feeds: "SF1", the worker id ("new" for a join), the method, the target
(path and query as sent, from "/v1/" on), the counter n, the value of Upload-Offset or "-", and the SHA-256 of the
*digested bytes* as hex. Digested bytes are the JSON body; for POST and PUT of a push the 128 bytes of the frame's
header, which holds the SHA-256 of the payload: so the whole payload is covered, but checked only when it is complete;
nothing for GET and HEAD. Not signed: other headers, the bytes of a single part.

**What is signed in an answer**: "SF1-answer", the mac of the request that it answers, the status, Softs-Version or "-",
Upload-Offset or "-", and the SHA-256 of the digested bytes: the JSON body; for weights the 128 bytes of the frame's
header, whichever range of the frame follows. So an answer can neither be forged nor be that to another request.

There are no clocks. Each counter n is valid once, within a window of 64: a heartbeat and an upload may overtake each
other. A join is valid once per nonce of the client, which the server remembers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from ...errors import WireError
from .limits import MAX_AUTHORIZATION_BYTES

__all__ = [
    "NEW",
    "NONCE_BYTES",
    "OWNER",
    "WORKER_ID",
    "Authorization",
    "CounterWindow",
    "answer_key",
    "answer_mac",
    "check_answer",
    "hkdf",
    "join_key",
    "owner_key",
    "request_mac",
    "session_key",
]

#: The worker id of a request to join, and that of requests of the owner.
NEW, OWNER = "new", "owner"
NONCE_BYTES = 16
#: What an id of a worker may be.
WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_FORMAT = re.compile(rf"SF1 id=({WORKER_ID.pattern}), ?n=([0-9]{{1,19}}), ?mac=([0-9a-f]{{64}})")
_WINDOW = 64


@dataclass(frozen=True)
class Authorization:
    """The header Authorization of a request.

    Attributes:
        worker_id: Id of the worker; `NEW` for a join.
        n: Counter of the request, from 1; 0 for a join.
        mac: 64 hexadecimal digits, of `request_mac`.
    """

    worker_id: str
    n: int
    mac: str

    def __str__(self) -> str:
        """Return the header's value."""
        return f"SF1 id={self.worker_id}, n={self.n}, mac={self.mac}"

    @classmethod
    def parse(cls, value: str) -> Authorization:
        """Parse the header's value.

        Raises:
            WireError: it is too long, or none of this kind.
        """
        if len(value) > MAX_AUTHORIZATION_BYTES or (found := _FORMAT.fullmatch(value)) is None:
            raise WireError("the header Authorization is not `SF1 id=.., n=.., mac=..`")
        return cls(found[1], int(found[2]), found[3])


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Return 32 bytes derived from a secret.

    Args:
        secret: Secret key material, any length.
        salt: Public bytes, any length.
        info: Purpose of the key.

    Source: RFC 5869, with SHA-256.
    """
    key = hmac.digest(salt or bytes(32), secret, "sha256")
    return hmac.digest(key, info + b"\1", "sha256")


def join_key(secret: bytes, job: bytes, client_nonce: bytes) -> bytes:
    """Return the key of a request to join and of its answer."""
    return hkdf(secret, client_nonce, b"SF1 join" + job)


def session_key(secret: bytes, job: bytes, client_nonce: bytes, server_nonce: bytes, worker_id: str) -> bytes:
    """Return the key of one worker, from its join on."""
    return hkdf(secret, client_nonce + server_nonce, b"SF1 session" + job + worker_id.encode())


def answer_key(secret: bytes, job: bytes) -> bytes:
    """Return the key of answers to requests without a session."""
    return hkdf(secret, b"", b"SF1 answer" + job)


def owner_key(owner: bytes, job: bytes) -> bytes:
    """Return the key of the owner's requests."""
    return hkdf(owner, b"", b"SF1 owner" + job)


def request_mac(
    key: bytes,
    *,
    worker_id: str,
    method: str,
    target: str,
    n: int,
    upload_offset: int | None = None,
    digested: bytes = b"",
) -> str:
    """Return the mac of a request, 64 hexadecimal digits.

    Args:
        key: Session key, or the join key.
        worker_id: Id of the worker; `NEW` for a join.
        method: HTTP method, such as "POST".
        target: Path and query as sent; what stands before "/v1/", which a proxy may add or take away, is left out.
        n: Counter of the request.
        upload_offset: Offset of a part of an upload.
        digested: JSON body, or the 128 bytes of the frame's header.
    """
    begin = target.find("/v1/")
    offset = "-" if upload_offset is None else str(upload_offset)
    return _mac(key, ["SF1", worker_id, method, target[max(begin, 0) :], str(n), offset], digested)


def answer_mac(
    key: bytes,
    *,
    request: str,
    status: int,
    version: str | None = None,
    upload_offset: str | None = None,
    digested: bytes = b"",
) -> str:
    """Return the value of the header Softs-Mac of an answer, 64 hexadecimal digits.

    Args:
        key: Session key; the join key; the answer key for 401 and 404 without a session.
        request: Mac of the request.
        status: HTTP status.
        version: Value of Softs-Version, if the answer has it.
        upload_offset: Value of Upload-Offset, if the answer has it.
        digested: JSON body, or the 128 bytes of the header of the frame of which the answer is a range.
    """
    return _mac(key, ["SF1-answer", request, str(status), version or "-", upload_offset or "-"], digested)


def _mac(key: bytes, lines: list[str], digested: bytes) -> str:
    text = "\n".join([*lines, hashlib.sha256(digested).hexdigest()])
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def check_answer(expected: str, value: str | None) -> bool:
    """Return whether the header Softs-Mac of an answer is the expected one, in constant time."""
    return value is not None and hmac.compare_digest(expected.encode(), value.encode())


class CounterWindow:
    """Which counters of one worker were used: each is valid once, and none that is 64 or more behind the highest.

    Source: the anti-replay window of IPsec, RFC 4303, section 3.4.3.
    """

    def __init__(self) -> None:
        self._highest = 0
        #: Bit i is set if `_highest - i` was used.
        self._used = 1

    def take(self, n: int) -> bool:
        """Mark n as used. Call it only after the mac was checked.

        Returns:
            False if it was used before, is too old, or is 0.
        """
        if n <= 0:
            return False
        ahead = n - self._highest
        if ahead > 0:
            self._used = ((self._used << ahead) | 1) & ((1 << _WINDOW) - 1) if ahead < _WINDOW else 1
            self._highest = n
            return True
        bit = 1 << -ahead
        if -ahead >= _WINDOW or self._used & bit:
            return False
        self._used |= bit
        return True
