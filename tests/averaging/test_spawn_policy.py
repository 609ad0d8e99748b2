"""The policies of the page over torch.distributed: arguments, calls, results, and what differs on purpose."""

from __future__ import annotations

import inspect
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch_ranks import Builder, gloo, net, turn, value_of

from softs_fast.averaging import spawn_policy
from softs_fast.averaging.spawn_policy import (
    AsyncSelectiveAveragingPolicy,
    AverageAllPolicy,
    SpawnPolicy,
    _compute_worst_ranks_by_ratio,
)
from softs_fast.errors import ConfigError

# Positional arguments of the page, with their defaults.
SIGNATURES = {
    "SpawnPolicy": "average_every",
    "AverageAllPolicy": "average_every",
    "AverageAllPolicympi4py": "average_every",
    "AsyncSelectiveAveragingPolicy": (
        "model_builder, average_every, replacement_ratio=0.2, averaging_strategy=mean, momentum=0.0, "
        "poll_interval_s=0.01, threshold=None, cooldown=200, timing=None"
    ),
    "AsyncSelectiveAveragingPolicympi4pyFast": (
        "model_builder, model, average_every, threshold_metric=0.0, replacement_ratio=0.2, averaging_strategy=mean, "
        "momentum=0.0, age_range=(50, 150), replacement_mode=age, group=None"
    ),
    "AsyncSelectiveAveragingPolicympi4pyGeneral": (
        "model_builder, model, average_every, threshold_metric=0.0, replacement_ratio=0.2, averaging_strategy=mean, "
        "momentum=0.0, poll_interval_s=0.01, age_range=(50, 150), replacement_mode=age, group=None"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_constructors_take_the_arguments_of_the_page(name: str) -> None:
    parameters = inspect.signature(getattr(spawn_policy, name)).parameters.values()
    positional = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    text = ", ".join(
        one.name if one.default is one.empty else f"{one.name}={one.default}" for one in positional
    )
    assert text == SIGNATURES[name]
    policy = getattr(spawn_policy, name)
    assert issubclass(policy, SpawnPolicy)
    call = list(inspect.signature(policy.__call__).parameters)[1:]
    extra = ["expose_params"] if "mpi4py" in name and name.startswith("Async") else []
    assert call == ["iteration", "model", "optimizer", "local_metric", *extra, "group"]


def test_the_worst_ranks() -> None:
    worst = _compute_worst_ranks_by_ratio
    assert worst([3.0, 1.0, 2.0, 4.0], 0.5) == {1, 2}
    assert worst([3.0, 1.0], 1.0) == {1}
    assert worst([3.0, 1.0, 2.0], 0.01) == {1}
    assert worst([1.0, 1.0, 2.0], 0.4) == {0}
    assert worst([1.0], 0.5) == worst([], 0.5) == set()


def test_nan_is_the_worst_metric_and_a_ratio_of_zero_replaces_none() -> None:
    assert _compute_worst_ranks_by_ratio([1.0, math.nan, 0.5], 0.4) == {1}
    assert _compute_worst_ranks_by_ratio([1.0, 0.5], 0.0) == set()


def averages(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[Any]:
    model = net(float(rank))
    optimizer = torch.optim.SGD(model.parameters())
    policy = AverageAllPolicy(average_every=2)
    assert policy(0, model, optimizer) == (model, optimizer, {}), "no group yet"
    seen = []
    with gloo(rank, size, folder):
        pair = dist.new_group([0, 2])
        for iteration in range(3):
            model_, optimizer_, info = policy(iteration, model, optimizer, group=pair)
            assert model_ is model
            assert optimizer_ is optimizer
            seen.append((value_of(model), info))
        policy(4, model, optimizer, local_metric=0.5)
        seen.append(value_of(model))
        policy.shutdown()
        policy.shutdown()
    return [*seen, model[1].running_mean[0].item()]


def test_a_subgroup_gets_its_own_mean_and_iteration_zero_counts(tmp_path: Path) -> None:
    told = ranks.run(averages, 3, str(tmp_path))
    yes, no = {"averaged_this_iteration": True}, {"averaged_this_iteration": False}
    assert told[0] == [(1.0, yes), (1.0, no), (1.0, yes), 1.0, 0.0]
    assert told[1] == [(1.0, no), (1.0, no), (1.0, no), 1.0, 1.0]
    assert told[2] == [(1.0, yes), (1.0, no), (1.0, yes), 1.0, 2.0]


def trains(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    folder: str,
    metrics: list[float],
    arguments: dict[str, Any],
    n_iterations: int = 7,
) -> dict[str, Any]:
    """Iterations, the first one without metrics; returns what a rank has at the end, and what it was told."""
    builder = Builder()
    model, optimizer = net(float(rank)), None
    held = model
    infos, values = [], []
    with gloo(rank, size, folder):
        policy = AsyncSelectiveAveragingPolicy(builder, **{"average_every": 2, "cooldown": 0, **arguments})
        policy.shutdown()  # before the first call: nothing happens
        for iteration in range(n_iterations):
            with turn(iteration, policy):
                model, optimizer, info = policy(
                    iteration, model, optimizer, local_metric=metrics[rank] if iteration else None
                )
            infos.append(info["averaged_this_iteration"])
            values.append(value_of(model))
        policy.shutdown()
        policy.shutdown()
    assert {type(value) for value in info.values()} == {bool}
    return {
        "infos": infos,
        "values": values,
        "is_held": model is held,
        "n_built": builder.n_calls,
        "state": None if optimizer is None else len(optimizer.state),
        "buffer": model[1].running_mean[0].item(),
    }


def test_the_worst_rank_gets_a_new_model_with_the_mean_of_the_others(tmp_path: Path) -> None:
    told = ranks.run(trains, 3, str(tmp_path), [0.1, 0.5, 0.9], {})
    worst = told[0]
    # All have reported in iteration 2. Rank 0 decides in iteration 3, in which the others answer, and fetches in
    # iteration 4.
    assert worst["infos"] == [False] * 5 + [True, False]
    assert worst["values"] == [0.0] * 5 + [1.5] * 2
    assert worst["n_built"] == 1
    assert worst["buffer"] == 1.5, "buffers are averaged too"
    assert not worst["is_held"]
    assert worst["state"] == 0
    for other, value in ((told[1], 1.0), (told[2], 2.0)):
        assert other["infos"] == [False] * 7
        assert other["n_built"] == 0
        assert other["values"] == [value] * 7


def test_a_model_may_stay_and_the_builder_is_called_all_the_same(tmp_path: Path) -> None:
    told = ranks.run(
        trains, 3, str(tmp_path), [0.1, 0.5, 0.9], {"in_place": True, "averaging_strategy": "best_only"}
    )
    assert told[0]["is_held"]
    assert told[0]["n_built"] >= 1
    assert told[0]["values"][-1] == 2.0


def test_the_better_donor_weighs_more(tmp_path: Path) -> None:
    metrics = [1.0, 2.0, 4.0]
    told = ranks.run(trains, 3, str(tmp_path), metrics, {"averaging_strategy": "weighted_mean"})
    assert told[0]["values"][-1] == pytest.approx((1 * 1.0 + 2 * 2.0) / 3, abs=1e-5)


def test_weights_are_made_anew(tmp_path: Path) -> None:
    told = ranks.run(trains, 2, str(tmp_path), [0.1, 0.5], {"averaging_strategy": "reset_weights"})
    assert told[0]["values"][-1] > 1000.0


def test_momentum_acts(tmp_path: Path) -> None:
    told = ranks.run(trains, 2, str(tmp_path), [0.1, 0.5], {"momentum": 0.75, "cooldown": 100})
    assert told[0]["values"][-1] == 0.25


def test_a_rank_with_a_metric_of_nan_is_replaced_and_does_not_donate(tmp_path: Path) -> None:
    told = ranks.run(trains, 3, str(tmp_path), [0.1, math.nan, 0.9], {"averaging_strategy": "mean"}, 9)
    assert told[0]["n_built"] == told[2]["n_built"] == 0
    assert told[1]["values"][-1] == 1.0


def test_a_threshold_and_a_cooldown_hold_replacements_back(tmp_path: Path) -> None:
    told = ranks.run(trains, 2, str(tmp_path / "t"), [0.1, 0.5], {"threshold": 0.1})
    assert told[0]["n_built"] == 0
    told = ranks.run(trains, 2, str(tmp_path / "c"), [0.1, 0.5], {"average_every": 1, "cooldown": 100})
    assert told[0]["n_built"] == 1


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path) -> None:
    for name in "tc":
        (tmp_path / name).mkdir()


def goes_on_alone(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    model, optimizer = net(float(rank)), None
    with gloo(rank, size, folder):
        policy = AsyncSelectiveAveragingPolicy(Builder(), 1, cooldown=0)
        for iteration in range(2):
            model, optimizer, _ = policy(iteration, model, optimizer, local_metric=float(rank))
            dist.barrier()
        say(os.getpid())
        if rank == 2:
            signal.pause()
        n_averaged = 0
        for iteration in range(2, 2000):
            model, optimizer, info = policy(iteration, model, optimizer, local_metric=float(rank))
            n_averaged += info["averaged_this_iteration"]
        policy.shutdown()
    return n_averaged


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_holds_up_no_other(tmp_path: Path, way: signal.Signals) -> None:
    with ranks.start(goes_on_alone, 3, str(tmp_path)) as running:
        pids = running.results()
        os.kill(pids[2], way)
        told = [running.receive(0), running.receive(1)]
    assert all(isinstance(one, int) for one in told), told


def builds_other_layers(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[str]:
    def build() -> tuple[torch.nn.Module, None]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 5))
        return model, None

    model, optimizer = net(float(rank)), None
    with gloo(rank, size, folder):
        policy = AsyncSelectiveAveragingPolicy(build, 1, cooldown=0)
        for iteration in range(6):
            with turn(iteration, policy):
                model, optimizer, _ = policy(
                    iteration, model, optimizer, local_metric=float(rank) if iteration else None
                )
        policy.shutdown()
    return [type(model).__name__, str(len(list(model.parameters()))), str(model[0].weight[0, 0].item())]


def test_a_builder_may_make_other_layers_and_those_that_fit_are_averaged(tmp_path: Path) -> None:
    told = ranks.run(builds_other_layers, 2, str(tmp_path))
    assert told[0] == ["Sequential", "6", "1.0"]
    assert told[1] == ["Sequential", "5", "1.0"]


def test_without_torch_distributed_nothing_changes() -> None:
    model = net(1.0)
    policy = AsyncSelectiveAveragingPolicy(Builder(), 1)
    assert policy(0, model, None, local_metric=0.5) == (model, None, {})
    policy.shutdown()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"averaging_strategy": "best"}, 'strategy is "best"'),
        ({"replacement_ratio": 1.5}, "replace_worst is 1.5"),
        ({"momentum": 1.5}, "momentum is 1.5"),
        ({"cooldown": -1}, "cooldown is -1"),
        ({"poll_interval_s": 0.0}, "poll_interval_s is 0.0"),
    ],
)
def test_arguments_are_checked_when_a_policy_is_made(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        AsyncSelectiveAveragingPolicy(Builder(), 1, **arguments)


def test_every_policy_has_the_attributes_of_the_page() -> None:
    timing: dict[str, Any] = {}
    policy = AsyncSelectiveAveragingPolicy(Builder(), 0, 0.3, "best_only", 0.1, 0.5, 0.7, 9, timing)
    names = [
        "average_every",
        "replacement_ratio",
        "averaging_strategy",
        "momentum",
        "poll_interval_s",
        "threshold",
    ]
    assert [getattr(policy, name) for name in names] == [1, 0.3, "best_only", 0.1, 0.5, 0.7]
    assert policy.cooldown == 9
    assert timing.keys() == policy.timing.keys()
