"""Flows in processes whose roles are sharded in different layouts: weights are those of one process, to the bit."""

from __future__ import annotations

from typing import Any

import sharded_flow
from parallel_processes import in_meeting

import softs_fast.dataflow as df


def results(flow: df.Flow, n_steps: int) -> list[Any]:
    with flow:
        return [sorted((call.function, call.numbers) for call in step.calls) for step in flow.steps(n_steps)]


def test_sharded_roles_have_the_weights_of_one_process() -> None:
    expected = results(sharded_flow.make_sharded(), 3)
    flow, workers = in_meeting("sharded_flow", "make_sharded")
    assert results(flow, 3) == expected
    assert not workers.killed
    # The weights have changed in each step.
    assert len({str(step) for step in expected}) == 3
