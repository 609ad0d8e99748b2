"""The board of ranks of one host: their windows in shared memory."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from softs_fast.averaging.board import Board, Donation, Refused
from softs_fast.averaging.decide import Member
from softs_fast.averaging.report_line import ReportLine, read_reports
from softs_fast.averaging.reports import Report
from softs_fast.errors import ConfigError, NotFinite, SegmentError
from softs_fast.process import check_process
from softs_fast.snapshots import Fetched, Header, Publisher, RemoteWindow, SnapshotLayout, Window, fetch
from softs_fast.snapshots import Member as Owner

logger = logging.getLogger(__name__)


class Membership(Protocol):
    """Which ranks there are; `snapshots.Members` is one, of one kind of windows."""

    @property
    def unseen(self) -> Mapping[int, str]:
        """Why windows of others that may be alive cannot be opened, by rank."""

    def refresh(self) -> list[Owner]:
        """Return the others that are alive, with their windows."""

    def close(self) -> None:
        """Leave, and close the windows of the others; a second call does nothing."""


class WindowBoard(Board):
    """Ranks that read each other's windows.

    Args:
        rank: this rank's number; no other rank has it.
        join: makes this rank's windows known to the others: that of its weights, and that of its reports.
    """

    def __init__(self, rank: int, join: Callable[[Window, Window], tuple[Membership, Membership]]) -> None:
        self._rank = rank
        self._join = join
        self._window: Window | None = None
        self._line: ReportLine | None = None
        self._members: Membership | None = None
        self._reporters: Membership | None = None
        self._seen: dict[int, RemoteWindow] = {}
        self._version = 0
        self._optimizer: Optimizer | None = None
        self._late_names: Set[str] = frozenset()
        self._publisher: Publisher | None = None
        # What is published: in steps of the optimizer alone changes the first, at any time the second.
        self._late: Mapping[str, torch.Tensor] = {}
        self._early: Mapping[str, torch.Tensor] = {}
        self._as_is: Set[str] = frozenset()
        self._pid = os.getpid()
        # It starts with the first fetch, blocks in between, and ends with the board, or when the interpreter exits.
        self._reader = ThreadPoolExecutor(1, "softs-fetch")
        self._reading: Future[WindowFetch | Refused] | None = None
        self._scratch: torch.Tensor | None = None

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._rank

    def open(self, tensors: Mapping[str, torch.Tensor], as_is: Set[str] = frozenset()) -> bytes:
        """Make windows, and make them known; return the digest of the layout.

        Raises:
            ConfigError: there is no place to meet, or a tensor cannot be in a snapshot.
            PeerLost: a rank did not take part.
            SegmentError: no shared memory.
        """
        self._as_is = as_is
        with ExitStack() as undo:
            self._window = undo.enter_context(Window(SnapshotLayout.of(tensors)))
            self._line = ReportLine()
            undo.callback(self._line.close)
            self._members, self._reporters = self._join(self._window, self._line.window)
            undo.pop_all()
        self.members()
        return self._opened.layout.digest

    def members(self) -> Sequence[Member]:
        """Return the other ranks, as known now; those that have ended are not among them."""
        if self._members is None or self._reporters is None:
            return []
        self._seen = {}
        for member in self._members.refresh():
            if member.rank == self._rank:
                logger.warning(
                    "process %s is rank %d too; it is left out", member.window.address["pid"], self._rank
                )
            else:
                self._seen[member.rank] = member.window
        lines = {_process(one.rank, one.window): one.window for one in self._reporters.refresh()}
        return [
            self._member(rank, window, lines.get(_process(rank, window)))
            for rank, window in self._seen.items()
        ]

    def unseen(self) -> Mapping[int, str]:
        """Return why ranks that may be alive cannot be read here, by rank."""
        return {} if self._members is None else self._members.unseen

    def report(self, report: Report) -> None:
        """Show a report to the others.

        Raises:
            ConfigError: The board is not open.
        """
        if self._line is None:
            raise ConfigError("this board has no window yet; call open first")
        self._line.add(report)

    def publish(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        step: int,
        metric: float | None,
        trained: int,
        config: Mapping[str, Any] | None,
    ) -> int:
        """Copy the tensors into the window, those that `follow` has named in a thread.

        Returns:
            The version. That of the one before if tensors are copied in a thread, and one is still copied, or was less
            than twice the time of its copy ago.

        Raises:
            ConfigError: the tensors are not those of `open`, or the config is too long or not JSON.
            RuntimeError: CUDA failed.
        """
        window = self._opened
        if self._optimizer is None:
            self._version = window.publish(tensors, step=step, metric=metric, trained=trained, config=config)
        elif self._publisher_of(tensors, self._optimizer).begin(
            step=step, metric=metric, trained=trained, config=config
        ):
            self._version += 1
        return self._version

    def follow(self, optimizer: Optimizer | None, late: Collection[str]) -> None:
        """Publish tensors beside the training from now on, and have each step of the optimizer wait for their copy."""
        self._stop_publishing()
        self._optimizer, self._late_names = optimizer, frozenset(late)

    def settle(self) -> None:
        """Wait for the copy that runs.

        Raises:
            RuntimeError: CUDA failed.
        """
        if self._publisher is not None:
            self._publisher.wait()

    def inspected(self) -> tuple[int, bool] | None:
        """Return a version that was copied by the thread, and whether its parameters are finite."""
        return None if self._publisher is None else self._publisher.inspected()

    def ask(self, ranks: Iterable[int]) -> None:
        """Ask ranks for newer snapshots."""
        for rank in ranks:
            if rank in self._seen:
                self._opened.ask(self._seen[rank])

    def is_asked(self) -> bool:
        """Return whether another rank has asked for a newer snapshot than the last one, or the one that is copied."""
        if self._publisher is not None and self._publisher.is_busy():
            return False
        return self._is_wanted()

    def fetch(self, donors: Sequence[tuple[int, float]]) -> None:
        """Begin to read the donors' snapshots where they are, in a thread; what was begun before is dropped.

        Raises:
            ForkedError: called in a fork of the process that made the window.
        """
        gone = next((rank for rank, _ in donors if rank not in self._seen), None)
        if gone is not None:
            self._refuse(Refused(gone, "it has ended"))
            return
        windows = [self._seen[rank] for rank, _ in donors]
        self._begin(partial(read_windows, list(donors), windows, as_is=self._as_is))

    def fetched(self) -> WindowFetch | Refused | None:
        """Return what `fetch` has brought, until the next one; None while it is under way.

        Raises:
            ConfigError: a donor has other tensors, or a weight is none.
        """
        return self._reading.result() if self._reading is not None and self._reading.done() else None

    def difference(self, rank: int) -> str:
        """Return in words how the tensors of another rank differ from this rank's."""
        try:
            return self._opened.layout.difference(self._seen[rank].layout, "here", f"on rank {rank}")
        except (SegmentError, KeyError) as error:
            return f"its window cannot be read: {error}"

    def close(self) -> None:
        """Leave, end the thread, and close the window; a second call does nothing."""
        if os.getpid() == self._pid:  # a fork has no such thread
            self._reader.shutdown(cancel_futures=True)
        self._reading = None
        self._stop_publishing()
        for membership in (self._members, self._reporters):
            if membership is not None:
                membership.close()
        for window in (self._window, self._line):
            if window is not None:
                window.close()
        self._seen = {}

    def _is_wanted(self) -> bool:
        """Return whether another rank wants a newer snapshot than the last one."""
        return self._opened.is_asked(self._seen.values())

    def _begin(self, read: Callable[[SnapshotLayout, torch.Tensor], WindowFetch | Refused]) -> None:
        """Begin to read in the thread, into the memory that it is called with; what was begun before is dropped."""
        layout = self._opened.layout
        self._drop()
        if self._scratch is None:
            self._scratch = layout.scratch()
        # One at a time, so that a sum that was dropped is complete before the next one takes its memory.
        self._reading = self._reader.submit(read, layout, self._scratch)

    def _refuse(self, refused: Refused) -> None:
        """Have nothing to read; what was begun before is dropped."""
        self._drop()
        self._reading = Future()
        self._reading.set_result(refused)

    def _drop(self) -> None:
        check_process(self._pid, "this board")
        if self._reading is not None:
            self._reading.cancel()

    @property
    def _opened(self) -> Window:
        if self._window is None:
            raise ConfigError("this board has no window yet; call open first")
        return self._window

    def _publisher_of(self, tensors: Mapping[str, torch.Tensor], optimizer: Optimizer) -> Publisher:
        """Return the publisher, which publishes these tensors next."""
        self._late = {name: tensor for name, tensor in tensors.items() if name in self._late_names}
        self._early = {name: tensor for name, tensor in tensors.items() if name not in self._late_names}
        if self._publisher is None:
            self._publisher = Publisher(
                self._opened, lambda: self._late, lambda: self._early, optimizer, inspect=True
            )
        return self._publisher

    def _stop_publishing(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _member(self, rank: int, window: RemoteWindow, line: RemoteWindow | None) -> Member:
        try:
            header = window.header()
            reports = () if line is None else read_reports(line)
        except SegmentError as error:
            logger.warning("rank %d is left out: %s", rank, error)
            return Member(rank, False, 0, 0, None, window.digest)
        return Member(rank, True, header.version, header.trained, header.metric, window.digest, reports)


def _process(rank: int, window: RemoteWindow) -> tuple[int, object, object]:
    """Return the rank and the process of a window: a rank that starts anew has other reports."""
    return rank, window.address["pid"], window.address["started"]


@dataclass(frozen=True)
class WindowFetch:
    """A weighted sum of snapshots in the memory of the board."""

    donations: Sequence[Donation]
    fetched: Fetched

    def apply(self, into: Mapping[str, torch.Tensor]) -> None:
        """Copy the sum into tensors, all or some.

        Raises:
            ConfigError: they are not those of `WindowBoard.open`; none has changed.
        """
        if len(into) == len(self.fetched.layout.by_name):
            self.fetched.apply(into)
        else:
            self.fetched.apply_part(into)


def read_windows(
    donors: Sequence[tuple[int, float]],
    windows: Sequence[RemoteWindow],
    layout: SnapshotLayout,
    scratch: torch.Tensor,
    *,
    as_is: Set[str] = frozenset(),
) -> WindowFetch | Refused:
    """Return the weighted sum of the snapshots of donors.

    Args:
        donors: Rank and weight of each donor.
        windows: Window of each donor.
        layout: Layout of the tensors.
        scratch: Memory for the sum.
        as_is: Names of tensors that may have any values.

    Raises:
        ConfigError: a donor has other tensors, or a weight is none.
    """
    try:
        fetched = fetch(windows, [weight for _, weight in donors], layout, scratch=scratch, as_is=as_is)
    except NotFinite as error:
        return Refused(donors[error.donor][0] if error.donor >= 0 else None, str(error))
    except (SegmentError, ConfigError) as error:
        broken = _broken(donors, windows)
        if broken is None and isinstance(error, ConfigError):
            raise
        return Refused(broken, str(error))
    if fetched is None:
        return Refused(None, "a donor published twice during each of the attempts to read it")
    now_s = time.monotonic()
    return WindowFetch(
        [
            _donation(rank, weight, header, now_s)
            for (rank, weight), header in zip(donors, fetched.headers, strict=True)
        ],
        fetched,
    )


def _broken(donors: Sequence[tuple[int, float]], windows: Sequence[RemoteWindow]) -> int | None:
    """Return the donor with a window that is malformed, or was closed when its process ended."""
    for (rank, _), window in zip(donors, windows, strict=True):
        try:
            window.header()
        except (SegmentError, ConfigError):
            return rank
    return None


def _donation(rank: int, weight: float, header: Header, now_s: float) -> Donation:
    return Donation(
        rank, weight, header.version, header.step, header.metric, now_s - header.published_s, header.config
    )
