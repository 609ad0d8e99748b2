"""Where the Python code of workers is, in reports and in the text of a deadline."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from flow_processes import in_forks, stop
from late_clock import StallClock
from waiting import WATCHDOG_S

from softs_fast.errors import FlowError


class Report(logging.Handler):
    """Waits for a report that has a text."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text, self.found, self.texts = "", threading.Event(), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if self.text in self.texts[-1]:
            self.found.set()


@pytest.fixture
def report() -> Iterator[Report]:
    handler = Report()
    logger = logging.getLogger("softs_fast.dataflow")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_a_report_has_the_stack_of_a_function_that_holds_the_gil(report: Report) -> None:
    report.text = " generate"
    flow, workers = in_forks("stopping_flow", "make_stopping", place="hold", watchdog_s=0.3)
    with flow:
        assert next(flow.steps(1)).is_complete
        threading.Thread(target=_end_when, args=(report, workers), daemon=True).start()
        with pytest.raises(FlowError, match="worker 1 is lost"):
            list(flow.steps(3))
    assert report.found.is_set(), report.texts
    lines = next(text for text in report.texts if report.text in text).splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("worker 1: process ")]
    assert "inside gen.generate" in lines[at]
    assert lines[at + 1].startswith("    ")
    assert "stopping_flow.py:" in lines[at + 1]
    assert lines[at + 1].endswith(" generate")


def _end_when(report: Report, workers: object) -> None:
    report.found.wait(WATCHDOG_S)
    workers.processes[1].kill()  # type: ignore[attr-defined]


def test_a_process_that_is_stopped_has_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StallClock(monkeypatch)
    flow, workers = in_forks("stopping_flow", "make_stopping", watchdog_s=0.2, on_stall="abort")
    with flow:
        next(flow.steps(1))
        clock.pid = pid = workers.processes[1].pid
        stop(pid)
        with pytest.raises(FlowError) as caught:
            list(flow.steps(3))
        lines = str(caught.value).splitlines()
        (at,) = [number for number, line in enumerate(lines) if line.startswith("worker 1: ")]
        assert lines[at] == f"worker 1: process {pid}; stopped by a signal (state T)"
        assert not any(line.startswith("    ") for line in lines[at + 1 :])
        assert 1 not in flow.ask("stacks")
        workers.processes[1].kill()


def test_stacks_are_answered_by_hand() -> None:
    flow, workers = in_forks("stopping_flow", "make_stopping", place="hold", watchdog_s=None)
    with flow:
        assert next(flow.steps(1)).is_complete
        call = flow.post("gen.generate", flow.fetch(2))
        flow.flush(call)
        frames: tuple[str, ...] = ()
        while not any("stopping_flow.py" in one for one in frames):
            with pytest.raises(TimeoutError):
                call.result(timeout_s=0.1)
            frames = flow.ask("stacks").get(1, ())
        workers.processes[1].kill()
