"""What becomes of the results of `python -m benches`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benches import __main__ as command
from benches import beside, report
from benches.comparison import __main__ as comparison

RESULTS = sorted(command.RESULTS.glob("[0-9]*.json"))


@pytest.mark.parametrize("results", RESULTS, ids=lambda path: path.stem)
def test_committed_results_can_still_be_shown(results: Path) -> None:
    result = json.loads(results.read_text())
    assert report.tables(result, results.name)
    assert bool(beside.lane_alone(result)) == ("lane_alone" in result)
    report.summary(result)


def test_switches_of_loaders_have_a_table() -> None:
    one = {"p50_ms": 45.25, "p99_ms": 60.5, "max_ms": 61.0, "n_late": 3, "n_stale": 0}
    record = {"call_ms": 30.1, "limit_ms": 61.2, "n": 200, "loaders": {"no workers": one}}
    table = beside.switching({"switching": record})
    assert "| no workers | 45.2 | 60.5 | 61.0 | 3 | 0 |" in table
    assert "the limit is 61.2 ms; 200 switches each" in table
    assert beside.switching({"switching": {"error": "none"}}) == beside.switching({}) == ""


def test_rates_by_the_number_of_slots_have_a_table() -> None:
    record = {
        "n_slots": [64, 256],
        "cases": {"bytes": {"64": 20_000.4, "256": 19_000.0}},
        "bare_copies": 30_000.0,
    }
    table = beside.slots({"slots": record})
    assert "| bytes | 20,000 | 19,000 | 0.95 |" in table
    assert "Bare copies, 32 slots: 30,000 samples/s." in table
    assert beside.slots({"slots": {"error": "none"}}) == beside.slots({}) == ""


def test_the_page_of_the_comparison_shows_its_newest_result() -> None:
    result = max(
        (json.loads(path.read_text()) for path in command.RESULTS.glob("comparison-*.json")),
        key=lambda one: str(one["date"]),
    )
    assert list(result["ways"]) == list(comparison.WAYS)
    assert f"{comparison.BEGIN}\n\n{comparison.tables(result)}\n{report.END}" in comparison.PAGE.read_text()


def test_kills_of_the_comparison_are_told() -> None:
    goes_on = {"pause_s": 0.5, "lost": 0, "doubled": 1, "is_ordered": True}
    assert comparison.told([goes_on, {**goes_on, "pause_s": 0.25, "lost": 1_000, "is_ordered": False}]) == (
        "continues after 0.50 s at most; 1,000 numbers missing, 1 twice, not in order"
    )
    error = {"error": "RuntimeError: N is killed"}
    assert comparison.told([error, error, {"hangs": True}]) == (
        "the student ends: `RuntimeError: N is killed`; or stands still, without a word for 60 s"
    )
