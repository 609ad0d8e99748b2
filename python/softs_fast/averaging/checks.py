"""What a rank knows of the others at its checks, and when it can decide one: once the others have reported the same."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from softs_fast.averaging.board import Board, Refused
from softs_fast.averaging.decide import Decision, Member, Rules
from softs_fast.averaging.lineage import Check
from softs_fast.averaging.reports import MAX_BEHIND, Report, is_awaited, next_check
from softs_fast.averaging.schedule import Schedule

logger = logging.getLogger(__name__)


# Others may be about to start while notes of earlier ones are still there.
_ALONE_CHECKS = 10


@dataclass(frozen=True)
class _Moment:
    """A check that is not decided yet.

    Attributes:
        number: Number of the check.
        step: Step in which this rank reported it.
        own: This rank as it was then.
    """

    number: int
    step: int
    own: Member


@dataclass
class Pending:
    """A decision to replace, until it is applied.

    Attributes:
        check: Check that was decided.
        decision: Decision to replace, with the donors that are asked and then fetched.
        since: Step of the decision.
        versions: Versions of the donors' snapshots when they were asked, by rank.
        is_fetching: whether a fetch is under way.
        buffers: Buffers of the best donor; None until they are fetched, if they are wanted.
    """

    check: Check
    decision: Decision
    since: int
    versions: dict[int, int]
    is_fetching: bool = False
    buffers: dict[str, torch.Tensor] | None = None


class Checks:
    """The checks of one rank: it reports each, and decides one at a time.

    Args:
        board: Where it reports, and sees the others.
        rules: When ranks are replaced.
        schedule: How long it waits for the reports of others.
    """

    def __init__(self, board: Board, rules: Rules, schedule: Schedule) -> None:
        self._board = board
        self._rules = rules
        self._schedule = schedule
        #: Number of the newest check.
        self.number = 0
        self._metric: float | None = None
        self._newest: _Moment | None = None
        self._open: _Moment | None = None
        self._others: Sequence[Member] = ()
        self._has_peers = False
        # How their tensors differ, by rank.
        self._differing: dict[int, str] = {}
        # Versions of snapshots that were refused.
        self._refused: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether a check waits for its decision."""
        return self._open is not None or self._newest is not None

    def look(self, digest: bytes) -> int:
        """Look at the other ranks; return how many live, this one too."""
        self._others = self._board.members()
        for member in self._others:
            if member.version and member.digest != digest and member.rank not in self._differing:
                text = self._differing[member.rank] = self._board.difference(member.rank)
                logger.warning("rank %d takes no part in averages: %s", member.rank, text)
            self._has_peers |= member.digest == digest
        return 1 + sum(member.alive for member in self._others)

    @property
    def strangers(self) -> dict[int, str]:
        """Why ranks take no part, by rank: they have other tensors, or cannot be read here."""
        return {**self._differing, **self._board.unseen()}

    def why_alone(self) -> str:
        """Return why no other rank can be averaged with, if that is so for long; else ""."""
        strangers = self.strangers
        if self._has_peers or not strangers or self.number < _ALONE_CHECKS:
            return ""
        reasons = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(strangers.items()))
        return (
            f"rank {self._board.rank} averages with no other rank: at none of {self.number} checks could one take part "
            f"({reasons}); give all ranks the same names, shapes and dtypes and one pid namespace, or meet where no "
            "earlier run has met"
        )

    def versions(self, ranks: Collection[int]) -> dict[int, int]:
        """Return the newest version of each of some ranks when it was looked at."""
        return {member.rank: member.version for member in self._others if member.rank in ranks}

    def report(self, step: int, own: Member) -> None:
        """Report this rank to the others at its next check."""
        peers = self._peers(own)
        self.number = next_check(self.number, [one.reports for one in peers])
        # After a replacement the others still see the metric of the weights before, so that no other rank moves up.
        self._metric = self._metric if own.metric is None else own.metric
        self._board.report(Report(self.number, self._metric, own.trained))
        self._newest = _Moment(self.number, step, own)
        if self._open is not None and self.number - self._open.number > MAX_BEHIND:
            # Others no longer show their reports of a check that long ago.
            silent = [one.rank for one in peers if not one.reports]
            logger.warning("check %d is left out: no report yet of ranks %s", self._open.number, silent)
            self._open = None

    def next(self, step: int, last_replaced: int | None, n_replaced: int, n_bad: int) -> Check | None:
        """Return the next check that can be decided, once; None if there is none, or others are waited for.

        Args:
            step: Step of this rank.
            last_replaced: Its step at its last replacement; None before the first.
            n_replaced: Number of its replacements.
            n_bad: Of its decision before.
        """
        if self._open is None:
            self._open, self._newest = self._newest, None
        moment = self._open
        if moment is None or self._waits(moment, step):
            return None
        self._open = None
        # All ranks as they were at this check; those that have not reported it have no metric.
        members = (moment.own, *(self._judged(other.at(moment.number)) for other in self._others))
        rules, seed = self._rules, self._schedule.seed
        return Check(moment.own.rank, moment.step, members, rules, last_replaced, n_replaced, seed, n_bad)

    def without(self, check: Check, refused: Refused) -> Check:
        """Return a check without a donor that is of no use; it counts as the worst until its next version."""
        logger.info("rank %s is no donor: %s", refused.rank, refused.reason)
        members = []
        for member in check.members:
            if member.rank == refused.rank:
                self._refused[member.rank] = member.version
                member = replace(member, alive=False)
            members.append(member)
        return replace(check, members=tuple(members))

    def drop(self) -> None:
        """Decide none of the checks so far."""
        self._open = self._newest = None

    def _waits(self, moment: _Moment, step: int) -> bool:
        """Return whether reports of other ranks are still waited for."""
        if not self._rules.compares_metrics:
            return False
        if not self._board.is_fixed and step - moment.step >= self._schedule.max_wait_steps:
            return False
        return any(is_awaited(one.reports, moment.number, self.number) for one in self._peers(moment.own))

    def _judged(self, member: Member) -> Member:
        if self._refused.get(member.rank) == member.version:
            return replace(member, metric=math.nan)
        return member

    def _peers(self, own: Member) -> list[Member]:
        """Return the ranks that live and have the same tensors."""
        return [one for one in self._others if one.alive and one.digest == own.digest]
