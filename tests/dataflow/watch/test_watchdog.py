"""Reports of a flow in which no call ends: when, with which text, and the end by option."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import flows
import pytest
import torch
from flow_processes import in_forks, stop
from flow_threads import in_threads
from late_clock import StallClock
from waiting import WATCHDOG_S, eventually

import softs_fast.dataflow as df
from softs_fast.dataflow.watch import thread
from softs_fast.dataflow.watch.watchdog import Watchdog
from softs_fast.errors import ConfigError, FlowError


def reports(watchdog: Watchdog, since_s: float | None, times: range) -> list[int]:
    return [now_s for now_s in times if watchdog.is_due(since_s, now_s)]


def test_reports_come_after_intervals_that_double() -> None:
    assert reports(Watchdog(10.0), 0.0, range(200)) == [10, 30, 70, 150]


def test_an_end_of_a_call_makes_it_ready_again() -> None:
    watchdog = Watchdog(10.0)
    assert reports(watchdog, 0.0, range(40)) == [10, 30]
    assert reports(watchdog, 40.0, range(40, 75)) == [50, 70], "the first interval, not the last one"
    assert reports(watchdog, None, range(75, 500)) == []
    assert reports(watchdog, 500.0, range(500, 520)) == [510]


def test_it_waits_until_the_report_is_due_and_never_longer_than_an_interval() -> None:
    watchdog = Watchdog(10.0)
    assert watchdog.wait_s(None, 5.0) == 10.0
    assert watchdog.wait_s(1.0, 5.0) == 6.0
    assert watchdog.wait_s(1.0, 12.0) == 0.0
    assert watchdog.is_due(1.0, 12.0)
    assert watchdog.wait_s(1.0, 12.0) == 20.0


class Texts(logging.Handler):
    """Collects reports that match a pattern, and lets something go on after two of them.

    Others may come before on a busy machine: of a flow that has not come as far.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.pattern, self.texts, self.enough = "", list[str](), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if re.search(self.pattern, record.getMessage()):
            self.texts.append(record.getMessage())
        if len(self.texts) >= 2:
            self.enough.set()


@pytest.fixture
def texts() -> Iterator[Texts]:
    handler = Texts()
    logger = logging.getLogger("softs_fast.dataflow")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_a_long_function_of_a_worker_is_reported_again_and_again(texts: Texts) -> None:
    texts.pattern = (
        r"(?s)^no call of the flow has ended for \d+\.\d s while work remains; its own thread waits for workers since \d"
        r".*ticket 1: main of slow.double \(call 1\) since \d"
        r".*worker 3: process 1003: inside slow.double \(ticket 1\) since \d"
    )

    class Slow(flows.Light):
        def double(self, rows: df.Rows) -> dict[str, Any]:
            assert texts.enough.wait(WATCHDOG_S)
            return super().double(rows)

    def slow() -> df.Flow:
        role = df.place(Slow, on=[3], name="slow")
        calls = [df.call(role.double, "x -> y", rows=2), df.call(role.read, "y", rows=2)]
        return df.Flow(calls, source=flows.numbers(), watchdog_s=0.05)

    flow, _ = in_threads(slow)
    with flow:
        assert next(flow.steps(1)).is_complete


def test_a_source_that_does_not_go_on_is_reported(texts: Texts) -> None:
    texts.pattern = r"its own thread reads the source of rows since \d"

    def stuck() -> Iterator[dict[str, Any]]:
        yield {"x": torch.tensor(1.0)}
        assert texts.enough.wait(WATCHDOG_S)
        yield {"x": torch.tensor(2.0)}

    role = df.place(flows.Light, name="one")
    calls = [df.call(role.double, "x -> y", rows=1), df.call(role.read, "y", rows=2)]
    with df.Flow(calls, source=stuck(), watchdog_s=0.05) as flow:
        assert next(flow.steps(1)).is_complete


def test_a_long_function_of_this_process_is_named(texts: Texts) -> None:
    texts.pattern = r"its own thread runs slow since \d"

    def slow(rows: df.Rows) -> dict[str, Any]:
        assert texts.enough.wait(WATCHDOG_S)
        return {"y": rows["x"]}

    role = df.place(flows.Light, name="one")
    calls = [df.call(slow, "x -> y", rows=1), df.call(role.read, "y", rows=1)]
    with df.Flow(calls, source=flows.numbers(), watchdog_s=0.05) as flow:
        assert next(flow.steps(1)).is_complete


class CallersClock:
    """Stands in for `time` in the thread that watches a flow: a report that can be due is while it is late, and never else."""

    is_late, n_looks = False, 0

    def monotonic(self) -> float:
        """Return the time."""
        self.n_looks += 1
        return time.monotonic() + (1e6 if self.is_late else -1e6)

    def await_looks(self) -> None:
        """Wait until the thread has looked at the flow and at the time again."""
        after = self.n_looks + 4
        eventually(lambda: self.n_looks >= after, "looks at the time")


def test_the_code_of_the_caller_is_not_reported(texts: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CallersClock()
    monkeypatch.setattr(thread, "time", clock)
    role = df.place(flows.Light, name="one")
    calls = [df.call(role.double, "x -> y", rows=1), df.call(role.read, "y", rows=1)]
    with df.Flow(calls, source=flows.numbers(), watchdog_s=0.02) as flow:
        for _ in flow.steps(2):
            clock.await_looks()
            clock.is_late = True
            clock.await_looks()
            clock.is_late = False
    assert not texts.texts


def test_a_flow_that_is_to_be_aborted_ends_with_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StallClock(monkeypatch)
    flow, workers = in_forks("stopping_flow", "make_stopping", watchdog_s=0.2, on_stall="abort")
    with flow:
        next(flow.steps(1))
        clock.pid = pid = workers.processes[1].pid
        stop(pid)
        with pytest.raises(
            FlowError,
            match=rf"(?s)no call of the flow has ended .*worker 1: process {pid}; stopped by a signal",
        ):
            list(flow.steps(3))
        with pytest.raises(FlowError, match="no call of the flow has ended"):
            list(flow.steps(1))
        workers.processes[1].kill()


def test_options_that_cannot_be_are_refused() -> None:
    role = df.place(flows.Light)
    calls = [df.call(role.read, "y", rows=1)]
    for arguments, complaint in (
        ({"watchdog_s": 0.0}, "watchdog_s is 0; it is above 0"),
        ({"on_stall": "end"}, "on_stall is 'end'"),
        ({"on_stall": "abort", "watchdog_s": None}, "needs watchdog_s"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            df.Flow(calls, source=[{"y": 1.0}], **arguments)  # type: ignore[arg-type]
