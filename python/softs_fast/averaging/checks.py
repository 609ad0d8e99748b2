"""When a rank can decide a check: once the others have reported the same one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from softs_fast.averaging.board import Board
from softs_fast.averaging.decide import Member
from softs_fast.averaging.reports import MAX_BEHIND, Report, is_awaited, next_check

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Moment:
    """A check that is not decided yet.

    Attributes:
        number: Number of the check.
        step: Step in which this rank reported it.
        own: This rank as it was then.
    """

    number: int
    step: int
    own: Member

    def seen(self, others: Sequence[Member]) -> tuple[Member, ...]:
        """Return all ranks as they were at this check; those that have not reported it have no metric."""
        return (self.own, *(other.at(self.number) for other in others))


class Checks:
    """The checks of one rank: it reports each, and decides one at a time.

    Args:
        board: Where it reports.
        max_wait_steps: Steps that it waits for the reports of others.
    """

    def __init__(self, board: Board, max_wait_steps: int) -> None:
        self._board = board
        self._max_wait_steps = max_wait_steps
        #: Number of the newest check.
        self.number = 0
        self._metric: float | None = None
        self._newest: Moment | None = None
        self._open: Moment | None = None

    @property
    def is_open(self) -> bool:
        """Whether a check waits for its decision."""
        return self._open is not None

    def report(self, step: int, own: Member, others: Sequence[Member]) -> None:
        """Report this rank to the others at its next check."""
        self.number = next_check(self.number, [one.reports for one in _peers(own, others)])
        # After a replacement the others still see the metric of the weights before, so that no other rank moves up.
        self._metric = self._metric if own.metric is None else own.metric
        self._board.report(Report(self.number, self._metric, own.trained))
        self._newest = Moment(self.number, step, own)
        if self._open is not None and self.number - self._open.number > MAX_BEHIND:
            # Others no longer show their reports of a check that long ago.
            silent = [one.rank for one in _peers(own, others) if not one.reports]
            logger.warning("check %d is left out: no report yet of ranks %s", self._open.number, silent)
            self._open = None

    def begin(self) -> bool:
        """Let the newest check wait for its decision unless an earlier one does; return whether one waits."""
        if self._open is None:
            self._open, self._newest = self._newest, None
        return self._open is not None

    def ready(self, step: int, others: Sequence[Member], *, has_metrics: bool) -> Moment | None:
        """Return the check that waits if it can be decided now, once.

        Args:
            step: Step of this rank.
            others: The other ranks, as known now.
            has_metrics: Whether the decision compares metrics; else nothing is waited for.
        """
        moment = self._open
        if moment is None:
            return None
        if has_metrics and any(
            is_awaited(one.reports, moment.number, self.number) for one in _peers(moment.own, others)
        ):
            has_time = self._board.is_fixed or step - moment.step < self._max_wait_steps
            if has_time:
                return None
        self._open = None
        return moment

    def drop(self) -> None:
        """Decide none of the checks so far."""
        self._open = self._newest = None


def _peers(own: Member, others: Sequence[Member]) -> list[Member]:
    """Return the ranks that live and have the same tensors."""
    return [one for one in others if one.alive and one.digest == own.digest]
