"""What a rank reports at each check, and which reports are compared: those of one check, and so of one moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from softs_fast.records import Count, Message

#: Reports of a rank that others can still read: more than `MAX_BEHIND`, so that a slower rank finds those it needs.
MAX_REPORTS = 16
#: A rank with a newest report older than so many checks has no place; one that is so far behind skips ahead.
MAX_BEHIND = 4


class Report(Message):
    """The state of a rank at one of its checks.

    Attributes:
        check: Number of the check, from 1.
        metric: Metric at that time; higher is better, NaN counts as the worst; None before the first one.
        trained: Steps since the rank's start or last replacement.
    """

    check: Count
    metric: float | None
    trained: Count


def next_check(last: int, others: Iterable[Sequence[Report]]) -> int:
    """Return the number of a rank's next check.

    A rank that joins late, or has fallen far behind, takes the newest number of the others: it compares itself with what
    they are now, as their early reports are gone.

    Args:
        last: Number of the rank's last check; 0 before the first one.
        others: Reports of each other rank, the newest one last.
    """
    newest = max(map(last_check, others), default=0)
    return newest if newest - last > MAX_BEHIND else last + 1


def last_check(reports: Sequence[Report]) -> int:
    """Return the number of a rank's newest report; 0 if it has made none."""
    return reports[-1].check if reports else 0


def is_awaited(reports: Sequence[Report], check: int, now: int) -> bool:
    """Return whether a rank that lives is still expected to report a check.

    Args:
        reports: Reports of that rank, the newest one last.
        check: Number of the check.
        now: Number of the newest check of the rank that waits.
    """
    newest = last_check(reports)
    return newest == 0 or (newest < check and now - newest <= MAX_BEHIND)
