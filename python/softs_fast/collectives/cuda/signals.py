"""How the stream of a rank announces its progress to the streams of the other ranks.

Announcements are numbered by *marks* of 32 bits, which all ranks count alike and which wrap around. There are two ways:

- `Words`: each rank's stream writes the mark into a word of the host's memory that all ranks share, and the streams of
  the others wait until the word has reached it. If a rank ends, its word is raised by the watchdogs of the others
  (csrc/collective/words.hpp), so that their streams go on.
- `Events`: interprocess events, where a driver cannot do that. A rank that has ended never completes its events, and
  streams that wait for one of them stop for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from softs_fast import _kernels
from softs_fast.errors import SegmentError

#: The mark before the first one: shortly before marks wrap around, so that every group passes that point.
FIRST_MARK = _kernels.FIRST_WORD

#: Events of each rank; see the proof in steps.py.
N_EVENTS = 2

logger = logging.getLogger(__name__)


def next_mark(mark: int) -> int:
    """Return the mark after another one."""
    return (mark + 1) & 0xFFFFFFFF


class Words:
    """Announcements by words in memory of the host.

    Attributes:
        drains: Whether waits for ranks that have ended, or broke the group, end.
        stop: Address, for kernels, of the word that ends their waits for other ranks; 0 if there is none.

    Args:
        group: the ranks.
        device: number of this rank's device.
        timeout_s: seconds to wait for the proof that streams of the device can write words and wait for them.

    Raises:
        CudaError: they cannot.
        SegmentError: the system has no thread or descriptor left.
    """

    drains = True

    def __init__(self, group: _kernels.Group, device: int, timeout_s: float) -> None:
        self._device = device
        self._words = _kernels.Words(group)
        self._pages, n_bytes = self._words.memory
        try:
            base = _kernels.cuda_map_host(self._pages, n_bytes, device)
        except _kernels.CudaError:
            self._words.close()
            raise
        self._at = [base + self._words.word(rank) - self._pages for rank in range(group.size)]
        self._own = self._at[group.rank]
        self._others = [at for rank, at in enumerate(self._at) if rank != group.rank]
        self.stop = base + self._words.stop - self._pages
        self._is_open = True
        try:
            self._prove(timeout_s)
        except _kernels.CudaError:
            self.close()
            raise

    @classmethod
    def meet(cls, group: _kernels.Group, device: int, timeout_s: float) -> Words | None:
        """Return the words of a group; None, on all ranks, if one of them cannot use them. A collective call.

        Raises:
            PeerLost: a rank died during the call.
        """
        words, problem = None, ""
        try:
            words = cls(group, device, timeout_s)
        except (_kernels.CudaError, SegmentError) as error:
            problem = str(error) or type(error).__name__
        try:
            problems = group.exchange(problem.encode()[:1000])
        except BaseException:
            if words is not None:
                words.close()
            raise
        if not any(problems):
            return words
        texts = [
            f"rank {rank}: {text.decode(errors='replace')}" for rank, text in enumerate(problems) if text
        ]
        logger.warning(
            "streams wait for events, which a killed rank never completes, instead of words in memory: %s",
            "; ".join(texts),
        )
        if words is not None:
            words.close()
        return None

    def announce(self, mark: int, stream: int) -> None:
        """Announce a mark when all earlier work of this rank's stream is done."""
        _kernels.cuda_write_word(self._own, mark, self._device, stream)

    def want(self, mark: int) -> None:
        """Prepare waits for a mark, before they are submitted."""
        self._words.want(mark)

    def wait(self, mark: int, stream: int) -> None:
        """Let a stream of this rank wait until all other ranks have announced a mark."""
        for at in self._others:
            _kernels.cuda_wait_for_word(at, mark, self._device, stream)

    def undone(self) -> list[int]:
        """Return the ranks that are behind, or that the watchdog of this rank has raised."""
        return self._words.undone()

    def drained(self) -> bool:
        """Return whether a stream of any rank went on without the work of another one: results may be wrong."""
        return self._words.drained()

    def close_others(self) -> None:
        """End the watchdog, and release the memory from the device; no stream of this rank uses it any more."""
        if self._is_open:
            self._is_open = False
            self._words.close()
            with suppress(_kernels.CudaError):
                _kernels.cuda_unregister(self._pages, self._device)

    def close(self) -> None:
        """Nothing belongs to this rank alone."""
        self.close_others()

    def _prove(self, timeout_s: float) -> None:
        """Let a stream wait until the host has written this rank's word, and then write it, before others read it.

        Raises:
            CudaError: the driver refuses, or the word is not written in time.
        """
        stream = _kernels.CudaStream(self._device)
        trial, by_host = FIRST_MARK - 2, FIRST_MARK - 1
        self._words.own = trial
        _kernels.cuda_wait_for_word(self._own, by_host, self._device, stream.handle)
        _kernels.cuda_write_word(self._own, FIRST_MARK, self._device, stream.handle)
        self._words.own = by_host
        deadline = time.monotonic() + timeout_s
        while self._words.own != FIRST_MARK:
            if time.monotonic() > deadline:
                raise _kernels.CudaError(f"a stream wrote no word of the host's memory in {timeout_s:g} s")
            time.sleep(0)
        stream.close()


class Events:
    """Announcements by interprocess events.

    Args:
        device: number of this rank's device.

    Raises:
        CudaError: CUDA gives no such event.
    """

    drains = False
    stop = 0

    def __init__(self, device: int) -> None:
        self._device = device
        self._own = [_kernels.CudaEvent(device) for _ in range(N_EVENTS)]
        self._others: dict[int, list[_kernels.CudaEvent]] = {}

    @property
    def handles(self) -> list[bytes]:
        """The handles by which another process opens the events."""
        return [event.handle for event in self._own]

    def open(self, rank: int, handles: Sequence[bytes]) -> None:
        """Open the events of another rank. Raises CudaError."""
        self._others[rank] = [_kernels.CudaEvent.open(handle, self._device) for handle in handles]

    def announce(self, mark: int, stream: int) -> None:
        """Record the event of a mark's parity."""
        self._own[mark % N_EVENTS].record(stream)

    def want(self, mark: int) -> None:
        """Nothing to prepare."""

    def wait(self, mark: int, stream: int) -> None:
        """Wait for the events that were recorded last."""
        for events in self._others.values():
            events[mark % N_EVENTS].wait(stream)

    def undone(self) -> list[int]:
        """Return the ranks with an event that has not completed."""
        return [rank for rank, events in self._others.items() if not all(event.is_done() for event in events)]

    def drained(self) -> bool:
        """Return False: no stream goes on before an event has completed."""
        return False

    def close_others(self) -> None:
        """Close the events of other ranks. Idempotent."""
        for events in self._others.values():
            _close_all(events)
        self._others.clear()

    def close(self) -> None:
        """Close all events."""
        self.close_others()
        _close_all(self._own)


#: Announcements of all ranks, for one rank.
Signals = Words | Events


def _close_all(events: Sequence[_kernels.CudaEvent]) -> None:
    for event in events:
        with suppress(_kernels.CudaError):
            event.close()
