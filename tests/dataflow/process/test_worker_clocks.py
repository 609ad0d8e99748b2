"""Since when a worker is inside of something: by its own clock, which is another one on another host."""

from __future__ import annotations

import time
from types import SimpleNamespace

import flows
import pytest
from flow_threads import in_threads


@pytest.mark.parametrize("offset_s", [-1e6, 0.0, 1e6])
def test_seconds_are_right_whatever_the_clock_of_the_worker_says(
    offset_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + offset_s)
    monkeypatch.setattr("softs_fast.dataflow.process.loop.time", clock)
    began_s = time.monotonic()
    flow, _ = in_threads(flows.make_light)
    with flow:
        next(flow.steps(1))
        for look in (
            lambda: [one["seconds"] for one in flow.ask("inside").values()],
            lambda: [one.seconds for one in flow._backend.sights(10.0).values()],
        ):
            first, after_s = look(), time.monotonic()
            before_s, second = time.monotonic(), look()
            assert first
            for early, late in zip(first, second, strict=True):
                assert late - early >= before_s - after_s
                assert 0 < early < late < time.monotonic() - began_s
