"""The board of ranks of one host: their windows in shared memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from softs_fast.averaging.board import Board, Donation, Refused
from softs_fast.averaging.decide import Member
from softs_fast.errors import ConfigError, NotFinite, SegmentError
from softs_fast.snapshots import Header, RemoteWindow, SnapshotLayout, Window, average
from softs_fast.snapshots import Member as Owner

logger = logging.getLogger(__name__)


class Membership(Protocol):
    """Which ranks there are; `snapshots.Members` is one."""

    def refresh(self) -> list[Owner]:
        """Return the others that are alive, with their windows."""

    def close(self) -> None:
        """Leave, and close the windows of the others; a second call does nothing."""


class WindowBoard(Board):
    """Ranks that read each other's windows.

    Args:
        rank: this rank's number; no other rank has it.
        join: makes this rank's window known to the others.
    """

    def __init__(self, rank: int, join: Callable[[Window], Membership]) -> None:
        self._rank = rank
        self._join = join
        self._window: Window | None = None
        self._members: Membership | None = None
        self._seen: dict[int, RemoteWindow] = {}
        self._scratch: torch.Tensor | None = None

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._rank

    def open(self, tensors: Mapping[str, torch.Tensor]) -> bytes:
        """Make a window, and make it known; return the digest of its layout.

        Raises:
            ConfigError: there is no place to meet, ranks are on other hosts, or a tensor cannot be in a snapshot.
            PeerLost: a rank did not take part.
            SegmentError: no shared memory.
        """
        self._window = Window(SnapshotLayout.of(tensors))
        try:
            self._members = self._join(self._window)
        except BaseException:
            self._window.close()
            raise
        self.members()
        return self._opened.layout.digest

    def members(self) -> Sequence[Member]:
        """Return the other ranks, as known now; those that have ended are not among them."""
        if self._members is None:
            return []
        self._seen = {}
        for member in self._members.refresh():
            if member.rank == self._rank:
                logger.warning(
                    "process %s is rank %d too; it is left out", member.window.address["pid"], self._rank
                )
            else:
                self._seen[member.rank] = member.window
        return [self._member(rank, window) for rank, window in self._seen.items()]

    def publish(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        step: int,
        metric: float | None,
        trained: int,
        config: Mapping[str, Any] | None,
    ) -> int:
        """Copy the tensors into the window; return the version.

        Raises:
            ConfigError: the tensors are not those of `open`, or the config is too long or not JSON.
        """
        return self._opened.publish(tensors, step=step, metric=metric, trained=trained, config=config)

    def ask(self, ranks: Iterable[int]) -> None:
        """Ask ranks for newer snapshots."""
        for rank in ranks:
            if rank in self._seen:
                self._opened.ask(self._seen[rank])

    def is_asked(self) -> bool:
        """Return whether another rank has asked for a newer snapshot than the last one."""
        return self._opened.is_asked(self._seen.values())

    def average(
        self, donors: Sequence[tuple[int, float]], into: Mapping[str, torch.Tensor]
    ) -> Sequence[Donation] | Refused:
        """Set the tensors to the weighted sum of the donors' snapshots, which are read where they are."""
        gone = next((rank for rank, _ in donors if rank not in self._seen), None)
        if gone is not None:
            return Refused(gone, "it has ended")
        layout = self._opened.layout
        if self._scratch is None:
            self._scratch = layout.scratch()
        windows = [self._seen[rank] for rank, _ in donors]
        try:
            headers = average(windows, [weight for _, weight in donors], into, layout, scratch=self._scratch)
        except NotFinite as error:
            return Refused(donors[error.donor][0] if error.donor >= 0 else None, str(error))
        except SegmentError as error:
            return Refused(self._broken(donors), str(error))
        if headers is None:
            return Refused(None, "a donor published twice during each of the attempts to read it")
        now_s = time.monotonic()
        return [
            _donation(rank, weight, header, now_s)
            for (rank, weight), header in zip(donors, headers, strict=True)
        ]

    def difference(self, rank: int) -> str:
        """Return in words how the tensors of another rank differ from this rank's."""
        try:
            return self._opened.layout.difference(self._seen[rank].layout, "here", f"on rank {rank}")
        except (SegmentError, KeyError) as error:
            return f"its window cannot be read: {error}"

    def close(self) -> None:
        """Leave, and close the window; a second call does nothing."""
        if self._members is not None:
            self._members.close()
        if self._window is not None:
            self._window.close()
        self._seen = {}

    @property
    def _opened(self) -> Window:
        if self._window is None:
            raise ConfigError("this board has no window yet; call open first")
        return self._window

    def _member(self, rank: int, window: RemoteWindow) -> Member:
        try:
            header = window.header()
        except SegmentError as error:
            logger.warning("rank %d is left out: %s", rank, error)
            return Member(rank, False, 0, 0, None, window.digest)
        return Member(rank, True, header.version, header.trained, header.metric, window.digest)

    def _broken(self, donors: Sequence[tuple[int, float]]) -> int | None:
        """Return the donor with a window that is malformed."""
        for rank, _ in donors:
            try:
                self._seen[rank].header()
            except SegmentError:
                return rank
        return None


def _donation(rank: int, weight: float, header: Header, now_s: float) -> Donation:
    return Donation(
        rank, weight, header.version, header.step, header.metric, now_s - header.published_s, header.config
    )
