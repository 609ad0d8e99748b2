"""From a decision to the change of the weights, in virtual time: donors are asked, refused, fetched, or dropped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from team import Team, net

from softs_fast.averaging import Event, Rules, Schedule, SelectiveAveraging


def test_a_snapshot_that_is_not_finite_is_refused_until_there_is_another() -> None:
    team = Team(3, Rules(every=2, replace_worst=0.01, strategy="mean"), Schedule(1, 0))
    team.step(0.1, 0.5, 0.9)
    # Rank 2 claims the best metric, and publishes no other snapshot than one that is not finite.
    team.world.snapshots[2][-1].tensors["model/log_z"].fill_(math.nan)
    team.ranks[2]._publish = lambda: None
    assert team.step(0.1, 0.5, 0.9)[0] is None, "a fetch"

    def steps(n: int) -> list[Event | None]:
        return [team.step(0.1, 0.5, 0.9)[0] for _ in range(n)]

    events = steps(2)
    assert events[0] is None, "another fetch"
    assert events[1] is not None
    assert [one.rank for one in events[1].donations] == [1]
    n_reads = team.world.n_reads
    # Until rank 2 publishes again it counts as the worst, so that rank 0 does not.
    assert steps(4) == [None] * 4
    assert team.ranks[0].counters["refused_donors"] == 1
    assert team.world.n_reads == n_reads
    team.world.snapshots[2][-1].tensors["model/log_z"].fill_(2.0)
    team.world.snapshots[2].append(team.world.snapshots[2][-1])
    assert [one.rank for event in steps(3) if event for one in event.donations] == [1, 2]


def test_a_donor_that_dies_after_the_decision_is_replaced_by_another() -> None:
    team = Team(3, Rules(every=2, replace_worst=0.01, strategy="best_only"), Schedule(max_wait_steps=3))
    team.step(0.1, 0.5, 0.9)
    assert team.step(0.1, 0.5, 0.9)[0] is None
    assert team.ranks[0]._pending is not None
    team.world.dead.add(2)
    events = [team.ranks[0].step(0.1) for _ in range(3)]
    assert events[:2] == [None, None], "a fetch, and another one"
    assert events[2] is not None
    assert [one.rank for one in events[2].donations] == [1]
    assert events[2].waited_steps == 3


def decided(team: Team) -> SelectiveAveraging:
    """Let rank 0 decide to be replaced; its fetch is not complete."""
    team.world.reading.add(0)
    for _ in range(4):
        assert team.step(0.1, 0.5) == [None, None]
    assert team.value(0) == 0.0
    return team.ranks[0]


def test_weights_change_in_the_step_that_finds_the_fetch_complete() -> None:
    team = Team(2)
    engine = decided(team)
    assert team.world.n_reads == engine.counters["checks"] == 1, "no other check until then"
    with torch.no_grad():
        team.world.snapshots[1][-1].tensors["model/log_z"].fill_(9.0)
    team.world.reading.clear()
    event = team.step(0.1, 0.5)[0]
    assert event is not None
    assert (event.step, event.waited_steps) == (5, 4)
    assert [(one.version, one.step) for one in event.donations] == [(1, 1)], "as when it was fetched"
    assert team.value(0) == 1.0


@pytest.mark.parametrize("way", ["other model", "load", "shutdown"])
def test_what_was_fetched_for_other_weights_is_dropped(tmp_path: Path, way: str) -> None:
    team = Team(2, schedule=Schedule(publish_every=1, max_wait_steps=0, log=tmp_path / "log"))
    engine = decided(team)
    state = engine.state_dict()
    team.world.reading.clear()
    if way == "other model":
        engine.use(net(7.0), None)
    elif way == "load":
        engine.load_state_dict(state)
    else:
        engine.shutdown()
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"rank":0' in line]
    assert [(one["step"], one["replace"], one["applied_at"]) for one in said] == [(1, True, None)]
    if way == "shutdown":
        return
    assert team.step(0.1, 0.5)[0] is None, "a check, and another fetch"
    assert team.world.n_reads == 2
    event = team.step(0.1, 0.5)[0]
    assert event is not None
    assert event.waited_steps == 1
    assert engine.model.log_z.item() == 1.0


def test_another_optimizer_does_not_change_what_was_decided() -> None:
    team = Team(2)
    engine = decided(team)
    engine.use(engine.model, None)
    team.world.reading.clear()
    assert engine.step(0.1) is not None
    assert team.value(0) == 1.0


def test_without_a_donor_left_the_weights_stay() -> None:
    team = Team(2, Rules(every=2, strategy="best_only"), Schedule(publish_every=2, max_wait_steps=0))
    with torch.no_grad():
        team.models[1].log_z.fill_(math.inf)
    team.step(0.1, 0.5)
    with torch.no_grad():
        team.models[1].log_z.fill_(1.0)
    team.ranks[1]._publish = lambda: None
    assert [team.step(0.1, 0.5)[0] for _ in range(3)] == [None] * 3
    assert team.ranks[0].counters["refused_donors"] == 1
    assert team.value(0) == 0.0
    team = Team(2)
    team.world.torn.add(1)
    assert [team.step(0.1, 0.5)[0] for _ in range(3)] == [None] * 3
    assert team.world.n_reads == 2
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
    assert (at, event.waited_steps) == (12, 2)
    # Rank 1 answered in its step 11; rank 0 had asked after its step 10.
    assert [one.step for one in event.donations] == [11]
    assert team.value(0) == 111.0
    assert team.ranks[0].counters["donor_age_s"] == 0.0, "when it was fetched, in step 11"


def test_a_donor_that_does_not_answer_gives_its_last_snapshot() -> None:
    team = Team(2, Rules(every=4, strategy="best_only"), Schedule(publish_every=100, max_wait_steps=3))
    events = [team.step(0.1, 0.5)[0] for _ in range(4)]
    for _ in range(4):  # rank 1 has reported its check, and stops
        team.world.now_s += 1.0
        events.append(team.ranks[0].step(0.1))
    (event,) = [event for event in events if event]
    assert event.waited_steps == 4
    assert event.step == 8
    assert [(one.step, one.age_s) for one in event.donations] == [(1, 6.0)]


def test_a_rank_that_may_not_publish_does_not_after_a_replacement() -> None:
    team = Team(2)
    team.step(0.1, 0.5)
    assert team.ranks[0].step(0.1, publish=False) is not None
    assert len(team.world.snapshots[0]) == 1
    assert team.ranks[0].step(0.1) is None
    assert team.world.snapshots[0][-1].trained == 1


def test_parameters_that_are_other_objects_are_published() -> None:
    team = Team(1)
    team.step(0.1)
    team.models[0].log_z = torch.nn.Parameter(torch.tensor(3.0))
    team.step(0.1)
    assert [one.tensors["model/log_z"].item() for one in team.world.snapshots[0]] == [0.0, 3.0]
