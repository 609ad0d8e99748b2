"""Pushes that arrive in parts: what has arrived stays until the rest has."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ....errors import WireError
from ...rounds.events import Version
from ...wire.answers import Code
from ...wire.header import FrameHeader
from ...wire.tensors import Memory
from .request import failure

__all__ = ["Part", "Upload", "Uploads"]

#: Without room for a push, ask again after so long.
_BUSY_S = 2.0
#: Buffers of pushes that stay for the next round.
_KEPT = 16


@dataclass(eq=False)
class Upload:
    """A push that has been announced.

    Attributes:
        worker_id: Id of the worker.
        header: Header of the frame.
        head: 128 bytes of the header.
        payload: All bytes, of which the first `offset` have arrived.
        offset: Bytes that have arrived.
        result: Future result of the push, once all bytes have arrived; an answer, or an exception.
        n_parts: Requests that have begun to write; only the last one may.
    """

    worker_id: str
    header: FrameHeader
    head: bytes
    payload: memoryview
    offset: int = 0
    result: asyncio.Future[Any] | None = None
    n_parts: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)
    _hashed: int = 0
    _hashing: Lock = field(default_factory=Lock)

    @property
    def base(self) -> Version:
        """The weights that the push was computed with."""
        return Version(self.header.timeline, self.header.version)

    @property
    def lease(self) -> int | None:
        """Number of the lease of its samples; None if the run hands out none."""
        return self.header.lease or None

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self.offset == len(self.payload)

    @property
    def digest(self) -> bytes:
        """SHA-256 of what `hash_arrived` has seen."""
        digest: bytes = self._digest.digest()
        return digest

    def hash_arrived(self) -> None:
        """Hash what has arrived since the last call. Any thread may do this: the event loop goes on meanwhile."""
        with self._hashing:
            end = self.offset
            self._digest.update(self.payload[self._hashed : end])
            self._hashed = end

    def begin_part(self, n: int) -> Part:
        """Return what writes the next n bytes; one that began earlier may not write any more.

        Raises:
            WireError: there are more than the header has announced.
        """
        if self.offset + n > len(self.payload):
            raise WireError(f"a push has more than the {len(self.payload)} bytes of its header")
        self.n_parts += 1
        return Part(self)


class Part:
    """A request that appends to an upload, as long as no later one does.

    Args:
        upload: Upload of all parts.

    Attributes:
        n: bytes of this part so far.
    """

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._number = upload.n_parts
        self.n = 0

    def room(self) -> memoryview:
        """Return where the next bytes go; nothing if a later request writes by now."""
        upload = self._upload
        return upload.payload[upload.offset :] if upload.n_parts == self._number else memoryview(b"")

    def arrived(self, n: int) -> None:
        """Count bytes that were written to `room`."""
        self.n += n
        self._upload.offset += n


class Uploads:
    """At most one upload for each worker.

    Args:
        max_bytes: Bytes of all payloads, and of pushes that no step has used, at most.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._memory = Memory(_KEPT)
        self._by_worker: dict[str, Upload] = {}

    @property
    def n_bytes(self) -> int:
        """Memory of all uploads."""
        return sum(len(one.payload) for one in self._by_worker.values())

    def find(self, worker_id: str, base: Version | None = None) -> Upload | None:
        """Return the upload of a worker; None if there is none, or it is for other weights."""
        found = self._by_worker.get(worker_id)
        return found if found is not None and base in (None, found.base) else None

    def begin(
        self, worker_id: str, header: FrameHeader, head: bytes, present: set[str], kept_bytes: int
    ) -> Upload:
        """Return the upload that a header announces, perhaps with bytes that have arrived.

        Args:
            worker_id: Id of the worker.
            header: Header of the frame.
            head: 128 bytes of the header.
            present: Ids of the members; what others have sent is dropped if memory is needed.
            kept_bytes: Memory of pushes that no step has used.

        Raises:
            Refusal: there is no room for it.
        """
        before = self._by_worker.get(worker_id)
        if before is not None and (before.head == head or before.result is not None):
            return before
        self.drop(worker_id)
        most = self._max_bytes - kept_bytes - header.encoded_bytes
        if self.n_bytes > most:
            for gone in [one for one in self._by_worker if one not in present]:
                self.drop(gone)
        if self.n_bytes > most:
            raise failure(
                Code.BUSY,
                f"no room for a push of {header.encoded_bytes} bytes: "
                f"{self.n_bytes + kept_bytes} of {self._max_bytes} are in use",
                "the worker waits; the owner raises --max-upload-bytes",
                retry_s=_BUSY_S,
            )
        room = self._memory.take(header.encoded_bytes)
        upload = self._by_worker[worker_id] = Upload(worker_id, header, head, room)
        return upload

    def drop(self, worker_id: str) -> None:
        """Drop the upload of a worker, if there is one."""
        self._by_worker.pop(worker_id, None)
