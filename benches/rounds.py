"""Interleaved rounds of all sides, their medians, and the ratios of paired rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benches.available import missing
from benches.fleet import Fleet, FleetError
from benches.scenarios import Scenario, Side

HIGHER_IS_BETTER = ("samples_per_s",)
LOWER_IS_BETTER = ("p50_us", "p99_us", "cpu_s_per_10000", "cpu_percent", "step_ratio")

Progress = Callable[[str], None]


def compare(
    scenario: Scenario, sides: tuple[Side, ...], n_rounds: int, seconds: float, progress: Progress
) -> dict[str, Any]:
    """Measure all sides `n_rounds` times, each time in fresh processes, one run after the other.

    The order of the sides is reversed from round to round, so a machine that gets slower or faster does not favour
    one.

    Args:
        scenario: what to run.
        sides: baseline, candidate, and further ones; further ones that are not installed are skipped.
        n_rounds: runs of each side.
        seconds: length of one run.
        progress: called with a line after each run.

    Returns:
        The scenario's fields, and `sides` (rounds and medians by side), `gains` (by measurement: paired
        rounds of the first two sides and their median, above 1 where the candidate is better) and `left_out`
        (by side: why it was skipped, or how it failed); or `error` where one of the first two failed.
    """
    left_out = {side.name: reason for side in sides[2:] if (reason := missing(side))}
    for name, reason in left_out.items():
        progress(f"{name}: skipped, {reason}")
    present = [side for side in sides if side.name not in left_out]
    runs: dict[str, list[dict[str, Any]]] = {side.name: [] for side in present}
    record: dict[str, Any] = {**asdict(scenario), "size_bytes": scenario.size.nbytes, "seconds": seconds}
    record["left_out"] = left_out
    for number in range(n_rounds):
        for side in present if number % 2 == 0 else present[::-1]:
            if side.name in left_out:
                continue
            try:
                with Fleet(scenario, side) as fleet:
                    outcome = fleet.measure(seconds)
            except FleetError as error:
                progress(f"{side.name}: {error}")
                if side in sides[:2]:
                    record["error"] = f"{side.name}: {error}"
                    return record
                left_out[side.name] = f"failed: {error}"
                continue
            runs[side.name].append(outcome)
            progress(f"{side.name}: {_headline(outcome)}")
    record["sides"] = {
        side.name: {"roles": asdict(side), "rounds": runs[side.name], "median": medians(runs[side.name])}
        for side in present
        if side.name not in left_out
    }
    baseline, candidate = (runs[side.name] for side in sides[:2])
    record["gains"] = gains(baseline, candidate)
    return record


def medians(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Median of every measurement over the rounds."""
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def gains(baseline: list[dict[str, Any]], candidate: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """How many times better the candidate is, round by round, and the median of that."""
    found: dict[str, dict[str, Any]] = {}
    for key in HIGHER_IS_BETTER + LOWER_IS_BETTER:
        if key in baseline[0]:
            pairs = [(ours[key], theirs[key]) for ours, theirs in zip(candidate, baseline, strict=True)]
            ratios = [_gain(key, ours, theirs) for ours, theirs in pairs]
            found[key] = {"rounds": ratios, "median": statistics.median(ratios)}
    return found


def _gain(key: str, ours: float, theirs: float) -> float:
    better, worse = (ours, theirs) if key in HIGHER_IS_BETTER else (theirs, ours)
    # A clock that did not move (an idle process) would divide by zero; its resolution is far above this.
    return better / max(worse, 1e-9)


def _headline(outcome: dict[str, Any]) -> str:
    if "step_ratio" in outcome:
        return (
            f"a step takes {outcome['step_ratio']:.3f}x of {outcome['memory_step_ms']:.1f} ms, "
            f"its batch is waited for {outcome['wait_ms']:.2f} ms"
        )
    if "switches" in outcome:
        times = f"p50 {outcome['p50_us']:,.0f} us, p99 {outcome['p99_us']:,.0f} us"
        return f"{times}, {outcome['switches']} switches, {outcome['restarts']} clients replaced"
    if "samples_per_s" not in outcome:
        return f"{outcome['cpu_percent']:.2f} % of a core"
    text = f"{outcome['samples_per_s']:,.0f} samples/s, {outcome['cpu_s_per_10000']:.2f} CPU s per 10,000"
    if "p50_us" in outcome:
        text += f", p50 {outcome['p50_us']:,.0f} us, p99 {outcome['p99_us']:,.0f} us"
    if outcome.get("lost_slots"):
        text += f", {outcome['lost_slots']} of {outcome['slots_used']} slots lost"
    return text
