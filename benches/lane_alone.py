"""A lane alone, Rust to Rust: in `lane_bench` both ends poll all the time, in `parked_bench` both ends block."""

from __future__ import annotations

import os
from typing import Any

from benches import rust_examples
from benches.rounds import medians
from benches.rust_examples import ExampleError

NAME = "lane alone"
# Two CPUs are far from each other if a bare atomic word takes this many times as long as between the closest ones.
FAR = 1.5

Run = dict[str, Any]


def measure(baseline: str, quick: bool) -> dict[str, Any]:
    """Measure a lane between our first CPU and, in each round, the CPUs that are closest and farthest at that time.

    Each round measures the distances with a bare atomic word, because a virtual machine does not know where its CPUs
    are, and its host moves them. For that reason runs are also grouped by the bare word that each run measured itself,
    see `by_distance`.

    Args:
        baseline: ignored; the other package has no lanes.
        quick: one round instead of five.

    Returns:
        `runs` (in each `cpus`, `looking` and `parked`), and the medians of their measurements: `looking`, by distance,
        and `parked`; or `error`.
    """
    client, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return {"error": "a lane alone needs two CPUs"}
    runs = []
    try:
        rust_examples.build("softs-shm", "lane_bench")
        rust_examples.build("softs-net", "parked_bench")
        for number in range(1 if quick else 5):
            cpus = partners(rust_examples.run("lane_bench", "--words", client, *others))
            runs += [_between(client, cpu) for cpu in (cpus if number % 2 == 0 else cpus[::-1])]
    except ExampleError as error:
        return {"error": str(error)}
    return {
        "runs": runs,
        "looking": {distance: _summary(group, "looking") for distance, group in by_distance(runs).items()},
        "parked": _summary(runs, "parked"),
    }


def partners(words_ns: dict[str, float]) -> list[int]:
    """Return the closest CPU and, unless all are about as close, the farthest, by nanoseconds of a bare word."""
    closest, farthest = min(words_ns, key=words_ns.__getitem__), max(words_ns, key=words_ns.__getitem__)
    is_far = words_ns[farthest] >= FAR * words_ns[closest]
    return [int(closest), int(farthest)] if is_far else [int(closest)]


def by_distance(runs: list[Run]) -> dict[str, list[Run]]:
    """Return the runs between `close` and between `far` CPUs, if any, without those in which the distance changed."""
    steady = [run for run in runs if max(_words_ns(run)) < FAR * min(_words_ns(run))]
    limit = FAR * min((_words_ns(run)[0] for run in steady), default=0.0)
    groups = {
        "close": [run for run in steady if _words_ns(run)[0] < limit],
        "far": [run for run in steady if _words_ns(run)[0] >= limit],
    }
    return {distance: group for distance, group in groups.items() if group}


def _summary(runs: list[Run], key: str) -> dict[str, float]:
    return {"runs": len(runs), **medians([run[key] for run in runs])}


def _words_ns(run: Run) -> tuple[float, float]:
    return run["looking"]["bare_word_ns"], run["looking"]["bare_word_after_ns"]


def _between(client: int, supplier: int) -> Run:
    lane = rust_examples.run("lane_bench", client, supplier)
    parked = rust_examples.run("parked_bench", client, supplier)
    few, many = lane["slots_16"], lane["slots_4096"]
    looking = {
        "bare_word_ns": lane["bare_word_ns"],
        "bare_word_after_ns": lane["bare_word_after_ns"],
        "one_way_16_ns_p50": few["one_way_ns_p50"],
        "one_way_16_ns_p99": few["one_way_ns_p99"],
        "one_way_4096_ns_p50": many["one_way_ns_p50"],
        "one_way_4096_ns_p99": many["one_way_ns_p99"],
        "to_bare_word": few["one_way_ns_p50"] / lane["bare_word_ns"],
        "orders_16_per_s": few["orders_per_s"],
        "orders_4096_per_s": many["orders_per_s"],
    }
    return {"cpus": [client, supplier], "looking": looking, "parked": parked}
