"""Ends of workers: where each one was, and whether the process before it has ended there in the same way. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..declare.hooks import Hook
from ..master.order.steps import CallState, Kind
from .running import SentStep

__all__ = ["Ends", "open_there"]

#: Ends that a process has brought about itself; signals such as SIGKILL come from elsewhere, and may not come again.
_OWN = re.compile(
    r"its process ended: (exit status \d+|signal SIG(?:SEGV|BUS|ABRT|FPE|ILL|SYS|TRAP))$", re.MULTILINE
)

#: Replicas of a pool that may end within a function on a row, in whatever way, before the row counts as failed.
_MOST_REPLICAS = 3


@dataclass
class Ends:
    """The last end of each worker, for the whole life of a flow.

    Attributes:
        is_repeated: Whether a worker has ended in the same step, on the same rows, in the same way as the process before it.
    """

    is_repeated: bool = False
    _last: dict[int, tuple[str, tuple[int, ...], str]] = field(default_factory=dict)
    _replicas: Counter[tuple[str, int]] = field(default_factory=Counter)

    def note(self, worker: int, reason: str, inside: Sequence[SentStep]) -> bool:
        """Note an end; returns whether the process before has ended so, too: the next one would, and is not tried.

        Args:
            worker: Number of the worker.
            reason: How its process has ended.
            inside: Steps that were open there, by ticket.
        """
        found = _OWN.search(reason)
        before, now = self._last.pop(worker, None), None
        if found is not None and inside:
            work = inside[0].step.work
            now = work.name if isinstance(work, Hook) else str(work), inside[0].ids, found[1]
            self._last[worker] = now
        is_repeated = now is not None and now == before
        self.is_repeated = self.is_repeated or is_repeated
        return is_repeated

    def fatal_rows(self, inside: Sequence[SentStep], calls: Mapping[int, CallState]) -> list[int]:
        """Count the end of a replica of a pool; returns the rows on which a function has ended as many as it may.

        Another replica would get these rows next, and end, too.

        Args:
            inside: Steps that were open there, by ticket.
            calls: Calls that have no answer yet, by number.
        """
        call = calls.get(inside[0].step.call) if inside else None
        function = call.function if call is not None else None
        if function is None or not function.is_pool or inside[0].step.kind is not Kind.MAIN:
            return []
        self._replicas.update((function.name, row_id) for row_id in inside[0].ids)
        return [row_id for row_id in inside[0].ids if self._replicas[function.name, row_id] >= _MOST_REPLICAS]


def open_there(inside: Sequence[SentStep], calls: Mapping[int, CallState]) -> str:
    """Return what was open at a worker that has ended, in words; it was in the step of its lowest ticket.

    Args:
        inside: Steps that were open there, by ticket.
        calls: Calls that have no answer yet, by number.
    """
    steps = [one.step for one in inside if one.step.call in calls]
    if not steps:
        return "no call was open there"
    text = f"{steps[0]}, was open there"
    others = dict.fromkeys((one.call, one.name) for one in steps if one.call != steps[0].call)
    behind = ", ".join(f"call {number} of {name}" for number, name in others)
    return f"{text}, and behind it {behind}" if behind else text
