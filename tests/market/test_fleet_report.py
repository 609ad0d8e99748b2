"""What a fleet writes beside its sockets, and what errors of clients say of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from softs_fast.market import fleet_report
from softs_fast.market.fleet_report import FleetReport, WorkerReport, read_report, write_report


def test_a_report_is_read_by_the_endpoint_of_the_broker(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/frontend"
    for written in ((), (WorkerReport("worker 0", "serving"), WorkerReport("worker 1", "pausing", "e", 2.5))):
        write_report(tmp_path, written, "2 to 1 workers, idle")
        assert read_report(endpoint) == (FleetReport(written, "2 to 1 workers, idle") if written else None)


@pytest.mark.parametrize("content", ["", "[", "7", "[1]", "{}", '{"workers": [{"name": "worker 0"}]}'])
def test_anything_else_is_no_report(tmp_path: Path, content: str) -> None:
    (tmp_path / "workers").write_text(content)
    assert read_report(f"ipc://{tmp_path}/frontend") is None
    assert read_report("tcp://127.0.0.1:5555") is None


def test_the_cause_names_the_last_worker_that_failed_and_the_end_of_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(fleet_report, "time", SimpleNamespace(monotonic=lambda: now))
    error = "\n".join(["its process ended: signal SIGSEGV", *(f"line {i}" for i in range(100)), "x" * 1000])
    report = FleetReport(
        (
            WorkerReport("worker 0", "pausing", "an earlier one", now - 9),
            WorkerReport("worker 1", "given up", error, now - 4),
            WorkerReport("worker 2", "serving"),
        )
    )
    head, *lines = report.cause().splitlines()
    assert head.startswith("; workers of the fleet: 1 pausing, 1 given up, 1 serving; worker 1 failed 4.0 ")
    assert head.endswith("s ago: its process ended: signal SIGSEGV")
    assert lines == [*(f"line {i}" for i in range(81, 100)), "x" * 300]


def test_a_fleet_to_which_nothing_has_happened_is_no_cause() -> None:
    assert FleetReport((WorkerReport("worker 0", "serving"),)).cause() == ""
    assert FleetReport((WorkerReport("worker 0", "ended"),)).cause() == "; workers of the fleet: 1 ended"
