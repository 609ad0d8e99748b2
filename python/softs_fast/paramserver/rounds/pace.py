"""How long it pays to wait for slow workers, and how long none may stand still: from what recent pushes took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["RECENT", "SLACK", "hung_after_s", "paying_s"]

#: Pushes of a worker that are remembered.
RECENT = 8
#: A round stays open so many times as long as it pays, since no push takes exactly as long as the last one.
SLACK = 1.25

#: A worker without progress for so many times the longest recent push hangs.
_HUNG_TIMES = 10.0
_LEAST_S = 1e-6


def paying_s(works: Iterable[Sequence[float]], needed: int) -> float | None:
    """Return the seconds for which a round must wait to get the most pushes per second; None if no push is known.

    A worker that is 1.8 times as slow as another one is worth the wait: two pushes in 1.8 s are more than one in 1 s. One
    that is 20 times as slow is not.

    Args:
        works: Seconds from weights to push, of the recent pushes of each worker.
        needed: Pushes that a round needs.
    """
    seconds = sorted((max(_LEAST_S, one), 1.0 / len(work)) for work in works for one in work)
    best, most, n = None, 0.0, 0.0
    for second, share in seconds:
        n += share
        # Shares are parts of whole workers, rounded.
        if n < needed - 0.5:
            best = second
        elif n / second > most:
            best, most = second, n / second
    return best


def hung_after_s(works: Iterable[Sequence[float]], lost_after_s: float) -> float:
    """Return the seconds without progress after which a worker hangs.

    Args:
        works: Seconds from weights to push, of the recent pushes of each worker; at least one push.
        lost_after_s: Lease of a member; a worker never hangs earlier.
    """
    return max(lost_after_s, _HUNG_TIMES * max(one for work in works for one in work))
