"""A clock for deadlines that runs only while a worker stands still: other load makes no worker of a test late."""

from __future__ import annotations

from typing import Any

import pytest

import softs_fast.dataflow as df
from softs_fast.dataflow.backends.sightings import stopped
from softs_fast.dataflow.watch import late_steps


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
        """Run while a worker is stopped, or waits within `generate`, until the flow has ended it."""
        self._backend, self._worker, self._pid = flow._backend, worker, pid
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
        return sight is not None and "wait" in "".join(sight.stack[:1]) and "generate" in "".join(sight.stack)
