"""The policies over mpi4py, by a communicator over gloo that has its methods; and what happens without MPI."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch_ranks import Builder, GlooCommunicator, gloo, net, turn, value_of

from softs_fast.averaging import meeting
from softs_fast.averaging.spawn_policy import (
    AsyncSelectiveAveragingPolicympi4pyFast,
    AsyncSelectiveAveragingPolicympi4pyGeneral,
    AverageAllPolicympi4py,
)
from softs_fast.errors import ConfigError

POLICIES: Any = [AsyncSelectiveAveragingPolicympi4pyFast, AsyncSelectiveAveragingPolicympi4pyGeneral]


def averages(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    model = net(float(2**rank))
    with gloo(rank, size, folder):
        policy = AverageAllPolicympi4py(average_every=2)
        infos = [policy(iteration, model, None, group=GlooCommunicator())[2] for iteration in (0, 1)]
    return value_of(model), infos


def test_all_ranks_of_a_communicator_get_the_mean(tmp_path: Path) -> None:
    infos = [{"averaged_this_iteration": True}, {"averaged_this_iteration": False}]
    assert ranks.run(averages, 3, str(tmp_path)) == [(2.33333, infos)] * 3


def trains(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    folder: str,
    kind: Any,
    metrics: list[float],
    n_iterations: int,
    arguments: dict[str, Any],
) -> dict[str, Any]:
    builder = Builder()
    model: torch.nn.Module = net(float(rank))
    optimizer: Any = None
    infos = []
    with gloo(rank, size, folder):
        policy = kind(builder, model, **{"average_every": 2, "group": GlooCommunicator(), **arguments})
        assert (policy.myrank, policy.comm_size) == (rank, size)
        policy.shutdown()
        ages = []
        for iteration in range(n_iterations):
            with turn(iteration, policy):
                model, optimizer, info = policy(
                    iteration, model, optimizer, metrics[rank] if iteration else None, expose_params=True
                )
            infos.append(info)
            ages.append(policy.age)
        policy.print_time()
        policy.print_stats()
        policy.shutdown()
        policy.shutdown()
    return {
        "infos": infos,
        "value": value_of(model),
        "n_built": builder.n_calls,
        "ages": ages,
        "counts": (
            policy.num_replacements,
            policy.agents_killed,
            policy.total_iterations,
            policy.averaging_ranks,
        ),
        "stats": {name: list(numbers) for name, numbers in policy.stats.items()},
        "timing": {name: len(seconds) for name, seconds in policy.timing.items()},
    }


@pytest.mark.parametrize("kind", POLICIES)
def test_the_worst_rank_is_replaced(tmp_path: Path, kind: Any) -> None:
    arguments = {"replacement_mode": "worst_ratio", "averaging_strategy": "best_only"}
    told = ranks.run(trains, 3, str(tmp_path), kind, [0.1, 0.5, 0.9], 7, arguments)
    worst = told[0]
    assert worst["value"] == 2.0
    assert worst["n_built"] == worst["counts"][0] == worst["counts"][1] >= 1
    assert worst["counts"][2:] == (7, 1)
    assert [told[1]["n_built"], told[2]["n_built"]] == [0, 0]
    info = worst["infos"][4]
    assert info["replacement_mode"] == "worst_ratio"
    assert info["replacement_check_every"] == 2
    assert info["local_metric"] == 0.1
    assert (info["global_min_metric"], info["global_max_metric"]) == (0.1, 0.9)
    replaced = [one for one in worst["infos"] if one["is_replaced"]]
    assert replaced[0]["averaged_this_iteration"]
    assert replaced[0]["num_replacements_so_far"] == 1
    assert "global_min_metric" not in worst["infos"][1]
    assert worst["stats"] == {
        "donors": [1] * len(replaced),
        "num_param_tensors_received": [13] * len(replaced),
    }
    assert worst["timing"]["sa new_agent_model_rebuild"] == len(replaced)
    assert worst["timing"]["sa copy_params_to_buf"] >= 2
    assert worst["timing"]["sa get_params_from_donors"] == len(replaced)


def test_a_rank_below_the_threshold_is_replaced_at_the_cadence(tmp_path: Path) -> None:
    arguments = {"replacement_mode": "threshold", "threshold_metric": 0.3, "average_every": 3}
    told = ranks.run(trains, 3, str(tmp_path), POLICIES[0], [0.1, 0.5, 0.9], 13, arguments)
    replaced = [number for number, info in enumerate(told[0]["infos"]) if info["is_replaced"]]
    assert replaced == [6, 12], (
        "three after the checks in iterations 3 and 9: all report, donors answer, fetched"
    )
    # Half of three ranks is one.
    assert told[0]["stats"]["donors"] == [1, 1]
    assert told[0]["value"] in (1.0, 2.0)


def test_no_rank_is_replaced_if_all_are_below_the_threshold(tmp_path: Path) -> None:
    arguments = {"replacement_mode": "threshold", "threshold_metric": float("inf"), "average_every": 1}
    told = ranks.run(trains, 2, str(tmp_path), POLICIES[0], [0.1, 0.5], 4, arguments)
    assert [one["n_built"] for one in told] == [0, 0]


def test_ranks_live_as_long_as_their_lifetime(tmp_path: Path) -> None:
    arguments = {"replacement_mode": "age", "age_range": (3, 3), "average_every": 100}
    told = ranks.run(trains, 2, str(tmp_path), POLICIES[1], [0.1, 0.5], 24, arguments)
    for one in told:
        replaced = [number for number, info in enumerate(one["infos"]) if info["is_replaced"]]
        assert len(replaced) >= 2
        assert max(one["ages"]) >= 4
        # Copies of donors end beside their iterations, so a replacement may come some of them later, and never sooner.
        assert replaced[0] >= 4
        assert all(later - sooner >= 4 for sooner, later in pairwise(replaced))


def test_one_rank_alone_keeps_its_weights(tmp_path: Path) -> None:
    for mode in ("age", "threshold", "worst_ratio"):
        folder = tmp_path / mode
        folder.mkdir()
        arguments = {"replacement_mode": mode, "threshold_metric": 1.0, "age_range": (0, 0)}
        (one,) = ranks.run(trains, 1, str(folder), POLICIES[0], [0.1], 4, arguments)
        assert one["n_built"] == 0
        assert one["value"] == 0.0


def hides(say: Callable[[Any], None], rank: int, size: int, folder: str) -> int:
    builder = Builder()
    model: torch.nn.Module = net(float(rank))
    optimizer: Any = None
    with gloo(rank, size, folder):
        policy = POLICIES[0](builder, model, 1, replacement_mode="worst_ratio", group=GlooCommunicator())
        for iteration in range(4):
            model, optimizer, _ = policy(iteration, model, optimizer, float(rank), expose_params=False)
            dist.barrier()
        policy.shutdown()
    return builder.n_calls


def test_weights_that_are_not_exposed_are_seen_by_no_rank(tmp_path: Path) -> None:
    assert ranks.run(hides, 2, str(tmp_path)) == [0, 0]


class OneRank:
    """A communicator of one rank."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Allgather(self, own: bytearray, every: bytearray) -> None:
        every[:] = own


