"""Which workers are ended for steps that are late: none that has not been told of the step."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from softs_fast.dataflow.engine import late_steps
from softs_fast.dataflow.engine.late_steps import LateSteps
from softs_fast.dataflow.master.order.deadlines import Seen
from softs_fast.dataflow.master.order.sequencer import Sequencer
from softs_fast.dataflow.master.order.steps import CallState, Kind, Step


class Clock:
    """Time of a test."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Processes:
    """Workers that are idle, and what was ended."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.ended: dict[int, str] = {}

    def held_back(self) -> frozenset[int]:
        return frozenset(self.held)

    def look(self, ticket: int, workers: Iterable[int]) -> dict[int, Seen]:
        return dict.fromkeys(workers, Seen())

    def end(self, worker: int, reason: str) -> None:
        self.ended[worker] = reason


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(late_steps, "time", made)
    return made


def test_a_worker_that_has_not_been_told_is_not_late(clock: Clock) -> None:
    order, backend = Sequencer([0, 1]), Processes()
    late = LateSteps({}, 5.0, order, backend)  # type: ignore[arg-type]
    order.offer(CallState(1, "read", (Step(Kind.MAIN, frozenset({1})),)))
    order.advance(clock.now_s)
    backend.held = {1}
    assert late.limit(None) is not None, "it is looked at again, although nothing has a deadline"
    clock.now_s += 1000.0
    late.end()
    assert not backend.ended
    backend.held = set()
    late.limit(None)
    clock.now_s += 4.9
    late.end()
    assert not backend.ended
    assert late.limit(None) == pytest.approx(0.1)
    clock.now_s += 0.2
    late.end()
    assert "is with it since 5.1 s" in backend.ended[1]
