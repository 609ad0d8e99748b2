"""Messages and streams over a communicator of mpi4py: no call blocks, so a rank that stops or dies holds up no thread.

A one-sided `Get` would need the donor inside of MPI, which promises no progress without that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from softs_fast.averaging.hosts.channel import PIECE_BYTES, Channel, Stream, pieces
from softs_fast.averaging.hosts.correspondent import SILENT_S
from softs_fast.averaging.hosts.messages import MAX_MESSAGE_BYTES
from softs_fast.averaging.mpi import load_mpi
from softs_fast.errors import ConfigError, PeerLost

_MESSAGE_TAG = 0
# The standard promises tags up to 32767. Tags of transfers come again; their seals do not.
_N_STREAM_TAGS = 32_767
# Messages to one rank that MPI has not taken yet.
_MAX_UNSENT = 64
_PIECES_AT_ONCE = 4
# From one test of a request to the next one.
_TEST_INTERVAL_S = 0.0005
# How long `close` waits for messages that were sent last.
_CLOSE_S = 1.0

# Requests to ranks that have gone, with their memory: MPI may write to it or read it at any time.
_abandoned: list[tuple[Any, Any]] = []


class MpiChannel(Channel):
    """Messages and streams between the ranks of a communicator.

    Args:
        communicator: Communicator of mpi4py, of this channel alone; it is not freed, as that is a call of all ranks.
        others: The ranks that it exchanges messages with.

    Raises:
        ImportError: there is no MPI.
    """

    def __init__(self, communicator: Any, others: Iterable[int]) -> None:
        self.mpi = load_mpi()
        self.communicator = communicator
        self.is_closing = False
        self._unsent: dict[int, deque[tuple[Any, bytes]]] = {rank: deque() for rank in others}
        self._expected = {rank: self._expect(rank) for rank in self._unsent}

    def send(self, rank: int, said: bytes) -> None:
        """Begin to send a message."""
        unsent = self._unsent[rank]
        try:
            while unsent and unsent[0][0].Test():
                unsent.popleft()
            if len(unsent) >= _MAX_UNSENT:
                raise PeerLost(f"MPI has not taken {len(unsent)} messages to rank {rank}")
            unsent.append((self.communicator.Isend([said, self.mpi.BYTE], rank, _MESSAGE_TAG), said))
        except self.mpi.Exception as error:
            raise PeerLost(f"MPI cannot send to rank {rank}: {error}") from error

    def receive(self) -> Sequence[tuple[int, bytes | PeerLost]]:
        """Return the messages that have come."""
        found: list[tuple[int, bytes | PeerLost]] = []
        status = self.mpi.Status()
        for rank, (request, buffer) in list(self._expected.items()):
            try:
                while request.Test(status):
                    found.append((rank, bytes(buffer[: status.Get_count(self.mpi.BYTE)])))
                    request, buffer = self._expected[rank] = self._expect(rank)
            except self.mpi.Exception as error:
                _abandoned.append(self._expected.pop(rank))
                found.append((rank, PeerLost(f"MPI cannot receive from rank {rank}: {error}")))
        return found

    def stream(self, donor: int, reader: int, transfer: int) -> Stream:
        """Return a stream; there is no connection to be made."""
        is_reader = self.communicator.Get_rank() == reader
        return _MpiStream(self, donor if is_reader else reader, 1 + transfer % _N_STREAM_TAGS, is_reader)

    def close(self) -> None:
        """Wait a short while for the last messages; end streams, and receive no more."""
        self.is_closing = True
        give_up_s = time.monotonic() + _CLOSE_S
        for unsent in self._unsent.values():
            for request, said in unsent:
                if not _is_done(request, give_up_s):
                    _abandoned.append((request, said))
            unsent.clear()
        for request, buffer in self._expected.values():
            _cancel(request, buffer, self.mpi, give_up_s)
        self._expected.clear()

    def _expect(self, rank: int) -> tuple[Any, bytearray]:
        buffer = bytearray(MAX_MESSAGE_BYTES)
        return self.communicator.Irecv([buffer, self.mpi.BYTE], rank, _MESSAGE_TAG), buffer


def require_threads(mpi: Any) -> None:
    """Check that threads may call MPI at the same time.

    Raises:
        ConfigError: they may not.
    """
    levels = {
        mpi.THREAD_SINGLE: "SINGLE",
        mpi.THREAD_FUNNELED: "FUNNELED",
        mpi.THREAD_SERIALIZED: "SERIALIZED",
    }
    level = mpi.Query_thread()
    if level in levels:
        raise ConfigError(
            f"MPI was initialized with THREAD_{levels[level]}; ranks of several hosts need THREAD_MULTIPLE, as mpi4py "
            'asks for by default: leave out mpi4py.rc.thread_level, or set it to "multiple", before mpi4py.MPI is '
            "imported"
        )


class _MpiStream(Stream):
    def __init__(self, channel: MpiChannel, other: int, tag: int, is_reader: bool) -> None:
        self._channel = channel
        self._mpi = channel.mpi
        self._other = other
        self._tag = tag
        self._is_reader = is_reader
        # Requests that were begun, with their memory, in order.
        self._begun: deque[tuple[Any, Tensor]] = deque()

    def send(self, memory: Tensor) -> None:
        """Send memory piece by piece, some at once."""
        for piece in pieces(memory):
            if len(self._begun) == _PIECES_AT_ONCE:
                self._finish_first()
            self._begin(self._channel.communicator.Isend, piece)
        while self._begun:
            self._finish_first()

    def receive(self, n_bytes: int, take: Callable[[int, Tensor], None]) -> None:
        """Receive piece by piece, some at once, in turns into the same memory."""
        buffers = deque(
            torch.empty(min(n_bytes, PIECE_BYTES), dtype=torch.uint8, device="cpu")
            for _ in range(_PIECES_AT_ONCE)
        )
        starts = deque(range(0, n_bytes, PIECE_BYTES))
        at = 0
        while starts or self._begun:
            while starts and buffers:
                n_piece = min(PIECE_BYTES, n_bytes - starts.popleft())
                self._begin(self._channel.communicator.Irecv, buffers.popleft()[:n_piece])
            piece = self._finish_first(must_fill=True)
            take(at, piece)
            at += len(piece)
            if starts:
                buffers.append(piece)

    def close(self) -> None:
        """Leave what was begun and has not ended; a message that was sent cannot be cancelled."""
        for request, memory in self._begun:
            if self._is_reader:
                _cancel(request, memory, self._mpi, time.monotonic())
            else:
                _abandoned.append((request, memory))
        self._begun.clear()

    def _begin(self, call: Callable[..., Any], piece: Tensor) -> None:
        try:
            request = call([piece.numpy(), self._mpi.BYTE], self._other, self._tag)
        except self._mpi.Exception as error:
            raise PeerLost(f"MPI cannot reach rank {self._other}: {error}") from error
        self._begun.append((request, piece))

    def _finish_first(self, *, must_fill: bool = False) -> Tensor:
        """Wait for the end of the first request; return its memory."""
        request, piece = self._begun[0]
        status = self._mpi.Status()
        try:
            if not _is_done(request, time.monotonic() + SILENT_S, status, lambda: self._channel.is_closing):
                raise PeerLost(f"rank {self._other} has not moved for {SILENT_S:g} s, or this rank leaves")
        except self._mpi.Exception as error:
            raise PeerLost(f"the transfer with rank {self._other} failed: {error}") from error
        self._begun.popleft()
        if must_fill and status.Get_count(self._mpi.BYTE) != len(piece):
            raise PeerLost(f"rank {self._other} has sent a piece of another size than it offered")
        return piece


def _is_done(
    request: Any,
    give_up_s: float,
    status: Any = None,
    is_closing: Callable[[], bool] = lambda: False,
) -> bool:
    """Return whether a request has come to its end before a time."""
    while not request.Test(status):
        if time.monotonic() > give_up_s or is_closing():
            return False
        time.sleep(_TEST_INTERVAL_S)
    return True


def _cancel(request: Any, memory: Any, mpi: Any, give_up_s: float) -> None:
    """Cancel a request; its memory is kept if MPI may still use it."""
    with suppress(mpi.Exception):
        request.Cancel()
        if _is_done(request, give_up_s):
            return
    _abandoned.append((request, memory))
