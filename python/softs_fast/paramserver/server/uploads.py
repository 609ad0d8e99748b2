"""Pushes that arrive in parts: what has arrived stays until the rest has."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ...errors import WireError
from ..rounds.events import Version
from ..wire.header import FrameHeader
from ..wire.memory import Memory

__all__ = ["Upload", "Uploads"]

#: Buffers of pushes that stay for the next round.
_KEPT = 16


@dataclass(eq=False)
class Upload:
    """A push that has been announced.

    Attributes:
        worker: its id.
        header: of the frame.
        head: the 128 bytes.
        payload: all bytes, of which the first `offset` have arrived.
        offset: bytes that have arrived.
        result: of the push, once all bytes have arrived; an answer, or an exception.
    """

    worker: str
    header: FrameHeader
    head: bytes
    payload: memoryview
    offset: int = 0
    result: asyncio.Future[Any] | None = None
    _digest: Any = field(default_factory=hashlib.sha256)
    _hashed: int = 0
    _hashing: Lock = field(default_factory=Lock)
    _writer: int = 0

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

    def begin_part(self) -> int:
        """Return the number of a request that writes; one that began earlier may not write any more."""
        self._writer += 1
        return self._writer

    def write(self, writer: int, data: bytes) -> bool:
        """Append bytes; return False if a later request writes by now.

        Raises:
            WireError: there are more than the header has announced.
        """
        if writer != self._writer:
            return False
        if self.offset + len(data) > len(self.payload):
            raise WireError(f"a push has more than the {len(self.payload)} bytes of its header")
        self.payload[self.offset : self.offset + len(data)] = data
        self.offset += len(data)
        return True


class Uploads:
    """At most one upload for each worker.

    Args:
        max_bytes: of all payloads together, and of what `reserved` counts.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._memory = Memory(_KEPT)
        self._by_worker: dict[str, Upload] = {}
        self.reserved = 0

    @property
    def n_bytes(self) -> int:
        """Memory of all uploads, and of pushes that no step has used."""
        return self.reserved + sum(len(one.payload) for one in self._by_worker.values())

    def find(self, worker: str, base: Version | None = None) -> Upload | None:
        """Return the upload of a worker; None if there is none, or it is for other weights."""
        found = self._by_worker.get(worker)
        return found if found is not None and base in (None, found.base) else None

    def begin(self, worker: str, header: FrameHeader, head: bytes, present: set[str]) -> Upload | None:
        """Return the upload that a header announces, perhaps with bytes that have arrived; None without memory for it.

        Args:
            worker: its id.
            header: of the frame.
            head: its 128 bytes.
            present: members; what others have sent is dropped if memory is needed.
        """
        before = self._by_worker.get(worker)
        if before is not None and (before.head == head or before.result is not None):
            return before
        self.drop(worker)
        if self.n_bytes + header.encoded_bytes > self._max_bytes:
            for gone in [one for one in self._by_worker if one not in present]:
                self.drop(gone)
        if self.n_bytes + header.encoded_bytes > self._max_bytes:
            return None
        upload = self._by_worker[worker] = Upload(
            worker, header, head, self._memory.take(header.encoded_bytes)
        )
        return upload

    def drop(self, worker: str) -> None:
        """Drop the upload of a worker, if there is one."""
        self._by_worker.pop(worker, None)
