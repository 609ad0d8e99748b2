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


def test_the_page_of_the_comparison_shows_its_newest_result() -> None:
    result = max(
        (json.loads(path.read_text()) for path in command.RESULTS.glob("comparison-*.json")),
        key=lambda one: str(one["date"]),
    )
    assert list(result["ways"]) == list(comparison.WAYS)
    assert f"{comparison.BEGIN}\n\n{comparison.tables(result)}\n{report.END}" in comparison.PAGE.read_text()
