"""The example of PPO with several workers: the same bits as in one process, and rows that are not too old."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_processes import in_meeting
from flow_threads import in_threads
from flows import summary

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def make_flow(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    n_threads = torch.get_num_threads()
    yield importlib.import_module("ppo_tiny").make_flow
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_synchronous_steps_have_the_bits_of_one_process(make_flow: Any, n_workers: int) -> None:
    flow, _ = in_threads(functools.partial(make_flow, 0, 0, n_workers))
    assert summary(flow, 2) == summary(make_flow(0, 0), 2)


def test_rows_of_generation_beside_training_are_not_too_old(make_flow: Any) -> None:
    flow, _ = in_threads(functools.partial(make_flow, 0, 1))
    with flow:
        assert [step.age_max <= flow.age_bound == 1 for step in flow.steps(5)] == [True] * 5


@pytest.mark.parametrize("max_age", [0, 1])
def test_actor_and_generator_on_two_workers_each_learn(make_flow: Any, max_age: int) -> None:
    flow, workers = in_meeting("ppo_tiny", "make_flow", seed=0, max_age=max_age, n_workers=4)
    with flow:
        steps = list(flow.steps(8))
    assert not workers.killed
    assert steps[-1]["actor.train"]["reward"] > 2 * steps[0]["actor.train"]["reward"]
    assert all(step.age_max <= flow.age_bound == max_age for step in steps)
