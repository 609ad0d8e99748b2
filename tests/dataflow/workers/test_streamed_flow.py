"""`at_least` and `reuse` in worker processes: all rows, in whole passes, with the same bits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from flow_processes import in_meeting
from flow_threads import in_threads
from streamed_flow import LEAST, ROWS, make_flow

import softs_fast.dataflow as df

N = 4


def steps_of(flow: df.Flow) -> list[Any]:
    """Run; return of each step the sizes of the parts that training got, and what does not depend on these."""
    with flow:
        steps = list(flow.steps(N))
    found = []
    for number, step in enumerate(steps):
        parts = [one for one in step.calls if one.function == "actor.train"]
        # Each row once, in the order of the source, whatever the sizes.
        ids = tuple(row_id for one in parts for row_id in one.ids)
        assert ids == tuple(range(number * ROWS, (number + 1) * ROWS))
        assert [one.numbers["ends"] for one in parts] == [0.0] * (len(parts) - 1) + [1.0]
        made = sorted((one.ids, one.digest) for one in step.calls if one.function == "gen.generate")
        found.append(([len(one.ids) for one in parts], parts[-1].numbers["weight"], made))
    return found


def exact(steps: list[Any]) -> list[Any]:
    return [step[1:] for step in steps]


@pytest.mark.parametrize("layout", ["dp1", "dp2"])
def test_parts_of_a_step_in_processes_have_the_bits_of_one_process(layout: str, tmp_path: Path) -> None:
    expected = steps_of(make_flow("streamed"))
    assert len({weight for _, weight, _ in expected}) == N
    assert any(len(sizes) > 1 for sizes, _, _ in expected)
    flow, workers = in_meeting(
        "streamed_flow", "make_flow", kind="streamed", layout=layout, parts=str(tmp_path / "parts")
    )
    found = steps_of(flow)
    assert not workers.killed
    # Generation of the rest waited for the first part, so there was one.
    assert all(len(sizes) > 1 and min(sizes[:-1]) >= LEAST for sizes, _, _ in found)
    assert exact(found) == exact(expected)


def calls_of(flow: df.Flow) -> list[Any]:
    """Run; return all calls, those of one row in the order of its uses."""
    with flow:
        return [
            [(one.function, one.ids, one.digest, one.numbers) for one in sorted(step.calls, key=by_name)]
            for step in flow.steps(N)
        ]


def by_name(one: df.CallResult) -> tuple[str, tuple[int, ...]]:
    return one.function, one.ids


def check_uses(steps: list[Any]) -> None:
    for number, calls in enumerate(steps):
        uses = [(ids, one["use"], one["ends"]) for name, ids, _, one in calls if name == "actor.train_again"]
        ids = tuple(range(number * ROWS // 2, (number + 1) * ROWS // 2))
        assert uses == [(ids, 0.0, 0.0), (ids, 1.0, 0.0), (ids, 2.0, 1.0)]


def test_rows_that_are_used_again_have_the_bits_of_one_process() -> None:
    expected = calls_of(make_flow("reused"))
    check_uses(expected)
    flow, _ = in_threads(functools.partial(make_flow, "reused"))
    assert calls_of(flow) == expected
    flow, workers = in_meeting("streamed_flow", "make_flow", kind="reused")
    assert calls_of(flow) == expected
    assert not workers.killed


def test_rows_that_ranks_use_again_have_the_weights_of_one_object() -> None:
    flow, workers = in_meeting("streamed_flow", "make_flow", kind="reused", layout="dp2")
    found = calls_of(flow)
    check_uses(found)
    assert not workers.killed

    def weights(steps: list[Any]) -> list[Any]:
        return [one["weight"] for calls in steps for name, _, _, one in calls if "train" in name]

    assert weights(found) == weights(calls_of(make_flow("reused")))
