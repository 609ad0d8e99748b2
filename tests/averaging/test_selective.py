"""The engine of selective averaging, in virtual time: when weights change, which ones, and what stays."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from memory_board import MemoryBoard, World
from team import NOW, RULES, Team, net
from torch.optim.swa_utils import AveragedModel

from softs_fast.averaging import Event, Rules, Schedule, SelectiveAveraging, Takeover
from softs_fast.errors import ConfigError

# All ranks decide of the same reports.
PATIENT = Schedule(publish_every=1, max_wait_steps=1)


def test_the_worst_rank_takes_the_weights_of_the_best_in_place() -> None:
    team = Team(3, schedule=PATIENT)
    team.meet()
    model = team.models[0]
    held = {name: weight for name, weight in model.named_parameters()}
    ema = AveragedModel(model)
    scheduler = torch.optim.lr_scheduler.StepLR(team.optimizers[0], 1)
    calls: list[int] = []
    model.one.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        assert team.step(0.1, 0.5, 0.7) == [None, None, None]
        assert team.value(0) == 0.0, "it has decided, and its donor answers"
    first, *others = team.step(0.1, 0.5, 0.7)
    assert others == [None, None]
    assert first is not None
    assert first.waited_steps == 2
    assert first.reason == "metric 0.1 is among the worst 1 of 3; best_only of rank 2"
    assert [(one.rank, one.version, one.step, one.age_s) for one in first.donations] == [(2, 3, 3, 0.0)]
    assert first.metric == 0.1
    assert team.value(0) == 2.0
    assert model.norm.num_batches_tracked.item() == 2
    assert all(weight is held[name] for name, weight in model.named_parameters())
    assert model.two.weight is model.one.weight
    model.one(torch.ones(1, 3)).sum().backward()
    assert calls == [1]
    assert len(team.optimizers[0].state) == len(held), "the optimizer keeps its state"
    team.optimizers[0].step()
    assert model.one.weight.detach().mean().item() != 2.0
    scheduler.step()
    ema.update_parameters(model)


def test_mean_and_weighted_mean() -> None:
    for strategy, expected in (("mean", 2.0), ("weighted_mean", (1 * 1 + 2 * 3 + 3 * 2) / 6)):
        team = Team(4, Rules(every=1, replace_worst=0.01, strategy=strategy))
        for _ in range(3):
            team.step(0.1, 0.2, 0.4, 0.3)
        assert team.value(0) == round(expected, 5)
        assert team.models[0].norm.running_mean[0].item() == pytest.approx(expected)
        assert team.models[0].norm.num_batches_tracked.item() == 3, "integers take the largest"


def test_a_replaced_rank_counts_anew() -> None:
    team = Team(2, Rules(every=1, burn_in=2, cooldown=4, strategy="best_only"))
    events = [team.step(0.1, 0.5)[0] for _ in range(9)]
    # Rank 1 is no donor before its second step.
    assert [step for step, event in enumerate(events, 1) if event] == [3, 8]
    assert team.ranks[0].counters["replaced"] == 2
    # Others see in its next step that its snapshot is of a rank that has just begun.
    assert [one.trained for one in team.world.snapshots[0]] == [1, 2, 1, 2, 3, 4, 1]
    assert {one.metric for one in team.world.snapshots[0]} == {0.1}


def test_a_metric_of_the_weights_before_does_not_count() -> None:
    team = Team(2)
    events = [team.step(0.1, 0.5)[0] for _ in range(2)]
    assert events[1] is not None
    assert [team.step(None, 0.5) for _ in range(3)] == [[None, None]] * 3
    assert [bool(team.step(0.1, 0.5)[0]) for _ in range(2)] == [False, True]


def test_by_age_each_rank_is_replaced_after_its_lifetime() -> None:
    rules = Rules(every=1, mode="age", age_range=(3, 3), strategy="best_only")
    team = Team(2, rules, PATIENT, build=made(7.0), takeover=Takeover(optimizer_state="fresh"))
    steps: list[list[int]] = [[], []]
    for step in range(24):
        for event in team.step(0.1, 0.5):
            if event is not None:
                steps[event.rank].append(step)
    for of_rank in steps:
        assert len(of_rank) >= 2
        assert of_rank[0] >= 4
        assert all(later - sooner >= 4 for sooner, later in pairwise(of_rank))


def test_the_next_rank_does_not_move_up_when_the_worst_is_replaced() -> None:
    team = Team(4, schedule=PATIENT)
    team.meet()
    events = [event for _ in range(6) for event in team.step(0.1, 0.2, 0.3, 0.4) if event]
    assert {event.rank for event in events} == {0}


def test_a_rank_with_weights_that_are_not_finite_is_replaced_and_donates_to_no_rank() -> None:
    team = Team(3, Rules(every=1, replace_worst=0.01, strategy="mean"), PATIENT)
    team.meet()
    with torch.no_grad():
        team.models[2].log_z.fill_(math.nan)
    # Rank 2 claims the best metric, but counts as the worst.
    events = [team.step(0.1, 0.5, 0.9) for _ in range(4)]
    assert [event for event, *_ in events] == [None] * 4, (
        "rank 0 sees the metric as NaN, itself not as the worst"
    )
    assert [bool(event) for *_, event in events] == [False, False, False, True]
    event = events[3][2]
    assert event is not None
    assert event.reason == "metric nan is among the worst 1 of 3; mean of rank 0, 1"
    assert team.value(2) == 0.5
    assert [math.isnan(one.metric or 0.0) for one in team.world.snapshots[2]] == [False, True, True, True]


def test_snapshots_are_no_closer_than_twice_the_time_of_a_copy() -> None:
    team = Team(1, Rules(every=1), Schedule(publish_every=1))
    team.world.copy_s = 5.0
    starts = []
    for _ in range(40):
        n = len(team.world.snapshots.get(0, ()))
        team.step(0.5)
        if len(team.world.snapshots[0]) > n:
            starts.append(team.world.now_s - 5.0)
    gaps = [after - before for before, after in pairwise(starts)]
    assert len(gaps) > 3
    assert min(gaps) >= 10.0


@pytest.mark.parametrize(
    ("rule", "mean", "n_batches"), [("average", 3.0, 5), ("best", 1.0, 1), ("own", 0.0, 0)]
)
def test_buffers_by_rule(rule: Any, mean: float, n_batches: int) -> None:
    rules = Rules(every=1, replace_worst=0.01, strategy="weighted_mean")
    team = Team(3, rules, takeover=Takeover(buffers=rule))
    team.models[2].norm.running_mean.fill_(7.0)
    team.models[2].norm.num_batches_tracked.fill_(5)
    for _ in range(4):  # a step more where the buffers are fetched alone
        team.step(0.1, 0.5, 0.4)
    # Two thirds of rank 1, which is the best, and a third of rank 2.
    assert team.value(0) == 1.33333
    assert team.models[0].norm.running_mean[0].item() == pytest.approx(mean)
    assert team.models[0].norm.num_batches_tracked.item() == n_batches


def test_momentum_keeps_a_share() -> None:
    team = Team(2, takeover=Takeover(momentum=0.75))
    for _ in range(3):
        team.step(0.1, 0.5)
    assert team.value(0) == 0.25
    assert team.models[0].norm.num_batches_tracked.item() == 1


def steps_of(optimizer: torch.optim.Optimizer) -> set[float]:
    return {state["step"].item() for state in optimizer.state.values()}


@pytest.mark.parametrize(("rule", "expected"), [("keep", {1.0}), ("fresh", set()), ("donor", {3.0})])
def test_the_state_of_the_optimizer_by_rule(rule: Any, expected: set[float]) -> None:
    team = Team(2, takeover=Takeover(optimizer_state=rule))
    for state in team.optimizers[1].state.values():
        state["step"].fill_(3.0)
        state["exp_avg"].fill_(5.0)
    for _ in range(3):
        team.step(0.1, 0.5)
    assert team.value(0) == 1.0
    assert steps_of(team.optimizers[0]) == expected
    if rule == "donor":
        assert all(state["exp_avg"].mean() == 5.0 for state in team.optimizers[0].state.values())


@pytest.mark.parametrize("rule", ["keep", "fresh", "donor"])
def test_what_is_not_accepted_is_undone(rule: Any) -> None:
    seen: list[tuple[float, Event]] = []
    replaced: list[Event] = []

    def accept(event: Event) -> bool:
        seen.append((team.value(event.rank), event))
        return len(seen) > 1

    team = Team(
        2,
        Rules(every=1, cooldown=3, strategy="best_only"),
        accept=accept,
        on_replace=replaced.append,
        takeover=Takeover(optimizer_state=rule),
    )
    for state in team.optimizers[1].state.values():
        state["step"].fill_(3.0)
    event = [team.step(0.1, 0.5)[0] for _ in range(2)][-1]
    assert event is not None
    assert not event.is_kept
    assert [value for value, _ in seen] == [1.0]
    assert team.value(0) == 0.0
    assert steps_of(team.optimizers[0]) == {1.0}
    assert replaced == []
    assert team.ranks[0].counters["rejected"] == 1
    assert team.ranks[0].counters["replaced"] == 0
    # The next try is after the cooldown, and is kept.
    events = [team.step(0.1, 0.5)[0] for _ in range(4)]
    assert events[:3] == [None, None, None]
    assert events[3] is not None
    assert replaced == [events[3]]
    assert team.value(0) == 1.0


def test_a_callback_gets_the_config_of_the_donor_and_its_own_chance() -> None:
    found = []

    def explore(event: Event) -> None:
        found.append((event.config["lr"], event.chance.choice([0.8, 1.2]), event.chance.random()))

    for _ in range(2):
        team = Team(3, schedule=PATIENT, on_replace=explore)
        team.meet()
        team.ranks[2].config = {"lr": 0.5}
        for _ in range(3):
            team.step(0.1, 0.5, 0.7)
    assert found[0][0] == 0.5
    assert found[0] == found[1], "the same seed gives the same numbers"


def made(value: float) -> Callable[[], tuple[torch.nn.Module, torch.optim.Optimizer]]:
    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = net(value)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    return build


def test_weights_are_made_anew_in_place() -> None:
    team = Team(2, Rules(every=1, strategy="reset_weights"), build=made(7.0))
    held = team.models[0].one.weight
    events = [team.step(0.1, 0.5)[0] for _ in range(2)]
    assert events[1] is not None
    assert events[1].donations == ()
    assert events[1].config == {}
    assert team.value(0) == 7.0
    assert team.models[0].one.weight is held
    assert team.ranks[0].model is team.models[0]


def test_a_model_that_is_built_takes_the_place_of_the_old_one() -> None:
    team = Team(2, build=made(7.0), takeover=Takeover(in_place=False, optimizer_state="fresh"))
    for _ in range(3):
        team.step(0.1, 0.5)
    engine = team.ranks[0]
    assert engine.model is not team.models[0]
    assert isinstance(engine.optimizer, torch.optim.SGD)
    assert engine.optimizer.param_groups[0]["params"][0] is next(engine.model.parameters())
    assert {float(weight.detach().mean()) for weight in engine.model.parameters()} == {1.0}
    assert engine.model.norm.num_batches_tracked.item() == 1


def test_a_model_that_was_built_and_is_not_accepted_goes_again() -> None:
    team = Team(
        2,
        build=made(7.0),
        takeover=Takeover(in_place=False, optimizer_state="fresh"),
        accept=lambda event: False,
    )
    for _ in range(3):
        team.step(0.1, 0.5)
    assert team.ranks[0].counters["rejected"] == 1
    assert team.ranks[0].model is team.models[0]
    assert team.ranks[0].optimizer is team.optimizers[0]
    assert team.value(0) == 0.0


def test_other_layers_are_shared_as_they_were_last() -> None:
    def build() -> tuple[torch.nn.Module, None]:
        model = torch.nn.Module()
        model.one = torch.nn.Linear(3, 3)
        model.extra = torch.nn.Linear(3, 1)
        return model, None

    team = Team(2, build=build, takeover=Takeover(in_place=False, optimizer_state="fresh"))
    for _ in range(2):
        team.step(0.1, 0.5)
    new = team.ranks[0].model
    assert new is not team.models[0]
    assert new.one.weight.detach().unique().tolist() == [1.0]
    with torch.no_grad():
        new.one.weight.fill_(5.0)
    team.step(0.1, 0.5)
    last = team.world.snapshots[0][-1].tensors
    assert last.keys() == team.world.snapshots[1][-1].tensors.keys()
    assert last["model/one.weight"].unique().tolist() == [5.0]
    assert last["model/log_z"].item() == 1.0


def test_ranks_with_other_tensors_take_no_part_and_a_warning_names_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    team = Team(2)
    other = torch.nn.Linear(2, 2)
    engine = SelectiveAveraging(other, None, RULES, meet=MemoryBoard(team.world, 7), schedule=NOW)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            engine.step(0.9)
            team.step(0.1, 0.5)
    assert team.value(0) == 1.0
    texts = [record.getMessage() for record in caplog.records]
    assert sum(text.startswith("rank 7 takes no part in averages: ") for text in texts) == 2, "once per rank"


def test_a_rank_that_can_average_with_none_of_the_others_says_so_and_why() -> None:
    team = Team(2)
    other = SelectiveAveraging(
        torch.nn.Linear(2, 2), None, RULES, meet=MemoryBoard(team.world, 7), schedule=NOW
    )
    team.meet()
    for _ in range(10):
        other.step(0.9)
    assert other.counters["strangers"] == 2
    with pytest.raises(ConfigError, match=r"rank 7 averages with no other rank: .*\(rank 0: .*; rank 1: "):
        other.step(0.9)
    team.step(0.1, 0.5)
    assert [rank.counters["strangers"] for rank in team.ranks] == [1, 1]


def test_a_state_of_other_rules_or_another_seed_is_refused() -> None:
    [rank] = Team(1, Rules(mode="age", age_range=(3, 4)), Schedule(seed=5)).ranks
    state = json.loads(json.dumps(rank.state_dict()))
    [other] = Team(1, Rules(mode="age", age_range=(3, 5)), Schedule(seed=6)).ranks
    with pytest.raises(ConfigError, match=r"the state has age_range \[3, 4\], not \(3, 5\), seed 5, not 6;"):
        other.load_state_dict({**state, "n_steps": 7})
    assert other.counters["steps"] == 0
    rank.load_state_dict(state)
    other.load_state_dict({name: value for name, value in state.items() if name not in ("rules", "seed")})


def test_smoothing_weighs_old_metrics() -> None:
    team = Team(1, Rules(every=1), Schedule(publish_every=1, smoothing=0.5))
    for metric in (1.0, 3.0, None, math.nan, 5.0):
        team.step(metric)
    seen = [snapshot.metric for snapshot in team.world.snapshots[0]]
    assert seen[:3] == [1.0, 2.0, 2.0]
    assert math.isnan(seen[3] or 0.0)
    assert seen[4] == 5.0


def test_patience_counts_checks_and_begins_anew_after_a_replacement() -> None:
    rules = Rules(every=2, strategy="best_only", patience=2)
    team = Team(2, rules)
    metrics = [0.1, 0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1]
    events = [team.step(metric, 0.5)[0] for metric in metrics]
    # Bad in the checks of steps 2, 6 and 8, good in step 4.
    assert [event is not None for event in events] == [False] * 8
    state = team.ranks[0].state_dict()
    assert state["n_bad"] == 2
    assert team.step(0.1, 0.5)[0] is not None
    assert team.ranks[0].state_dict()["n_bad"] == 0
    assert [team.step(0.1, 0.5)[0] for _ in range(3)] == [None] * 3
    team.ranks[0].load_state_dict(state)
    assert team.ranks[0].state_dict() == state


def test_it_goes_on_where_it_was_saved() -> None:
    rules = Rules(every=1, cooldown=5, strategy="best_only")
    team = Team(2, rules)
    for _ in range(2):
        team.step(0.1, 0.5)
    state = team.ranks[0].state_dict()
    assert [one["step"] for one in state["lineage"]] == [2]
    assert state["lineage"][0]["donors"] == [[1, 1, 1.0]]
    again = SelectiveAveraging(
        team.models[0], None, rules, meet=MemoryBoard(team.world, 0), schedule=NOW, clock=team.world.clock
    )
    again.load_state_dict(state)
    assert again.state_dict() == state
    steps = []
    for _ in range(6):
        team.ranks[1].step(0.5)
        steps.append(again.step(0.1))
    assert [step for step, event in enumerate(steps, 3) if event] == [8]


def test_shutdown_twice_and_before_the_first_step() -> None:
    board = MemoryBoard(World(), 0)
    with SelectiveAveraging(net(1.0), None, RULES, meet=board) as engine:
        assert engine.counters["replaced"] == 0
        engine.shutdown()
        engine.shutdown()
        with pytest.raises(ConfigError, match="was shut down"):
            engine.step(0.5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rules": Rules(strategy="reset_weights")}, "need build="),
        ({"takeover": Takeover(in_place=False, optimizer_state="fresh")}, "need build="),
        ({"rules": Rules(), "takeover": Takeover(optimizer_state="donor")}, 'needs the strategy "best_only"'),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Team(1, **{"rules": RULES, **arguments})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Takeover(momentum=1.0), "momentum is"),
        (lambda: Takeover(buffers="all"), "buffers is"),  # type: ignore[arg-type]
        (lambda: Takeover(optimizer_state="all"), "optimizer_state is"),  # type: ignore[arg-type]
        (lambda: Takeover(in_place=False), 'must be "fresh"'),
        (lambda: Schedule(publish_every=0), "publish_every is 0"),
        (lambda: Schedule(max_wait_steps=-1), "max_wait_steps is -1"),
        (lambda: Schedule(smoothing=1.0), "smoothing is"),
    ],
)
def test_settings_are_checked(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()
