"""Ends the processes of workers that keep a step beyond its deadline; `master.order.deadlines` decides."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..declare.calls import MFCDef
from ..master.master import DRIVER
from ..master.order.deadlines import Deadlines, culprits
from ..master.order.sequencer import Sequencer
from ..master.order.steps import Step
from ..workers.backend import Backend

__all__ = ["LateSteps"]

#: While steps are held back one wait may be so long, seconds: nothing says when the time of one begins.
_HELD_S = 1.0


class LateSteps:
    """The deadlines of one flow.

    Args:
        calls: Functions of the flow by name.
        deadline_s: Deadline of steps where their function says nothing else, seconds; None: no deadline.
        order: Sequencer of the flow's steps.
        backend: Backend that ends workers, and reports them as lost.
    """

    def __init__(
        self, calls: Mapping[str, MFCDef], deadline_s: float | None, order: Sequencer, backend: Backend
    ) -> None:
        self._calls, self._deadline_s = calls, deadline_s
        self._order, self._backend = order, backend
        has_deadlines = deadline_s is not None or any(one.deadline_s is not None for one in calls.values())
        self._deadlines = Deadlines(self._deadline_of) if has_deadlines else None

    def limit(self, timeout_s: float | None) -> float | None:
        """Return how long the flow may wait before it looks for late steps again."""
        if self._deadlines is None:
            return timeout_s
        now_s = time.monotonic()
        held_back = self._observe(self._deadlines, now_s)
        due_s = self._deadlines.due_s()
        times = [
            timeout_s,
            None if due_s is None else max(due_s - now_s, 0.0),
            _HELD_S if held_back else None,
        ]
        return min((one for one in times if one is not None), default=None)

    def end(self) -> None:
        """End the workers that are to blame for steps that are late now."""
        if self._deadlines is None:
            return
        self._observe(self._deadlines, time.monotonic())
        for late in self._deadlines.late(time.monotonic()):
            seen, now_s = self._backend.look(late.step.ticket, late.workers), time.monotonic()
            # One that has ended the step by now has sent what it did: the next turn takes it.
            if set(seen) == late.workers:
                for worker, reason in culprits(late, seen, now_s).items():
                    self._backend.end(worker, reason)
                self._deadlines.restart(late, now_s)

    def _observe(self, deadlines: Deadlines, now_s: float) -> frozenset[int]:
        held_back = self._backend.held_back()
        deadlines.observe(self._order.tickets, now_s, held_back)
        return held_back

    def _deadline_of(self, step: Step) -> float | None:
        if DRIVER in step.workers:
            return None  # it runs in the thread of the flow
        call = self._calls.get(step.name)
        return call.deadline_s if call is not None and call.deadline_s is not None else self._deadline_s
