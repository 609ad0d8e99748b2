"""Snapshots that a thread copies beside the training: what they have, what waits for them, and what they say."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from copy_gate import Gate
from members import settle
from waiting import eventually

from softs_fast.averaging import Event, Rules, Schedule, SelectiveAveraging, Takeover
from softs_fast.averaging.meeting import meet_at
from softs_fast.averaging.window_board import WindowBoard, WindowFetch

NOW = Schedule(publish_every=1, max_wait_steps=0)


def net(value: float) -> torch.nn.Module:
    """A model with a weight that an optimizer has, another one that it has not, and a buffer, all of one value."""
    model = torch.nn.Module()
    for name in ("ours", "theirs"):
        model.register_parameter(name, torch.nn.Parameter(torch.full((3,), value)))
    model.register_buffer("seen", torch.full((3,), value))
    return model


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    model.ours.grad = torch.ones(3)
    return torch.optim.SGD([model.ours], lr=1.0)


def read(board: WindowBoard, rank: int) -> dict[str, list[float]]:
    """What another rank has published last."""
    board.members()
    board.fetch([(rank, 1.0)])
    while (found := board.fetched()) is None:
        pass
    assert isinstance(found, WindowFetch), found
    into = {name: torch.zeros(3) for name in ("ours", "theirs", "seen")}
    found.apply(into)
    return {name: tensor.tolist() for name, tensor in into.items()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def pair(place: Path) -> Iterator[list[WindowBoard]]:
    """Two boards of models with the value 1."""
    made = [meet_at(place, rank) for rank in range(2)]
    for board in made:
        board.open(dict(tensors(net(1.0))))
    yield made
    for board in made:
        board.close()


def tensors(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in model.state_dict().items()}


def publish(board: WindowBoard, model: torch.nn.Module, metric: float | None = None) -> int:
    return board.publish(tensors(model), step=1, metric=metric, trained=1, config=None)


def test_what_an_optimizer_changes_is_copied_by_a_thread_and_all_else_at_once(
    pair: list[WindowBoard],
) -> None:
    model = net(1.0)
    optimizer = optimizer_of(model)
    assert pair[0].inspected() is None
    pair[0].follow(optimizer, {"ours"})
    gate = Gate(pair[0]._opened)
    assert publish(pair[0], model) == 1
    assert gate.reached.wait(30)
    assert [member.version for member in pair[1].members()] == [0]
    assert publish(pair[0], model) == 1, "no other one begins"
    with torch.no_grad():
        model.theirs.fill_(5.0)
        model.seen.fill_(5.0)
    threading.Timer(0.1, gate.open.set).start()
    optimizer.step()  # waits
    assert model.ours.tolist() == [0.0] * 3
    assert read(pair[1], 0) == {name: [1.0] * 3 for name in ("ours", "theirs", "seen")}
    assert pair[0].inspected() == (1, True)


def test_an_ask_is_answered_by_the_copy_that_runs(pair: list[WindowBoard]) -> None:
    model = net(1.0)
    pair[0].follow(optimizer_of(model), {"ours"})
    gate = Gate(pair[0]._opened)
    for board in pair:
        board.members()
    publish(pair[0], model)
    assert gate.reached.wait(30)
    pair[1].ask([0])
    assert not pair[0].is_asked()
    gate.open.set()
    pair[0].settle()
    assert not pair[0].is_asked()
    pair[1].ask([0])
    assert pair[0].is_asked()


def published(board: WindowBoard, model: torch.nn.Module) -> None:
    """Publish after the rest that follows the copy before."""
    version = board._version
    eventually(lambda: publish(board, model, 0.5) > version, "another version")
    board.settle()


def test_tensors_that_get_other_memory_are_published_as_they_are(pair: list[WindowBoard]) -> None:
    model = net(1.0)
    pair[0].follow(optimizer_of(model), {"ours"})
    published(pair[0], model)
    model.ours.data = torch.full((3,), 7.0)
    published(pair[0], model)
    assert read(pair[1], 0)["ours"] == [7.0] * 3
    pair[0].follow(None, ())
    with torch.no_grad():
        model.ours.fill_(8.0)
    assert publish(pair[0], model) == 3
    assert read(pair[1], 0)["ours"] == [8.0] * 3


def test_a_snapshot_with_weights_that_are_not_finite_says_so(pair: list[WindowBoard]) -> None:
    model = net(1.0)
    pair[0].follow(optimizer_of(model), {"ours"})
    for value, is_finite in ((math.nan, False), (1.0, True), (-math.inf, False)):
        model.ours.data[1] = value
        published(pair[0], model)
        assert pair[0].inspected() == (pair[0]._version, is_finite)
        (member,) = pair[1].members()
        assert member.metric is not None
        assert math.isfinite(member.metric) == is_finite


def engine_of(place: Path, rank: int, value: float, **named: object) -> SelectiveAveraging:
    model = net(value)
    optimizer = optimizer_of(model)
    rules = Rules(every=1, strategy="best_only")
    arguments: dict[str, object] = {"schedule": NOW, "takeover": Takeover(), **named}
    return SelectiveAveraging(model, optimizer, rules, meet=meet_at(place, rank), **arguments)  # type: ignore[arg-type]


def run(engine: SelectiveAveraging, metric: float, n_steps: int) -> list[Event]:
    events = []
    for _ in range(n_steps):
        events.append(engine.step(metric))
        settle(engine)
    return [event for event in events if event is not None]


def board_of(engine: SelectiveAveraging) -> WindowBoard:
    assert isinstance(engine._board, WindowBoard)
    return engine._board


def under_way(engine: SelectiveAveraging) -> Gate:
    """Have the thread of an engine copy its weights until the gate is opened."""
    board = board_of(engine)
    gate = Gate(board._opened)
    shared, version = engine._shared.tensors(), board._version
    eventually(
        lambda: board.publish(shared, step=9, metric=0.1, trained=9, config=None) > version, "a version"
    )
    assert gate.reached.wait(30)
    return gate


@pytest.mark.parametrize("way", ["replacement", "other model", "shutdown"])
def test_weights_that_are_copied_may_change_only_after_that(place: Path, way: str) -> None:
    with engine_of(place, 0, 1.0) as ours, engine_of(place, 1, 2.0) as theirs:
        run(theirs, 0.9, 1)
        assert run(ours, 0.1, 1) == []
        assert ours._pending is not None
        assert ours.model.ours.tolist() == [1.0] * 3, "it has decided and fetched"
        gate = under_way(ours)
        calls: dict[str, Callable[[], object]] = {
            "replacement": lambda: ours.step(0.1),
            "other model": lambda: ours.use(net(5.0), None),
            "shutdown": ours.shutdown,
        }
        thread = threading.Thread(target=calls[way])
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert ours.model.ours.tolist() == [1.0] * 3
        gate.open.set()
        thread.join()
        expected = {"replacement": 2.0, "other model": 5.0, "shutdown": 1.0}
        assert ours.model.ours.tolist() == [expected[way]] * 3


def test_a_rank_with_weights_that_are_not_finite_is_replaced_once(place: Path) -> None:
    with engine_of(place, 0, math.nan) as ours, engine_of(place, 1, 2.0) as theirs:
        run(theirs, 0.5, 1)
        events: list[Event] = []
        eventually(lambda: events.extend(run(ours, 0.9, 1)) or events, "a replacement")
        (event,) = events
        assert event.reason == "metric nan is among the worst 1 of 2; best_only of rank 1"
        assert ours.model.ours.tolist() == [2.0] * 3
        # The last copy may be one of the weights before.
        assert run(ours, 0.9, 20) == []


def test_the_optimizer_of_another_model_waits_from_then_on(place: Path) -> None:
    with engine_of(place, 0, 1.0) as ours:
        first = ours.optimizer
        assert first is not None
        run(ours, 0.1, 1)
        model = net(5.0)
        ours.use(model, optimizer_of(model))
        run(ours, 0.1, 1)
        gate = under_way(ours)
        first.step()  # does not wait
        threading.Timer(0.1, gate.open.set).start()
        assert ours.optimizer is not None
        ours.optimizer.step()
        assert model.ours.tolist() == [4.0] * 3
        reader = meet_at(place, 9)
        reader.open(tensors(net(0.0)))
        (member,) = reader.members()
        assert member.trained == 9
        reader.close()


def test_the_state_of_the_optimizer_is_copied_with_the_weights(place: Path) -> None:
    model = net(1.0)
    model.ours.grad = torch.ones(3)
    optimizer = torch.optim.Adam([model.ours])
    optimizer.step()
    with SelectiveAveraging(
        model,
        optimizer,
        Rules(strategy="best_only"),
        meet=meet_at(place, 0),
        takeover=Takeover(optimizer_state="donor"),
    ) as ours:
        late = ours._shared.late_names()
        assert late == {
            "model/ours",
            "optimizer/ours/step",
            "optimizer/ours/exp_avg",
            "optimizer/ours/exp_avg_sq",
        }
        ours.step(0.1)
        board_of(ours).settle()
        assert board_of(ours).inspected() == (1, True)
