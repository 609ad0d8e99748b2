"""All workers in one process have the bits of worker processes, for roles on several workers, too."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from parallel_processes import in_meeting
from small_flow import summary

import softs_fast.dataflow as df

EXAMPLES = Path(__file__).parents[3] / "examples"


def in_one(module: str, function: str, **arguments: Any) -> df.Flow:
    return df.Flow.in_processes(f"{module}:{function}", arguments, workers=1)


def compare(n_steps: int, module: str, function: str, **arguments: Any) -> list[Any]:
    """Compare all numbers, digests, tags' effects, drops and ids; returns them."""
    found = summary(in_one(module, function, **arguments), n_steps)
    flow, workers = in_meeting(module, function, **arguments)
    assert summary(flow, n_steps) == found
    assert not workers.killed
    assert found
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        {"layout": "dp2", "n": 15},  # a last step of one group less
        {"layout": "dp3", "on": "2 0 1", "rows": 10, "n": 11, "uneven": "pad"},
        {"layout": "dp4", "gen_layout": "dp2", "shift": 1, "n": 9},  # fewer groups than ranks
    ],
    ids=lambda arguments: arguments["layout"],
)
def test_losses_weights_and_digests_are_those_of_processes(arguments: dict[str, Any]) -> None:
    steps = compare(5, "ranks_flow", "make_flow", **arguments)
    trained = [numbers for _, _, calls in steps for name, _, _, numbers in calls if name == "actor.train"]
    assert len({one["weights"] for one in trained}) == len(trained) == len(steps)


def test_digests_are_those_of_rows_that_are_cut_by_length() -> None:
    compare(3, "parallel_flow", "make_read", layout="dp3", n_workers=3)


def test_follower_with_other_rows_and_single_workers() -> None:
    compare(3, "small_flow", "make_flow")


def test_ppo_of_the_example_with_an_actor_and_a_generator_on_two_workers_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    importlib.import_module("ppo_tiny")
    n_threads = torch.get_num_threads()
    compare(3, "ppo_tiny", "make_flow", seed=0, max_age=0, n_workers=4)
    torch.set_num_threads(n_threads)


def test_rows_that_are_brought_before_a_call() -> None:
    compare(2, "transfer_flow", "make_transfers", layout="dp2")


def test_a_journal_of_one_process_goes_on_in_several(tmp_path: Path) -> None:
    expected = summary(in_one("ranks_flow", "make_flow"), 4)
    begun = summary(in_one("ranks_flow", "make_flow", journal=str(tmp_path)), 2)
    flow, workers = in_meeting("ranks_flow", "make_flow", journal=str(tmp_path))
    assert begun + summary(flow, 4) == expected
    assert not workers.killed