@pytest.mark.parametrize(("kind", "argument"), [(POLICIES[0], "check_policy"), (POLICIES[1], "check_agent")])
def test_what_ends_a_rank_can_be_asked(kind: Any, argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    policy = kind(Builder(), net(0.0), 1, age_range=(2, 2), group=OneRank())
    assert (policy.age, policy.max_age, policy.num_replacements, policy.debug_mode) == (0, 2, 0, False)
    assert not policy.is_agent_dying(0.1, 0.5)
    assert policy.is_agent_dying(0.1, 0.5, **{argument: 1})
    assert policy.is_agent_dying(float("nan"), 0.5, 1)
    assert not policy.is_agent_dying(0.5, 0.5, 1)
    model = net(0.0)
    for iteration in range(3):
        policy(iteration, model, None, 0.5)
    assert policy.age == 3
    assert policy.is_agent_dying(0.9, 0.5, **{argument: 0})
    policy.reset_age()
    assert policy.age == 0
    policy.capture_comm("donors", 3)
    policy.capture_comm("donors", 1)
    policy.print_stats()
    policy.print_time()
    printed = capsys.readouterr().out
    assert "donors: min 1, max 3, avg 2.000, len 2\n" in printed
    assert ("replaced 0 out of 3\n" in printed) == (kind is POLICIES[0])
    assert "0.weight: 6 x 4\n" in printed
    assert "sa copy_params_to_buf: " in printed
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
    policy = POLICIES[0](Builder(), net(0.0), 1, group=TwoHosts())
    with pytest.raises(ConfigError, match=r"THREAD_SERIALIZED; ranks of several hosts need THREAD_MULTIPLE"):
        policy(0, net(0.0), None, 0.5)
    policy.shutdown()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"replacement_mode": "worst"}, 'mode is "worst"'),
        ({"averaging_strategy": "sum"}, 'strategy is "sum"'),
        ({"age_range": (5, 1)}, "age_range"),
        ({"poll_interval_s": 0.0}, "poll_interval_s"),
    ],
)
def test_arguments_are_checked_when_a_policy_is_made(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        POLICIES[1](Builder(), net(0.0), 1, group=OneRank(), **arguments)


PROGRAM = """
import torch
from softs_fast.averaging import spawn_policy
for make in (
    lambda: spawn_policy.AverageAllPolicympi4py(1)(0, None, None),
    lambda: spawn_policy.AsyncSelectiveAveragingPolicympi4pyFast(None, None, 1),
):
    try:
        make()
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize("error", ["RuntimeError", "ImportError"])
def test_without_an_mpi_library_the_error_says_what_to_install(tmp_path: Path, error: str) -> None:
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text(f"def __getattr__(name): raise {error}('cannot load MPI library')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.count("no MPI here (") == 2
    assert told.count("pip install mpi4py mpich") == 2
