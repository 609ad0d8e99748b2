"""What `python -m benches.fleet_simulation` makes of reports; the simulation itself is tested in Rust."""

from __future__ import annotations

from typing import Any

import pytest
from benches import fleet_simulation, rust_examples

#: Joined after 0.3 s; 1,000 samples/s from 0.5 s on; half of it for 0.5 s after the fault.
RUN = {
    "scenario": "rack",
    "seconds": 5,
    "step_ms": 100,
    "fault_ms": 3000,
    "samples": [0] * 5 + [100] * 25 + [50] * 5 + [100] * 15,
    "sessions": [0] * 3 + [7] * 47,
    "first_sample_ms": 512.0,
    "handed_out": 4250,
    "made": 5000,
    "longest_pause_ms": 700,
    "busiest_student_link": 0.25,
    "busiest_teacher_link": 0.02,
    "wall_s": 1.2,
}


def test_a_report_becomes_a_row() -> None:
    of = fleet_simulation.summary(RUN)
    assert (of["rate"], of["joined_ms"], of["least"], of["wasted"]) == (1000, 300, 0.75, pytest.approx(0.15))
    # The rate is the mean of a second.
    assert (of["whole_ms"], of["recovered_ms"]) == (1400, 1300)
    row = fleet_simulation.table([RUN]).splitlines()[2]
    assert row == "| rack | 1,000 | 512 ms | 0.3 s | 1.4 s | 75% | 1.3 s | 0.70 s | 15.0% | 25%, 2% | 1.2 s |"


def test_a_fleet_that_does_not_recover_says_so() -> None:
    run = {**RUN, "samples": [100] * 30 + [50] * 20}
    assert fleet_simulation.summary(run)["recovered_ms"] is None
    assert "never" in fleet_simulation.table([run])


@pytest.mark.parametrize(
    ("broken", "found", "is_right"), [(0, 3, True), (1, 3, False), (0, 0, False)], ids=str
)
def test_a_check_needs_rules_that_hold_and_mistakes_that_are_found(
    monkeypatch: pytest.MonkeyPatch, broken: int, found: int, is_right: bool
) -> None:
    def run(name: str, *options: object) -> dict[str, Any]:
        n = found if "--bug" in options else broken
        return {"broken": n, "first_broken": None, "examples": [], "wall_s": 0.1}

    monkeypatch.setattr(rust_examples, "run", run)
    assert fleet_simulation.check(10) is is_right
