"""In which of all correct orders the steps of an epoch get their tickets: list scheduling on expected times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .steps import CallState, Kind, Step

__all__ = ["in_order"]


#: A call, and the steps of it that get tickets.
_Begun = tuple[CallState, tuple[Step, ...]]


def in_order(
    epoch: Sequence[_Begun], busy_s: Iterable[tuple[int, float]] = ()
) -> list[tuple[CallState, Step]]:
    """Return the steps of all calls of an epoch in the order of their tickets.

    Moves of all calls come first; each call keeps the order of its own steps, and hooks of two calls nest (see
    `CallState.enclosed`). Among those that may be next, the one comes first that can begin first; then pre-hooks before mains,
    mains before post-hooks, steps of fewer workers, and older calls.

    Args:
        epoch: Calls that begin together, each with its steps.
        busy_s: Workers, and for how long the steps that have tickets keep each of them.

    Source: list scheduling, Graham, SIAM J. Appl. Math. 1969; the order among ties is own, see docs/dataflow_design.md.
    """
    free_s = dict(busy_s)
    early = [[step for step in steps if step.kind is Kind.MOVE] for _, steps in epoch]
    late = [[step for step in steps if step.kind is not Kind.MOVE] for _, steps in epoch]
    return _schedule(epoch, early, free_s) + _schedule(epoch, late, free_s)


def _schedule(
    epoch: Sequence[_Begun], steps: list[list[Step]], free_s: dict[int, float]
) -> list[tuple[CallState, Step]]:
    order: list[tuple[CallState, Step]] = []
    calls = [call for call, _ in epoch]
    enclosed = [call.enclosed for call in calls]
    workers = [frozenset().union(*(step.workers for step in own)) for _, own in epoch]
    has_enclosed = any(enclosed)
    place = [0] * len(epoch)
    ready_s = [0.0] * len(epoch)  # when the step before it in its own call ends
    left = {number for number, own in enumerate(steps) if own}
    while left:
        inside = [i for i in left if place[i]] if has_enclosed else []
        # Calls that are inside never keep each other from going on: one that would has not begun.
        may_be = (
            i
            for i in left
            if place[i] or not any(enclosed[i] & workers[j] or enclosed[j] & workers[i] for j in inside)
        )
        best = min(may_be, key=lambda i: _rank(calls[i], steps[i][place[i]], ready_s[i], free_s))
        step = steps[best][place[best]]
        end_s = _begin_s(step, ready_s[best], free_s) + step.expected_s
        free_s.update(dict.fromkeys(step.workers, end_s))
        ready_s[best] = end_s
        order.append((calls[best], step))
        place[best] += 1
        if place[best] == len(steps[best]):
            left.discard(best)
    return order


def _begin_s(step: Step, ready_s: float, free_s: dict[int, float]) -> float:
    return max([ready_s, *(free_s.get(worker, 0.0) for worker in step.workers)])


def _rank(
    call: CallState, step: Step, ready_s: float, free_s: dict[int, float]
) -> tuple[float, int, int, int, int]:
    return (_begin_s(step, ready_s, free_s), step.kind, len(step.workers), call.oldest, call.number)
