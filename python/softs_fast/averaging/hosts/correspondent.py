"""What a rank says to ranks of other hosts, and what it knows of them: decisions alone, without clock or transport.

Each rank looks at each other one: a `Look` is answered by one `Seen`, at once if there is a newer version or report, else after
`BEAT_S` as a sign of life. So there are never more than a few messages on their way between two ranks, even if one of
them is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from softs_fast.averaging.hosts.messages import (
    Ask,
    Leave,
    Look,
    Message,
    Offer,
    Refuse,
    Seen,
    SentHeader,
    Want,
)
from softs_fast.averaging.reports import Report, last_check
from softs_fast.snapshots import Header

# A header that is looked at is sent after so long at the latest, seconds.
BEAT_S = 1.0
# A rank that has said nothing for so long is taken for dead until it says something, seconds.
SILENT_S = 6.0
# A rank waits so long for the answer to a `Want`; one that is older is not answered any more.
WANTED_S = 30.0
# After so many transfers in a row that failed, a rank is given up for good.
MAX_FAILURES = 3
# Transfers that a rank serves at once; each has a copy of the model.
MAX_SERVED = 2

NOTHING_YET = Header(0, 0, None, 0, 0.0, None)

# Receiver and message.
Letter = tuple[int, Message]


@dataclass
class _Peer:
    header: Header = NOTHING_YET
    reports: tuple[Report, ...] = ()
    heard_s: float = -math.inf
    has_left: bool = False
    # What it looks for: the news that it has, and since when. None: it has its answer.
    looks: tuple[Look, float] | None = None
    # The version that it has asked to be followed by a newer one.
    asked: int = -1
    # What it wants, and since when.
    want: tuple[Want, float] | None = None
    is_served: bool = False
    n_failures: int = 0


class Correspondent:
    """What one rank says and knows.

    Args:
        others: ranks of other hosts.
        now_s: a time.
    """

    def __init__(self, others: Iterable[int], now_s: float) -> None:
        self._peers = {rank: _Peer(heard_s=now_s) for rank in others}

    def greet(self) -> list[Letter]:
        """Return the first messages."""
        return [(rank, Look(0, 0)) for rank in self._peers]

    def hear(self, rank: int, message: Message, now_s: float) -> list[Letter]:
        """Take note of a message; return the answers that it gets at once. `Offer` and `Refuse` are of no concern here."""
        peer = self._peers[rank]
        peer.heard_s = now_s
        match message:
            case Look():
                peer.looks = (message, now_s)
            case Seen(header, reports):
                # Neither a version nor a check goes back; messages may overtake each other.
                if header.version >= peer.header.version:
                    peer.header = header.at(now_s)
                if last_check(reports) >= last_check(peer.reports):
                    peer.reports = reports
                return [(rank, Look(peer.header.version, last_check(peer.reports)))]
            case Ask(seen):
                peer.asked = max(peer.asked, seen)
            case Want():
                # What it had wanted before it does not wait for any more.
                peer.want = (message, now_s)
            case Leave():
                peer.has_left = True
                peer.want = None
            case Offer() | Refuse():
                pass
        return []

    def tell(self, own: Header, reports: tuple[Report, ...], now_s: float) -> list[Letter]:
        """Return the answers to looks that are due, with this rank's header and reports."""
        told: list[Letter] = []
        for rank, peer in self._peers.items():
            if peer.looks is not None and not peer.has_left:
                look, since_s = peer.looks
                has_news = own.version > look.seen or last_check(reports) > look.check
                if has_news or now_s - since_s >= BEAT_S:
                    peer.looks = None
                    told.append((rank, Seen(SentHeader.of(own, now_s), reports)))
        return told

    def next_to_serve(self, now_s: float) -> tuple[int, Want] | None:
        """Return a rank that is to be sent what it wants, now; it counts until `served`."""
        if sum(peer.is_served for peer in self._peers.values()) >= MAX_SERVED:
            return None
        for rank, peer in list(self._peers.items()):
            if peer.want is None or peer.is_served:
                continue
            (want, since_s), peer.want = peer.want, None
            if now_s - since_s < WANTED_S:
                peer.is_served = True
                # The others come first the next time.
                self._peers[rank] = self._peers.pop(rank)
                return rank, want
        return None

    def served(self, rank: int) -> None:
        """Note that a transfer to a rank has ended, whatever came of it."""
        self._peers[rank].is_served = False

    def is_asked(self, version: int) -> bool:
        """Return whether a newer version than this one is wanted."""
        return any(peer.asked == version for peer in self._peers.values())

    def header(self, rank: int) -> Header:
        """Return what a rank has said of its newest version."""
        return self._peers[rank].header

    def reports(self, rank: int) -> tuple[Report, ...]:
        """Return what a rank has reported at its last checks."""
        return self._peers[rank].reports

    def is_alive(self, rank: int, now_s: float) -> bool:
        """Return whether a rank is there: it has not left, and a message of it has arrived a short while ago."""
        peer = self._peers[rank]
        return not peer.has_left and now_s - peer.heard_s <= SILENT_S

    def has_left(self, rank: int) -> bool:
        """Return whether a rank has left for good."""
        return self._peers[rank].has_left

    def received(self, rank: int) -> None:
        """Note that a transfer from a rank was complete."""
        self._peers[rank].n_failures = 0

    def failed(self, rank: int) -> None:
        """Note that a transfer from a rank failed: it counts as dead until its next message, or for good."""
        peer = self._peers[rank]
        peer.heard_s = -math.inf
        peer.n_failures += 1
        if peer.n_failures == MAX_FAILURES:
            self.give_up(rank)

    def give_up(self, rank: int) -> None:
        """Take a rank for dead for good: there is no way to it any more."""
        peer = self._peers[rank]
        peer.has_left, peer.want = True, None

    def ranks(self) -> list[int]:
        """Return the ranks of other hosts, in order."""
        return sorted(self._peers)

    def farewell(self) -> list[Letter]:
        """Return the last messages."""
        return [(rank, Leave()) for rank, peer in self._peers.items() if not peer.has_left]
