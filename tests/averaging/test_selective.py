"""The engine of selective averaging, in virtual time: when weights change, which ones, and what stays."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from memory_board import MemoryBoard, World
from torch.optim.swa_utils import AveragedModel

from softs_fast.averaging import Event, Rules, Schedule, SelectiveAveraging, Takeover
from softs_fast.errors import ConfigError

# A check in each step, of what is there.
NOW = Schedule(publish_every=1, max_wait_steps=0)
RULES = Rules(every=1, replace_worst=0.01, strategy="best_only")


def net(value: float) -> torch.nn.Module:
    """A model with a weight, a scalar, batch norm and tied weights, all of one value."""
    model = torch.nn.Module()
    model.one = torch.nn.Linear(3, 3)
    model.two = torch.nn.Linear(3, 3, bias=False)
    model.two.weight = model.one.weight
    model.norm = torch.nn.BatchNorm1d(3)
    model.log_z = torch.nn.Parameter(torch.tensor(0.0))
    with torch.no_grad():
        for tensor in (*model.parameters(), model.norm.running_mean):
            tensor.fill_(value)
        model.norm.num_batches_tracked.fill_(int(value))
    return model


class Team:
    """Ranks in one process that make their steps in turn."""

    def __init__(self, n: int, rules: Rules = RULES, schedule: Schedule = NOW, **arguments: Any) -> None:
        self.world = World()
        self.models = [net(float(rank)) for rank in range(n)]
        self.optimizers = [torch.optim.Adam(model.parameters()) for model in self.models]
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for weight in model.parameters():
                weight.grad = torch.zeros_like(weight)
            optimizer.step()
        self.ranks = [
            SelectiveAveraging(
                model,
                optimizer,
                rules,
                meet=MemoryBoard(self.world, rank),
                schedule=schedule,
                clock=self.world.clock,
                **arguments,
            )
            for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True))
        ]

    def step(self, *metrics: float | None) -> list[Event | None]:
        self.world.now_s += 1.0
        return [rank.step(metric) for rank, metric in zip(self.ranks, metrics, strict=True)]

    def value(self, rank: int) -> float:
        (value,) = {round(float(weight.detach().mean()), 5) for weight in self.models[rank].parameters()}
        return value


def test_the_worst_rank_takes_the_weights_of_the_best_in_place() -> None:
    team = Team(3)
    model = team.models[0]
    held = {name: weight for name, weight in model.named_parameters()}
    ema = AveragedModel(model)
    scheduler = torch.optim.lr_scheduler.StepLR(team.optimizers[0], 1)
    calls: list[int] = []
    model.one.register_forward_hook(lambda *_: calls.append(1))
    assert team.step(0.1, 0.5, 0.7) == [None, None, None]  # rank 0 saw no other rank
    first, *others = team.step(0.1, 0.5, 0.7)
    assert others == [None, None]
    assert first is not None
    assert first.reason == "metric 0.1 is among the worst 1 of 3; best_only of rank 2"
    assert [(one.rank, one.version, one.step, one.age_s) for one in first.donations] == [(2, 1, 1, 1.0)]
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
        for _ in range(2):
            team.step(0.1, 0.2, 0.4, 0.3)
        assert team.value(0) == round(expected, 5)
        assert team.models[0].norm.running_mean[0].item() == pytest.approx(expected)
        assert team.models[0].norm.num_batches_tracked.item() == 3, "integers take the largest"


def test_a_replaced_rank_counts_anew() -> None:
    team = Team(2, Rules(every=1, burn_in=2, cooldown=4, strategy="best_only"))
    events = [team.step(0.1, 0.5)[0] for _ in range(8)]
    # Rank 1 is no donor before its second step, which rank 0 sees in its third.
    assert [step for step, event in enumerate(events, 1) if event] == [3, 7]
    assert team.ranks[0].counters["replaced"] == 2
    # Others see at once that its snapshot is of a rank that has just begun.
    assert [one.trained for one in team.world.snapshots[0]] == [1, 2, 3, 0, 1, 2, 3, 4, 0, 1]
    assert {one.metric for one in team.world.snapshots[0]} == {0.1}


def test_a_metric_of_the_weights_before_does_not_count() -> None:
    team = Team(2)
    team.step(0.1, 0.5)
    assert team.step(0.1, 0.5)[0] is not None
    assert team.step(None, 0.5) == [None, None]
    assert team.step(0.1, 0.5)[0] is not None


def test_the_next_rank_does_not_move_up_when_the_worst_is_replaced() -> None:
    team = Team(4)
    events = [event for _ in range(6) for event in team.step(0.1, 0.2, 0.3, 0.4) if event]
    assert {event.rank for event in events} == {0}


def test_a_rank_with_weights_that_are_not_finite_is_replaced_and_donates_to_no_rank() -> None:
    team = Team(3, Rules(every=1, replace_worst=0.01, strategy="mean"))
    with torch.no_grad():
        team.models[2].log_z.fill_(math.nan)
    # Rank 2 claims the best metric, but counts as the worst.
    first, second = team.step(0.1, 0.5, 0.9), team.step(0.1, 0.5, 0.9)
    assert first[:2] == [None, None]
    assert first[2] is not None
    assert first[2].reason == "metric nan is among the worst 1 of 3; mean of rank 0, 1"
    assert second[0] is None, "rank 0 sees the metric as NaN, and itself not as the worst"
    assert team.value(2) == 0.5
    assert [math.isnan(one.metric or 0.0) for one in team.world.snapshots[2]] == [True, True, False]


def test_a_snapshot_that_is_not_finite_is_refused_until_there_is_another() -> None:
    team = Team(3, Rules(every=2, replace_worst=0.01, strategy="mean"), Schedule(1, 0))
    team.step(0.1, 0.5, 0.9)
    # Its own check comes after that of rank 0, so its metric is still the best.
    team.world.snapshots[2][-1].tensors["model/log_z"].fill_(math.nan)
    # Rank 2 stops. Until it publishes again it counts as the worst, so that rank 0 does not.
    event = team.ranks[0].step(0.1)
    assert event is not None
    assert [one.rank for one in event.donations] == [1]
    n_reads = team.world.n_reads
    assert [team.ranks[0].step(0.1) for _ in range(4)] == [None] * 4
    assert team.ranks[0].counters["refused_donors"] == 1
    assert team.world.n_reads == n_reads
    team.world.snapshots[2][-1].tensors["model/log_z"].fill_(2.0)
    team.world.snapshots[2].append(team.world.snapshots[2][-1])
    events = [team.ranks[0].step(0.1) for _ in range(2)]
    assert [one.rank for event in events if event for one in event.donations] == [1, 2]


def test_a_donor_that_dies_after_the_decision_is_replaced_by_another() -> None:
    team = Team(3, Rules(every=2, replace_worst=0.01, strategy="best_only"), Schedule(max_wait_steps=3))
    team.step(0.1, 0.5, 0.9)
    assert team.step(0.1, 0.5, 0.9)[0] is None
    assert team.ranks[0]._pending is not None
    team.world.dead.add(2)
    event = team.ranks[0].step(0.1)
    assert event is not None
    assert [one.rank for one in event.donations] == [1]
    assert event.waited_steps == 1


def test_without_a_donor_left_the_weights_stay() -> None:
    team = Team(2, Rules(every=2, strategy="best_only"), Schedule(publish_every=1, max_wait_steps=0))
    team.step(0.1, 0.5)
    team.world.snapshots[1][-1].tensors["model/log_z"].fill_(math.inf)
    assert team.ranks[0].step(0.1) is None
    assert team.value(0) == 0.0
    team = Team(2)
    team.step(0.1, 0.5)
    team.world.torn.add(1)
    assert team.ranks[0].step(0.1) is None
    assert team.value(0) == 0.0


def test_donors_are_asked_and_answer_in_their_next_step() -> None:
    schedule = Schedule(publish_every=1000, max_wait_steps=5)
    team = Team(2, Rules(every=10, strategy="best_only"), schedule)
    events = []
    for step in range(1, 15):
        with torch.no_grad():
            for weight in team.models[1].parameters():
                weight.fill_(100.0 + step)
        events.append(team.step(0.1, 0.5)[0])
    (at,) = [step for step, event in enumerate(events, 1) if event]
    event = events[at - 1]
    assert event is not None
    assert (at, event.waited_steps) == (11, 1)
    # Rank 1 answered in its step 10, right after rank 0 had asked.
    assert [one.step for one in event.donations] == [10]
    assert team.value(0) == 110.0
    assert team.ranks[0].counters["donor_age_s"] == 1.0


def test_a_donor_that_does_not_answer_gives_its_last_snapshot() -> None:
    team = Team(2, Rules(every=4, strategy="best_only"), Schedule(publish_every=100, max_wait_steps=3))
    team.step(0.1, 0.5)
    events = []
    for _ in range(7):
        team.world.now_s += 1.0
        events.append(team.ranks[0].step(0.1))
    (event,) = [event for event in events if event]
    assert event.waited_steps == 3
    assert event.step == 7
    assert [(one.step, one.age_s) for one in event.donations] == [(1, 6.0)]


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
    for _ in range(2):
        team.step(0.1, 0.5, 0.4)
    # Two thirds of rank 1, which is the best, and a third of rank 2.
    assert team.value(0) == 1.33333
    assert team.models[0].norm.running_mean[0].item() == pytest.approx(mean)
    assert team.models[0].norm.num_batches_tracked.item() == n_batches


def test_momentum_keeps_a_share() -> None:
    team = Team(2, takeover=Takeover(momentum=0.75))
    for _ in range(2):
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
    for _ in range(2):
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
    team.step(0.1, 0.5)
    event = team.step(0.1, 0.5)[0]
    assert event is not None
    assert not event.is_kept
    assert [value for value, _ in seen] == [1.0]
    assert team.value(0) == 0.0
    assert steps_of(team.optimizers[0]) == {1.0}
    assert replaced == []
    assert team.ranks[0].counters["rejected"] == 1
    assert team.ranks[0].counters["replaced"] == 0
    # The next try is after the cooldown, and is kept.
    events = [team.step(0.1, 0.5)[0] for _ in range(3)]
    assert events[:2] == [None, None]
    assert events[2] is not None
    assert replaced == [events[2]]
    assert team.value(0) == 1.0


def test_a_callback_gets_the_config_of_the_donor_and_its_own_chance() -> None:
    found = []

    def explore(event: Event) -> None:
        found.append((event.config["lr"], event.chance.choice([0.8, 1.2]), event.chance.random()))

    for _ in range(2):
        team = Team(3, on_replace=explore)
        team.ranks[2].config = {"lr": 0.5}
        for _ in range(2):
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
    for _ in range(2):
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
    for _ in range(2):
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
    last = team.world.snapshots[0][-2].tensors  # before it was replaced once more
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


def test_smoothing_weighs_old_metrics() -> None:
    team = Team(1, Rules(every=1), Schedule(publish_every=1, smoothing=0.5))
    for metric in (1.0, 3.0, None, math.nan, 5.0):
        team.step(metric)
    seen = [snapshot.metric for snapshot in team.world.snapshots[0]]
    assert seen[:3] == [1.0, 2.0, 2.0]
    assert math.isnan(seen[3] or 0.0)
    assert seen[4] == 5.0


def test_it_goes_on_where_it_was_saved() -> None:
    rules = Rules(every=1, cooldown=5, strategy="best_only")
    team = Team(2, rules)
    for _ in range(3):
        team.step(0.1, 0.5)
    state = team.ranks[0].state_dict()
    assert [one["step"] for one in state["lineage"]] == [2]
    assert state["lineage"][0]["donors"] == [[1, 1, 1.0]]
    again = SelectiveAveraging(
        team.models[0], None, rules, meet=MemoryBoard(team.world, 0), schedule=NOW, clock=team.world.clock
    )
    again.load_state_dict(state)
    assert again.state_dict() == state
    steps = [again.step(0.1) for _ in range(4)]
    assert [step for step, event in enumerate(steps, 4) if event] == [7]


def test_shutdown_twice_and_before_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    board = MemoryBoard(World(), 0)
    with SelectiveAveraging(net(1.0), None, RULES, meet=board) as engine:
        engine.print_stats()
        engine.shutdown()
        engine.shutdown()
        with pytest.raises(ConfigError, match="was shut down"):
            engine.step(0.5)
    assert "rank 0 replaced: 0\n" in capsys.readouterr().out


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
