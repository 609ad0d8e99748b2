"""The policies of the page: arguments, calls, results, and what differs on purpose; over MPI by a communicator of gloo."""

from __future__ import annotations

import inspect
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch_ranks import Builder, GlooCommunicator, gloo, net, turn, value_of

from softs_fast.averaging import Rules, Schedule, Takeover, meeting, spawn_policy
from softs_fast.averaging.spawn_policy import (
    AsyncSelectiveAveragingPolicy,
    AsyncSelectiveAveragingPolicympi4pyFast,
    AsyncSelectiveAveragingPolicympi4pyGeneral,
    AverageAllPolicy,
    AverageAllPolicympi4py,
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
    assert worst([1.0, math.nan, 0.5], 0.4) == {1}
    assert worst([1.0, 0.5], 0.0) == set()


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


def averages_by_mpi(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    model = net(float(2**rank))
    with gloo(rank, size, folder):
        policy = AverageAllPolicympi4py(average_every=2)
        infos = [policy(iteration, model, None, group=GlooCommunicator())[2] for iteration in (0, 1)]
    return value_of(model), infos


def test_all_ranks_of_a_communicator_get_the_mean(tmp_path: Path) -> None:
    infos = [{"averaged_this_iteration": True}, {"averaged_this_iteration": False}]
    assert ranks.run(averages_by_mpi, 3, str(tmp_path)) == [(2.33333, infos)] * 3


def trains(
    say: Callable[[Any], None], rank: int, size: int, folder: str, make: Callable[..., Any], by_mpi: bool
) -> dict[str, Any]:
    """Seven iterations, the first one without metrics; returns what a rank has at the end, and what it was told."""
    builder = Builder()
    model, optimizer = net(float(rank)), None
    held = model
    infos, values = [], []
    with gloo(rank, size, folder):
        policy = make(builder, model, 2, group=GlooCommunicator()) if by_mpi else make(builder, 2)
        policy.shutdown()  # before the first call: nothing happens
        for iteration in range(7):
            with turn(iteration, policy):
                metric = (0.1, 0.5, 0.9)[rank] if iteration else None
                model, optimizer, info = policy(iteration, model, optimizer, metric)
            infos.append(info)
            values.append(value_of(model))
        policy.shutdown()
        policy.shutdown()
    names = ("num_replacements", "agents_killed", "total_iterations", "averaging_ranks")
    return {
        "infos": infos,
        "values": values,
        "is_held": model is held,
        "n_built": builder.n_calls,
        "state": None if optimizer is None else len(optimizer.state),
        "buffer": model[1].running_mean[0].item(),
        "timing": {name: len(seconds) for name, seconds in policy.timing.items()},
        "counts": [getattr(policy, name) for name in names] if by_mpi else [],
        "stats": {name: list(numbers) for name, numbers in policy.stats.items()} if by_mpi else {},
    }


def over_torch(builder: Builder, average_every: int) -> AsyncSelectiveAveragingPolicy:
    return AsyncSelectiveAveragingPolicy(builder, average_every, cooldown=0)


def over_torch_in_place(builder: Builder, average_every: int) -> AsyncSelectiveAveragingPolicy:
    return AsyncSelectiveAveragingPolicy(builder, average_every, cooldown=0, in_place=True)


@pytest.mark.parametrize("make", [over_torch, over_torch_in_place])
def test_the_worst_rank_gets_the_mean_of_the_others(tmp_path: Path, make: Callable[..., Any]) -> None:
    told = ranks.run(trains, 3, str(tmp_path), make, False)
    worst = told[0]
    # All have reported in iteration 2. Rank 0 decides in iteration 3, in which the others answer, and fetches in
    # iteration 4.
    assert worst["infos"] == [{"averaged_this_iteration": n == 5} for n in range(7)]
    assert worst["values"] == [0.0] * 5 + [1.5] * 2
    assert worst["n_built"] == 1, "also where the model stays"
    assert worst["buffer"] == 1.5, "buffers are averaged too"
    assert worst["is_held"] == (make is over_torch_in_place)
    assert worst["state"] == (None if make is over_torch_in_place else 0)
    for other, value in ((told[1], 1.0), (told[2], 2.0)):
        assert other["infos"] == [{"averaged_this_iteration": False}] * 7
        assert other["n_built"] == 0
        assert other["values"] == [value] * 7


def over_mpi(*arguments: Any, **named: Any) -> AsyncSelectiveAveragingPolicympi4pyFast:
    return AsyncSelectiveAveragingPolicympi4pyFast(
        *arguments, **named, replacement_mode="worst_ratio", averaging_strategy="best_only"
    )


def test_the_worst_rank_of_a_communicator_is_replaced(tmp_path: Path) -> None:
    told = ranks.run(trains, 3, str(tmp_path), over_mpi, True)
    worst = told[0]
    n_replaced = worst["n_built"]
    assert worst["values"][-1] == 2.0
    assert n_replaced >= 1
    assert worst["counts"] == [n_replaced, n_replaced, 7, 1]
    assert [told[1]["n_built"], told[2]["n_built"]] == [0, 0]
    first = next(one for one in worst["infos"] if one["is_replaced"])
    assert first["averaged_this_iteration"]
    assert first["num_replacements_so_far"] == 1
    assert sum(one["is_replaced"] for one in worst["infos"]) == n_replaced
    info = worst["infos"][4]
    assert (info["replacement_mode"], info["replacement_check_every"]) == ("worst_ratio", 2)
    assert (info["local_metric"], info["global_min_metric"], info["global_max_metric"]) == (0.1, 0.1, 0.9)
    assert "global_min_metric" not in worst["infos"][1]
    assert worst["stats"] == {"donors": [1] * n_replaced, "num_param_tensors_received": [13] * n_replaced}
    n_published = worst["timing"].pop("sa copy_params_to_buf")
    assert n_published >= 2
    assert len(worst["timing"]) == 3
    assert set(worst["timing"].values()) == {n_replaced}


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


def test_without_torch_distributed_nothing_changes() -> None:
    model = net(1.0)
    policy = AsyncSelectiveAveragingPolicy(Builder(), 1)
    assert policy(0, model, None, local_metric=0.5) == (model, None, {})
    policy.shutdown()


class OneRank:
    """A communicator of one rank."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Allgather(self, own: bytearray, every: bytearray) -> None:
        every[:] = own


def test_arguments_become_rules_and_attributes_of_the_page() -> None:
    timing: dict[str, Any] = {}
    policy = AsyncSelectiveAveragingPolicy(Builder(), 0, 0.3, "best_only", 0.1, 0.5, 0.7, 9, timing, seed=4)
    names = "average_every replacement_ratio averaging_strategy momentum poll_interval_s threshold cooldown"
    assert [getattr(policy, name) for name in names.split()] == [1, 0.3, "best_only", 0.1, 0.5, 0.7, 9]
    assert timing.keys() == policy.timing.keys()
    assert policy._rules == Rules(every=1, strategy="best_only", replace_worst=0.3, threshold=0.7, cooldown=9)
    assert policy._takeover == Takeover(momentum=0.1, optimizer_state="fresh", in_place=False)
    assert policy._schedule == Schedule(publish_every=1, seed=4)


@pytest.mark.parametrize(
    ("mode", "rules"),
    [
        ("age", Rules(every=1, mode="age", replace_worst=0.3, age_range=(5, 9), donor_share=0.5)),
        ("threshold", Rules(3, "threshold", "mean", 0.3, 0.7, (5, 9), donor_share=0.5)),
        ("worst_ratio", Rules(3, "worst_ratio", "mean", 0.3, None, (5, 9), donor_share=0.5)),
    ],
)
def test_each_mode_over_mpi_has_its_rules(mode: Any, rules: Rules) -> None:
    make = AsyncSelectiveAveragingPolicympi4pyGeneral
    policy = make(Builder(), net(0.0), 3, 0.7, 0.3, "mean", 0.1, 0.5, (5, 9), mode, OneRank())
    assert policy._rules == rules
    names = "myrank comm_size threshold_metric replacement_mode age_range poll_interval_s"
    assert [getattr(policy, name) for name in names.split()] == [0, 1, 0.7, mode, (5, 9), 0.5]


@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        (AsyncSelectiveAveragingPolicympi4pyFast, "check_policy"),
        (AsyncSelectiveAveragingPolicympi4pyGeneral, "check_agent"),
    ],
)
def test_what_ends_a_rank_can_be_asked(kind: Any, argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    policy = kind(Builder(), net(0.0), 1, age_range=(2, 2), group=OneRank())
    assert (policy.age, policy.max_age, policy.num_replacements, policy.debug_mode) == (0, 2, 0, False)
    assert not policy.is_agent_dying(0.1, 0.5)
    assert policy.is_agent_dying(0.1, 0.5, **{argument: 1})
    assert policy.is_agent_dying(float("nan"), 0.5, 1)
    assert not policy.is_agent_dying(0.5, 0.5, 1)
    model = net(0.0)
    policy(0, model, None, 0.5, expose_params=False)
    assert not policy.timing["sa copy_params_to_buf"], "it shows no weights"
    for iteration in (1, 2):
        policy(iteration, model, None, 0.5)
    assert policy.timing["sa copy_params_to_buf"]
    assert policy.age == 3
    assert policy.is_agent_dying(0.9, 0.5, **{argument: 0})
    policy.reset_age()
    assert policy.age == 0
    policy.capture_comm("donors", 3)
    policy.capture_comm("donors", 1)
    policy.print_stats()
    policy.print_time()
    printed = capsys.readouterr().out
    assert "donors: min 1, max 3, avg 2.000, len 2\nreplaced 0 out of 3\n" in printed
    assert "sa copy_params_to_buf: " in printed
    for number in range(10_001):
        policy.capture_comm("donors", number)
    assert (len(policy.stats["donors"]), policy.stats["donors"][0]) == (10_000, 1)
    policy.shutdown()


class TwoHosts(OneRank):
    """Two ranks, of which the other one is of another host."""

    def Get_size(self) -> int:
        return 2

    def Allgather(self, own: bytearray, every: bytearray) -> None:
        greeting = json.loads(own.rstrip(b"\0"))
        text = json.dumps(greeting | {"host": "another"}).encode()
        every[:] = own + text + bytes(len(own) - len(text))

    def Dup(self) -> Any:
        raise AssertionError("MPI that cannot serve threads is used no further")


def test_ranks_of_several_hosts_need_an_mpi_that_serves_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = SimpleNamespace(THREAD_SINGLE=0, THREAD_FUNNELED=1, THREAD_SERIALIZED=2, Query_thread=lambda: 2)
    monkeypatch.setattr(meeting, "load_mpi", lambda: mpi)
    policy = AsyncSelectiveAveragingPolicympi4pyFast(Builder(), net(0.0), 1, group=TwoHosts())
    with pytest.raises(ConfigError, match=r"THREAD_SERIALIZED; ranks of several hosts need THREAD_MULTIPLE"):
        policy(0, net(0.0), None, 0.5)
    policy.shutdown()


MAKERS: list[Callable[..., Any]] = [
    lambda builder, model, every, **named: AsyncSelectiveAveragingPolicy(builder, every, **named),
    partial(AsyncSelectiveAveragingPolicympi4pyGeneral, group=OneRank()),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"averaging_strategy": "best"}, 'strategy is "best"'),
        ({"replacement_ratio": 1.5}, "replace_worst is 1.5"),
        ({"momentum": 1.5}, "momentum is 1.5"),
        ({"poll_interval_s": 0.0}, "poll_interval_s is 0.0"),
    ],
)
def test_arguments_are_checked_when_a_policy_is_made(
    make: Callable[..., Any], arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make(Builder(), net(0.0), 1, **arguments)


@pytest.mark.parametrize("error", [RuntimeError, ImportError])
def test_without_an_mpi_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(name: str) -> Any:
        raise error("cannot load MPI library")

    package = ModuleType("mpi4py")
    package.__getattr__ = fail  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    for make in (
        lambda: AverageAllPolicympi4py(1)(0, net(0.0), None),
        lambda: AsyncSelectiveAveragingPolicympi4pyFast(Builder(), net(0.0), 1),
    ):
        with pytest.raises(ImportError, match=r"no MPI here \(.*pip install mpi4py mpich"):
            make()
