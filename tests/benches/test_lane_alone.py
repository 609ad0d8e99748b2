"""What `python -m benches` runs to measure a lane alone; the measurements themselves are not run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from benches import __main__ as command
from benches import lane_alone, report, rust_examples

LANE = {
    "bare_word_ns": 50,
    "bare_word_after_ns": 52,
    "slots_16": {"one_way_ns_p50": 60, "one_way_ns_p99": 81, "orders_per_s": 11550914},
    "slots_4096": {"one_way_ns_p50": 65, "one_way_ns_p99": 86, "orders_per_s": 13469857},
}
PARKED = {
    "futex_us_p50": 8.0,
    "futex_us_p99": 20.0,
    "lane_us_p50": 10.4,
    "lane_us_p99": 30.0,
    "to_futex": 1.3,
}


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Examples that answer at once, on a machine with a last CPU that is far; how they were called."""
    calls: list[tuple[object, ...]] = []

    def run(name: str, *options: object) -> dict[str, Any]:
        calls.append((name, *options))
        if name == "parked_bench":
            return PARKED
        if options[0] == "--words":
            return {"3": 50, "5": 48, "9": 240}
        if options[1] == 9:
            return {**LANE, "bare_word_ns": 240, "bare_word_after_ns": 250}
        return LANE

    monkeypatch.setattr(rust_examples, "build", lambda crate, name: None)
    monkeypatch.setattr(rust_examples, "run", run)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 2, 5, 3})
    return calls


def run(bare_word_ns: float, bare_word_after_ns: float) -> dict[str, Any]:
    return {"looking": {"bare_word_ns": bare_word_ns, "bare_word_after_ns": bare_word_after_ns}}


def test_a_lane_is_measured_with_the_closest_and_the_farthest_cpu(examples: list[tuple[object, ...]]) -> None:
    record = lane_alone.measure("softs", quick=True)
    assert examples[0] == ("lane_bench", "--words", 2, 3, 5, 9)
    assert examples[1:] == [(name, 2, cpu) for cpu in (5, 9) for name in ("lane_bench", "parked_bench")]
    assert [one["cpus"] for one in record["runs"]] == [[2, 5], [2, 9]]
    assert record["looking"]["close"]["to_bare_word"] == 60 / 50
    assert record["looking"]["far"]["bare_word_ns"] == 240
    assert record["parked"]["runs"] == 2


def test_rounds_are_interleaved(examples: list[tuple[object, ...]]) -> None:
    record = lane_alone.measure("softs", quick=False)
    assert [one["cpus"][1] for one in record["runs"]] == [5, 9, 9, 5, 5, 9, 9, 5, 5, 9]
    assert [one["runs"] for one in record["looking"].values()] == [5, 5]


def test_where_all_cpus_are_close_one_is_enough() -> None:
    assert lane_alone.partners({"1": 50, "2": 46, "3": 60}) == [2]
    assert lane_alone.partners({"1": 50}) == [1]


def test_runs_are_told_apart_by_their_own_bare_word() -> None:
    near, far, moved = run(50, 48), run(250, 240), run(46, 248)
    assert lane_alone.by_distance([far, near, moved]) == {"close": [near], "far": [far]}
    assert lane_alone.by_distance([far]) == {"close": [far]}
    assert lane_alone.by_distance([moved]) == {}


def test_a_lane_needs_cargo_and_two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert lane_alone.measure("softs", quick=True) == {"error": "cargo is missing; it builds lane_bench"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert lane_alone.measure("softs", quick=True) == {"error": "a lane alone needs two CPUs"}


def test_an_example_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    with pytest.raises(rust_examples.ExampleError, match="No such file"):
        rust_examples.run("lane_bench")


def test_list_names_it_and_only_selects_it(
    examples: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert command.main(["list"]) == 0
    assert "\nlane alone\n" in capsys.readouterr().out
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    assert command.main(["--only", "lane", "--quick", "--name", "x"]) == 0
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["scenarios"] == []
    assert not result.keys() & (command.PARTS.keys() - {"lane_alone"})
    text = report.tables(result, "x.json")
    assert "| close (1 run) | 50 | 60 / 81 | 1.20x | 65 / 86 | 11,550,914 | 13,469,857 |" in text
    assert "| far (1 run) | 240 | " in text
    assert "| an order and its sample | 10.4 | 30.0 |\n\nThe lane takes 1.30 times" in text
