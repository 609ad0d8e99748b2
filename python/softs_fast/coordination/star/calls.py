"""A call of all ranks: pieces go to rank 0, which reduces them in the order of the ranks, and the results go to all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ... import _kernels
from ...collectives import ReduceOp
from ...errors import PeerLost, WireError
from ...records import clip
from ..job.options import MAX_TEXT
from .attendance import Attendance
from .mailboxes import Mailboxes
from .messages import Differ, Envelope, Late, Leave, Lost, Part, encode
from .pieces import Flat, Piece

__all__ = ["AHEAD", "Call", "LeafCalls", "RankMetrics", "RootCalls"]

#: Pieces that a rank may send before it has the result of the first of them.
AHEAD = 4
#: How long rank 0 may take to answer which ranks are missing.
_ANSWER_S = 2.0


@dataclass(frozen=True)
class Call:
    """A call of one rank.

    Attributes:
        name: Name of the operation, for texts.
        tag: Hash of the operation, its tensors and their names.
        pieces: Pieces in which the call is made.
        source: Tensors from which the data of this rank is read.
        target: Tensors to which the result is written.
        op: Reduction.
    """

    name: str
    tag: int
    pieces: Sequence[Piece]
    source: Flat
    target: Flat
    op: ReduceOp = ReduceOp.SUM


@dataclass(frozen=True)
class RankMetrics:
    """What rank 0 has done for one other rank.

    Attributes:
        received_bytes: Bytes of data in its pieces.
        sent_bytes: Bytes of data in its results.
        waited_s: Time that rank 0 has waited for it, seconds.
    """

    received_bytes: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0


class LeafCalls:
    """Calls of a rank other than 0.

    Args:
        envelope: Envelope of its messages.
        boxes: Mailboxes for the messages from and to rank 0.
        named: Function that returns rank 0 with its process, and what has become of it.
        timeout_s: Seconds to wait for a piece of a result.
    """

    def __init__(
        self, envelope: Envelope, boxes: Mailboxes, named: Callable[[int], str], timeout_s: float
    ) -> None:
        self._envelope = envelope
        self._boxes = boxes
        self._named = named
        self.timeout_s = timeout_s
        self._sequence = 0
        #: Seconds of waiting for other ranks so far.
        self.waited_s = 0.0

    def make(self, call: Call) -> bool:
        """Make a call; return False if those of the ranks differ, and nothing was moved.

        Raises:
            SoftsError: the group is over; mostly PeerLost.
        """
        self._sequence += 1
        rank, n_sent = self._envelope.rank, 0
        for number, piece in enumerate(call.pieces):
            while n_sent < min(len(call.pieces), number + AHEAD):
                self._send(call, n_sent, rank)
                n_sent += 1
            part = self._take(call)
            if isinstance(part, Differ):
                return False
            n_bytes = piece.n_bytes if piece.is_for(rank) else 0
            if (part.piece, part.tag, len(part.data)) != (number, call.tag, n_bytes):
                self._fail(
                    f"rank 0 sent {len(part.data)} bytes as piece {part.piece} of {call.name}; "
                    f"{n_bytes} bytes of piece {number} are due"
                )
            if n_bytes:
                with self._boxes.writing():
                    call.target.write(piece.write_at, part.data)
        return True

    def give_up(self, reason: str) -> None:
        """End all calls of this rank, and tell the others. Idempotent."""
        leave = Leave(self._sequence, clip(reason, MAX_TEXT), True)
        self._boxes.end(PeerLost(reason), lambda: encode(self._envelope, leave))

    def leave(self, reason: str) -> None:
        """Take part in no further call."""
        leave = Leave(self._sequence, clip(reason, MAX_TEXT), False)
        self._boxes.send(0, encode(self._envelope, leave), time.monotonic() + self.timeout_s)
        self._boxes.close_box(0)

    def _send(self, call: Call, number: int, rank: int) -> None:
        piece = call.pieces[number]
        is_mine = piece.is_from(rank)
        if not is_mine and number:
            return
        data = call.source.read(piece.read_at, piece.n_bytes).tobytes() if is_mine else b""
        message = encode(self._envelope, Part(self._sequence, call.tag, number, data))
        self._boxes.send(0, message, time.monotonic() + self.timeout_s)

    def _take(self, call: Call) -> Part | Differ:
        began_s = time.monotonic()
        try:
            message = self._boxes.take(0, began_s + self.timeout_s)
        except TimeoutError:
            message = self._ask(call)
        finally:
            self.waited_s += time.monotonic() - began_s
        if message.sequence != self._sequence:
            self._fail(f"rank 0 sent a result of call {message.sequence} for call {self._sequence}")
        found: Part | Differ = message
        return found

    def _ask(self, call: Call) -> Part | Differ:
        """Have rank 0 tell which ranks are missing: that ends the group, unless the result comes just now."""
        late = encode(self._envelope, Late(self._sequence))
        until_s = time.monotonic() + _ANSWER_S
        try:
            self._boxes.send(0, late, until_s)
            message: Part | Differ = self._boxes.take(0, until_s)
        except TimeoutError:
            self._fail(f"{self._named(0)} has not answered in {call.name} for {self.timeout_s:g} s")
            raise AssertionError from None
        return message

    def _fail(self, reason: str) -> None:
        self.give_up(reason)
        raise PeerLost(reason)


class RootCalls:
    """Calls of rank 0.

    Args:
        envelope: Envelope of its messages.
        size: Number of ranks.
        boxes: Mailboxes for the messages from and to the other ranks.
        named: Function that returns a rank with its process, and what has become of it.
        timeout_s: Seconds to wait for a piece of a rank.
    """

    def __init__(
        self, envelope: Envelope, size: int, boxes: Mailboxes, named: Callable[[int], str], timeout_s: float
    ) -> None:
        self._envelope = envelope
        self._leaves = range(1, size)
        self._boxes = boxes
        self._named = named
        self.timeout_s = timeout_s
        self._sequence = 0
        self.waited_s = 0.0
        # Read by the threads that serve the other ranks, too.
        self._lock = threading.Lock()
        self._attendance = Attendance(size, AHEAD)
        self._metrics = {rank: RankMetrics() for rank in self._leaves}

    @property
    def metrics(self) -> dict[int, RankMetrics]:
        """What it has done for each other rank so far."""
        return dict(self._metrics)

    def make(self, call: Call) -> bool:
        """Make a call; return False if those of the ranks differ, and nothing was moved.

        Raises:
            SoftsError: the group is over; mostly PeerLost.
        """
        self._sequence += 1
        with self._lock:
            self._attendance.begins(self._sequence)
            over = self._attendance.over()
        if over:
            self.end(over)
        first = self._take_of(self._leaves, 0, call)
        if any(part.tag != call.tag for part in first.values()):
            differ = encode(self._envelope, Differ(self._sequence))
            for rank in self._leaves:
                self._send(rank, differ, 0, call)
            return False
        for number, piece in enumerate(call.pieces):
            sources = [rank for rank in self._leaves if piece.is_from(rank)]
            parts = first if number == 0 else self._take_of(sources, number, call)
            self._check(parts, piece, number, call)
            data = self._result(piece, [parts[rank].data for rank in sources], call)
            if piece.is_for(0):
                with self._boxes.writing():
                    call.target.write(piece.write_at, data)
            self._pass_on(piece, number, data, call)
        return True

    def end(self, reason: str) -> None:
        """End the group, and tell the other ranks why. Idempotent."""
        self._boxes.end(PeerLost(reason), lambda: encode(self._envelope, Lost(clip(reason, MAX_TEXT))))

    def give_up(self, reason: str) -> None:
        """End all calls, also those of the other ranks. Idempotent."""
        lost = Lost(clip(f"{self._named(0)} has given up: {reason}", MAX_TEXT))
        self._boxes.end(PeerLost(reason), lambda: encode(self._envelope, lost))

    # --- Called by the threads that serve the other ranks ---

    def came(self, rank: int, part: Part) -> None:
        """Take a piece of a rank.

        Raises:
            WireError: it is none that the rank may send now.
        """
        with self._lock:
            self._attendance.came(rank, part.sequence, part.piece)
            over = self._attendance.over()
        if over:
            self.end(over)
        self._boxes.put(rank, part)

    def late(self, late: Late) -> None:
        """End the group, since a call has waited for too long."""
        with self._lock:
            missing = self._attendance.missing(late.sequence)
        self.end(self._too_late(missing, f"call {late.sequence}"))

    def left(self, rank: int, leave: Leave) -> None:
        """Note that a rank takes part in no further call."""
        named = self._named(rank)
        if leave.is_failure:
            self.end(f"{named} has given up: {leave.reason}")
            return
        with self._lock:
            self._attendance.leaves(leave.last, f"{named} has left the group: {leave.reason}")
            over = self._attendance.over()
        if over:
            self.end(over)
        self._boxes.close_box(rank)

    # --- Parts of a call ---

    def _take_of(self, ranks: Iterable[int], number: int, call: Call) -> dict[int, Part]:
        with self._lock:
            self._attendance.awaits(number, ranks)
        until_s = time.monotonic() + self.timeout_s
        return {rank: self._take(rank, until_s, call) for rank in ranks}

    def _take(self, rank: int, until_s: float, call: Call) -> Part:
        began_s = time.monotonic()
        try:
            while True:
                part: Part = self._boxes.take(rank, until_s)
                with self._lock:
                    self._attendance.taken(rank)
                # What is left of a call that differed is dropped.
                if part.sequence == self._sequence:
                    self._count(rank, received=len(part.data))
                    return part
        except TimeoutError:
            with self._lock:
                missing = self._attendance.missing(self._sequence)
            reason = self._too_late(missing, call.name)
            self.end(reason)
            raise PeerLost(reason) from None
        finally:
            waited_s = time.monotonic() - began_s
            self.waited_s += waited_s
            self._count(rank, waited_s=waited_s)

    def _check(self, parts: dict[int, Part], piece: Piece, number: int, call: Call) -> None:
        for rank, part in parts.items():
            n_bytes = piece.n_bytes if piece.is_from(rank) else 0
            if (part.piece, part.tag, len(part.data)) != (number, call.tag, n_bytes):
                reason = (
                    f"{self._named(rank)} sent {len(part.data)} bytes as piece {part.piece} of {call.name}; "
                    f"{n_bytes} bytes of piece {number} are due"
                )
                self.end(reason)
                raise WireError(reason)

    def _result(self, piece: Piece, received: list[bytes], call: Call) -> bytes:
        if not piece.n_bytes:
            return b""
        if piece.source is not None:
            return received[0] if received else call.source.read(piece.read_at, piece.n_bytes).tobytes()
        own = call.source.read(piece.read_at, piece.n_bytes)
        rows = [own, *(np.frombuffer(data, np.uint8) for data in received)]
        result = np.empty(piece.n_bytes, np.uint8)
        _kernels.reduce(
            [_address(row) for row in rows],
            [_address(result)],
            piece.n_items,
            in_dtype=piece.dtype,
            out_dtype=piece.dtype,
            op=str(call.op),
            scale=1.0,
            stream_stores=False,
            instruction_set=None,
        )
        return result.tobytes()

    def _pass_on(self, piece: Piece, number: int, data: bytes, call: Call) -> None:
        """Send a result to the ranks that get it, and an empty part to the others: they may go on."""
        encoded: dict[bool, bytes] = {}
        for rank in self._leaves:
            is_for = piece.is_for(rank)
            if is_for not in encoded:
                part = Part(self._sequence, call.tag, number, data if is_for else b"")
                encoded[is_for] = encode(self._envelope, part)
            self._send(rank, encoded[is_for], len(data) if is_for else 0, call)

    def _send(self, rank: int, message: bytes, n_bytes: int, call: Call) -> None:
        try:
            self._boxes.send(rank, message, time.monotonic() + self.timeout_s)
        except TimeoutError:
            reason = f"{self._named(rank)} did not take its results of {call.name} for {self.timeout_s:g} s"
            self.end(reason)
            raise PeerLost(reason) from None
        self._count(rank, sent=n_bytes)

    def _too_late(self, missing: Sequence[int], name: str) -> str:
        named = ", ".join(self._named(rank) for rank in missing)
        return f"{name} has waited for {self.timeout_s:g} s; missing: {named}"

    def _count(self, rank: int, received: int = 0, sent: int = 0, waited_s: float = 0.0) -> None:
        so_far = self._metrics[rank]
        self._metrics[rank] = RankMetrics(
            so_far.received_bytes + received, so_far.sent_bytes + sent, so_far.waited_s + waited_s
        )


def _address(row: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    address: int = row.ctypes.data
    return address
