"""The board of a fixed group of ranks: windows of those of its host, and copies of the versions of others."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch

from softs_fast.averaging.board import Donation, Refused
from softs_fast.averaging.decide import Member
from softs_fast.averaging.hosts.channel import Channel
from softs_fast.averaging.hosts.courier import Courier, Unavailable
from softs_fast.averaging.reports import Report
from softs_fast.averaging.window_board import WindowBoard, WindowFetch, read_windows
from softs_fast.errors import ConfigError, SegmentError, WireError
from softs_fast.records import Json, Record, most, shaped
from softs_fast.snapshots import Fetched, Header, RemoteWindow, SnapshotLayout, Window
from softs_fast.snapshots import Member as Owner

# Versions of other hosts that are in memory at once. With more donors their sum is made in parts.
MAX_MIRRORS = 4
# The number of the sum of the earlier parts, as that of a donor.
_SUM = -1

#: All-gathers a message of some hundred bytes.
Exchange = Callable[[bytes], list[bytes]]
#: Makes a channel to ranks of other hosts, under a name of this group alone. A call of all ranks.
Connect = Callable[[str, Sequence[int]], Channel]


_Address = Annotated[dict[Annotated[str, most(16)], int | Annotated[str, most(64)]], most(16)]


class Greeting(Record):
    """What the ranks of a group tell each other once.

    Attributes:
        host: Text that is equal for ranks that can open each other's windows.
        window: Address of the rank's window.
        line: Address of the window of its reports.
        digest: Digest of the layout of the rank's window, in hexadecimal digits.
        nonce: A random text.
    """

    host: Annotated[str, most(256)]
    window: _Address
    line: _Address
    digest: Annotated[str, most(64), shaped("[0-9a-f]{64}")]
    nonce: Annotated[str, most(64)]


_GREETING: Json[Greeting] = Json(Greeting, most_bytes=1024, what="greeting")


def exchange_greetings(window: Window, line: Window, host: str, exchange: Exchange) -> list[Greeting]:
    """Return what the ranks of a group say, by rank. A call of all of them.

    Raises:
        ConfigError: A rank does not say what it should.
    """
    digest, nonce = window.layout.digest.hex(), secrets.token_hex(8)
    own = Greeting(host=host, window=window.address, line=line.address, digest=digest, nonce=nonce)
    return [_parsed(rank, said) for rank, said in enumerate(exchange(_GREETING.encode(own)))]


def _parsed(rank: int, said: bytes) -> Greeting:
    try:
        return _GREETING.decode(said)
    except WireError as error:
        raise ConfigError(
            f"rank {rank} of the group says {said[:80]!r} ({error}); use the same softs_fast on all ranks"
        ) from error


class GatheredMembers:
    """The windows of ranks of this host that have told their addresses.

    Args:
        addresses: Addresses of the windows, by rank; without this rank.
    """

    def __init__(self, addresses: Mapping[int, Mapping[str, Any]]) -> None:
        self._members: list[Owner] = []
        self.unseen: dict[int, str] = {}
        for rank, address in addresses.items():
            try:
                self._members.append(Owner(rank, RemoteWindow.open(address)))
            except SegmentError as error:  # It has ended already, or this process may not open it.
                self.unseen[rank] = str(error)

    def refresh(self) -> list[Owner]:
        """Return the ranks that are alive."""
        return [member for member in self._members if member.window.is_alive()]

    def close(self) -> None:
        """Close the windows of the others."""
        for member in self._members:
            member.window.close()
        self._members = []


class GroupBoard(WindowBoard):
    """A fixed group of ranks, of one host or of several ones.

    Donors of this host are read where they are. Those of other hosts are asked for their newest version, which a thread
    of theirs sends; it is received into a window of this process, so that all donors are summed and checked alike.

    Args:
        rank: This rank's number in the group.
        host: Text that is equal for ranks that can open each other's windows.
        exchange: Function that all-gathers a message among the group.
        connect: Function that makes a channel to ranks of other hosts; called by all ranks if there are several
            hosts.
        poll_interval_s: Seconds from one look for messages of other hosts to the next.

    Raises:
        ConfigError: `poll_interval_s` is not above 0.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        exchange: Exchange,
        connect: Connect,
        poll_interval_s: float,
    ) -> None:
        if not poll_interval_s > 0:
            raise ConfigError(f"poll_interval_s is {poll_interval_s}; it is above 0")
        super().__init__(rank, self._gather)
        self._host = host
        self._exchange = exchange
        self._connect = connect
        self._poll_interval_s = poll_interval_s
        self._courier: Courier | None = None
        self._elsewhere: dict[int, bytes] = {}
        # By number; the last one is for sums.
        self._mirrors: dict[int, _Mirror] = {}

    def open(self, tensors: Mapping[str, torch.Tensor], as_is: Set[str] = frozenset()) -> bytes:
        """Make a window, and tell all ranks of the group; a call of all of them. Return the digest of its layout.

        Raises:
            ConfigError: a tensor cannot be in a snapshot; or there are several hosts, and the transport cannot serve a
                thread.
            PeerLost: a rank did not take part.
            SegmentError: no shared memory.
        """
        digest = super().open(tensors, as_is)
        # One of each kind of other layouts, for `difference`.
        kinds = {other: rank for rank, other in self._elsewhere.items() if other != digest}
        for rank in kinds.values():
            self._reader.submit(self._learn, rank)
        return digest

    @property
    def is_fixed(self) -> bool:
        """Whether no rank joins later."""
        return True

    def members(self) -> Sequence[Member]:
        """Return the other ranks, as known now; those that have ended, as far as that is known, are not among them."""
        here = super().members()
        return [*here, *self._courier.members()] if self._courier is not None else here

    def report(self, report: Report) -> None:
        """Show a report to the others."""
        super().report(report)
        if self._courier is not None:
            self._courier.report(report)

    def ask(self, ranks: Iterable[int]) -> None:
        """Ask ranks for newer snapshots."""
        asked = set(ranks)
        super().ask(asked)
        if self._courier is not None:
            self._courier.ask(asked & self._elsewhere.keys())

    def _is_wanted(self) -> bool:
        return super()._is_wanted() or (self._courier is not None and self._courier.is_asked())

    def fetch(self, donors: Sequence[tuple[int, float]]) -> None:
        """Begin to read the donors' snapshots in a thread; what was begun before is dropped.

        Raises:
            ForkedError: called in a fork of the process that made the window.
        """
        if self._courier is None or not any(rank in self._elsewhere for rank, _ in donors):
            super().fetch(donors)
            return
        windows = {rank: self._seen[rank] for rank, _ in donors if rank in self._seen}
        gone = next((rank for rank, _ in donors if rank not in windows.keys() | self._elsewhere), None)
        if gone is not None:
            self._refuse(Refused(gone, "it has ended"))
            return
        self._begin(partial(self._read, self._courier, list(donors), windows))

    def difference(self, rank: int) -> str:
        """Return in words how the tensors of another rank differ from this rank's."""
        if self._courier is not None and rank in self._elsewhere:
            return self._courier.difference(rank)
        return super().difference(rank)

    def close(self) -> None:
        """Leave, and end all threads, within a bounded time; a second call does nothing."""
        if self._courier is not None:
            self._courier.close()
            self._courier = None
        super().close()
        for mirror in self._mirrors.values():
            mirror.close()
        self._mirrors = {}

    def _gather(self, window: Window, line: Window) -> tuple[GatheredMembers, GatheredMembers]:
        greetings = exchange_greetings(window, line, self._host, self._exchange)
        here = {
            rank: one for rank, one in enumerate(greetings) if rank != self.rank and one.host == self._host
        }
        self._elsewhere = {
            rank: bytes.fromhex(one.digest) for rank, one in enumerate(greetings) if one.host != self._host
        }
        if self._elsewhere:
            channel = self._connect(greetings[0].nonce, list(self._elsewhere))
            self._courier = Courier(
                self.rank, self._elsewhere, window, channel, self._poll_interval_s, as_is=self._as_is
            )
        return (
            GatheredMembers({rank: one.window for rank, one in here.items()}),
            GatheredMembers({rank: one.line for rank, one in here.items()}),
        )

    def _learn(self, rank: int) -> None:
        """Get the layout of a rank that has another one."""
        if self._courier is not None:
            with suppress(Unavailable):
                self._courier.read_manifest(rank)

    def _read(
        self,
        courier: Courier,
        donors: Sequence[tuple[int, float]],
        windows: Mapping[int, RemoteWindow],
        layout: SnapshotLayout,
        scratch: torch.Tensor,
    ) -> WindowFetch | Refused:
        """Read the donors part by part; donors of other hosts are first received into mirrors."""
        donations: list[Donation] = []
        total: Fetched | None = None
        for part in in_parts(donors, self._elsewhere, MAX_MIRRORS):
            received: dict[int, Header] = {}
            sources = []
            try:
                if total is not None:
                    mirror = self._mirror(MAX_MIRRORS, layout)
                    mirror.keep(total.memory)
                    sources.append(mirror.seen)
                for rank, _ in part:
                    if rank in self._elsewhere:
                        mirror = self._mirror(len(received), layout)
                        received[rank] = courier.read(rank, mirror.window)
                        sources.append(mirror.seen)
                    else:
                        sources.append(windows[rank])
            except Unavailable as error:
                return Refused(error.rank, str(error))
            except SegmentError as error:
                return Refused(None, f"no memory for versions of other hosts: {error}")
            before = [] if total is None else [(_SUM, 1.0)]
            read = read_windows([*before, *part], sources, layout, scratch, as_is=self._as_is)
            if isinstance(read, Refused):
                return read
            total = read.fetched
            now_s = time.monotonic()
            for one in read.donations:
                header = received.get(one.rank)
                if header is not None:
                    one = replace(one, version=header.version, age_s=now_s - header.published_s)
                if one.rank != _SUM:
                    donations.append(one)
        assert total is not None  # there is a donor at least
        return WindowFetch(donations, total)

    def _mirror(self, number: int, layout: SnapshotLayout) -> _Mirror:
        if number not in self._mirrors:
            self._mirrors[number] = _Mirror(layout)
        return self._mirrors[number]


def in_parts(
    donors: Sequence[tuple[int, float]], elsewhere: Iterable[int], size: int
) -> Iterator[list[tuple[int, float]]]:
    """Yield donors in order, in parts with at most so many of other hosts."""
    part: list[tuple[int, float]] = []
    n_elsewhere = 0
    for donor in donors:
        if donor[0] in elsewhere:
            if n_elsewhere == size:
                yield part
                part, n_elsewhere = [], 0
            n_elsewhere += 1
        part.append(donor)
    yield part


class _Mirror:
    """A window of this process that it reads itself."""

    def __init__(self, layout: SnapshotLayout) -> None:
        self.window = Window(layout)
        self.seen = RemoteWindow.open(self.window.address)

    def keep(self, snapshot: torch.Tensor) -> None:
        """Publish the bytes of a whole snapshot."""
        self.window.begin()
        self.window.write_bytes(snapshot, 0)
        self.window.commit(step=0, metric=None, trained=0)

    def close(self) -> None:
        self.seen.close()
        self.window.close()
