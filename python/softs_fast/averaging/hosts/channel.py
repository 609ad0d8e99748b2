"""What ranks of several hosts need of a transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from softs_fast.errors import PeerLost

#: Of what a stream sends at once.
PIECE_BYTES = 1 << 20


class Stream(Protocol):
    """One transfer, from one rank to another one. Calls wait for the other end, for a bounded time."""

    def send(self, memory: Tensor) -> None:
        """Send all bytes of memory, uint8 [n].

        Raises:
            PeerLost: the other end has gone, has stopped for too long, or this end closes.
        """

    def receive(self, n_bytes: int, take: Callable[[int, Tensor], None]) -> None:
        """Receive so many bytes; each piece is passed on with its offset, and is valid during that call.

        Raises:
            PeerLost: as for `send`.
        """

    def close(self) -> None:
        """Free what it has."""


class Channel(Protocol):
    """Messages of at most MAX_MESSAGE_BYTES and streams between ranks."""

    def send(self, rank: int, said: bytes) -> None:
        """Send a message; waits for no rank. For the thread of the courier.

        Raises:
            PeerLost: there is no way to it.
        """

    def receive(self) -> Sequence[tuple[int, bytes | PeerLost]]:
        """Return the messages that have come, and ranks to which there is no way any more. For that thread too.

        Raises:
            PeerLost: there is no way to any rank.
        """

    def stream(self, donor: int, reader: int, transfer: int) -> Stream:
        """Return a stream, of which the other rank makes the other end; may wait for that as its calls do.

        Raises:
            PeerLost: the other rank does not.
        """

    def close(self) -> None:
        """End calls of streams in other threads soon, and free what can be freed; waits for a bounded time."""


def pieces(memory: Tensor) -> Iterator[Tensor]:
    """Yield memory in pieces that a stream sends at once."""
    for at in range(0, len(memory), PIECE_BYTES):
        yield memory[at : at + PIECE_BYTES]
