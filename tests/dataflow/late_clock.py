"""Clocks that run only while a worker stands still: other load makes no worker of a test late, and no flow quiet."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flow_processes import stop

import softs_fast.dataflow as df
from softs_fast.dataflow.engine import late_steps
from softs_fast.dataflow.master.order.steps import Kind
from softs_fast.dataflow.watch import thread
from softs_fast.dataflow.workers.sightings import stopped


class LateClock:
    """Stands in for `time` in `late_steps`: a look at it takes half a second while a worker is stuck, and no time otherwise.

    Args:
        monkeypatch: Of the test.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s = 100.0
        self._backend: Any = None
        monkeypatch.setattr(late_steps, "time", self)

    def watch(self, flow: df.Flow, worker: int, pid: int) -> None:
        """Run while a worker is stopped, or waits within `generate`, until the flow has ended it.

        One that waits in the hook of its weights is stopped when the flow knows that its function has ended: a stopped
        worker may still hold that message.
        """
        self._backend, self._worker, self._pid = flow._backend, worker, pid
        self._order = flow._session.runner.master.order
        end = flow._backend.end

        def ended(worker: int, reason: str) -> None:
            self._backend = None
            end(worker, reason)

        flow._backend.end = ended  # type: ignore[method-assign]

    def monotonic(self) -> float:
        """Return the time."""
        self._now_s += 0.5 if self._backend is not None and self._is_stuck() else 0.0
        return self._now_s

    def _is_stuck(self) -> bool:
        if stopped(self._pid):
            return True
        sight = self._backend.sights(1.0, stacks=True).get(self._worker)
        if sight is None or "wait" not in "".join(sight.stack[:1]):
            return False
        stack = "".join(sight.stack)
        if "modules" in stack and any(one.kind is Kind.POST for one in self._order.tickets):
            stop(self._pid)
            return True
        return "generate" in stack


class StallClock:
    """Stands in for `time` in the thread that watches a flow: far behind until a process stands still, then far ahead.

    Args:
        monkeypatch: Of the test.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pid: int | None = None
        monkeypatch.setattr(thread, "time", self)

    def monotonic(self) -> float:
        """Return the time."""
        return time.monotonic() + (1e6 if self.pid is not None and stopped(self.pid) else -1e6)
