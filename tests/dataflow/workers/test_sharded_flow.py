"""Flows in processes with roles that are sharded in different layouts: the weights of one process, to the bit."""

from __future__ import annotations

import functools
from typing import Any

import parallel_flow
import pytest
import sharded_flow
from flow_threads import in_threads, when
from parallel_processes import in_meeting

import softs_fast.dataflow as df
from softs_fast.dataflow.link.messages import Ready, State
from softs_fast.errors import FlowError


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


def make_replicas() -> df.Flow:
    """Return a flow of which the weights of two workers go to three others, one of them a source, too."""
    actor = df.place(parallel_flow.Model, "tp2", on=[0, 1], name="actor")
    gen = df.place(parallel_flow.Model, "dp3", on=[1, 2, 3], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y", rows=6),
        df.call(actor.train, "x, y", rows=6, after=[df.publish(gen)]),
    ]
    return df.Flow(calls, source=parallel_flow.numbers())


@pytest.mark.parametrize("worker", [0, 1])
def test_targets_return_when_one_of_several_sources_dies(worker: int) -> None:
    flow, workers = in_threads(make_replicas)
    done = when(
        workers.hub,
        lambda sender, message: sender == worker and isinstance(message, State) and message.ticket > 2,
        functools.partial(workers.hub.kill, worker),
    )
    with pytest.raises(FlowError, match=f"worker {worker} is lost"), flow:
        list(flow.steps(2))
    assert done.is_set()


@pytest.mark.parametrize("worker", range(4))
def test_a_death_before_any_message_of_a_source_or_target_is_named(worker: int) -> None:
    for n in range(100):
        flow, workers = in_threads(make_replicas)
        left = [n]

        def dies(sender: int, message: Any, left: list[int] = left) -> bool:
            left[0] -= sender == worker and not isinstance(message, Ready)
            return left[0] < 0

        done = when(workers.hub, dies, functools.partial(workers.hub.kill, worker))
        try:
            with flow:
                list(flow.steps(2))
        except FlowError as error:
            text = str(error)
            assert f"worker {worker} is lost" in text
        else:
            assert not done.is_set()
            assert n >= 5
            return
    pytest.fail("the flow did not end")
