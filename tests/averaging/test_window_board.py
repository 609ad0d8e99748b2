"""Boards over windows: which ranks there are, what is read, and what is refused; with ranks that die."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist

from softs_fast.averaging import Donation, Refused, Rules, Schedule, SelectiveAveraging
from softs_fast.averaging.meeting import GatheredMembers, meet_at
from softs_fast.averaging.window_board import WindowBoard
from softs_fast.errors import ConfigError
from softs_fast.snapshots import SnapshotLayout, Window


def weights(value: float, n: int = 3) -> dict[str, torch.Tensor]:
    return {"w": torch.full((n,), value), "seen": torch.tensor(int(value) if math.isfinite(value) else 0)}


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[WindowBoard]]:
    """Three boards at one place."""
    made = [meet_at(tmp_path / "place", rank) for rank in range(3)]
    for board in made:
        board.open(weights(0.0))
    yield made
    for board in made:
        board.close()
        board.close()


def publish(board: WindowBoard, value: float, **said: Any) -> int:
    return board.publish(
        weights(value), **{"step": 7, "metric": 0.5, "trained": 4, "config": {"lr": 0.1}, **said}
    )


def test_a_board_shows_what_each_rank_has_published(boards: list[WindowBoard]) -> None:
    publish(boards[2], 1.0, metric=None)
    assert publish(boards[1], 1.0) == 1
    assert publish(boards[1], 2.0) == 2
    seen = {member.rank: member for member in boards[0].members()}
    assert (seen[1].version, seen[1].metric, seen[1].trained, seen[1].alive) == (2, 0.5, 4, True)
    assert (seen[2].version, seen[2].metric) == (1, None)
    assert seen[1].digest == seen[2].digest
    boards[1].close()
    assert [member.rank for member in boards[0].members()] == [2]


def test_an_average_says_what_it_was_made_of(boards: list[WindowBoard]) -> None:
    publish(boards[1], 2.0)
    publish(boards[2], 5.0, step=9)
    boards[0].members()
    into = weights(0.0)
    taken = boards[0].average([(1, 0.25), (2, 0.75)], into)
    assert not isinstance(taken, Refused)
    assert into["w"].tolist() == [4.25] * 3
    assert into["seen"].item() == 5
    assert [(one.rank, one.weight, one.version, one.step) for one in taken] == [
        (1, 0.25, 1, 7),
        (2, 0.75, 1, 9),
    ]
    assert all(isinstance(one, Donation) and one.age_s >= 0 and one.config == {"lr": 0.1} for one in taken)


def test_a_donor_that_is_of_no_use_is_named_and_nothing_changes(boards: list[WindowBoard]) -> None:
    publish(boards[1], 2.0)
    publish(boards[2], math.nan)
    boards[0].members()
    into = weights(0.0)
    refused = boards[0].average([(1, 0.5), (2, 0.5)], into)
    assert isinstance(refused, Refused)
    assert refused.rank == 2
    assert "is not finite" in refused.reason
    boards[1].close()
    boards[0].members()
    assert boards[0].average([(1, 1.0)], into) == Refused(1, "it has ended")
    assert into["w"].tolist() == [0.0] * 3


def test_a_rank_is_asked_until_it_publishes(boards: list[WindowBoard]) -> None:
    for board in boards:
        publish(board, 1.0)
        board.members()
    assert not boards[1].is_asked()
    boards[0].ask([1, 99])
    assert boards[1].is_asked()
    assert not boards[2].is_asked()
    publish(boards[1], 2.0)
    assert not boards[1].is_asked()


def test_a_rank_with_other_tensors_is_described(boards: list[WindowBoard], tmp_path: Path) -> None:
    other = meet_at(tmp_path / "place", 7)
    other.open(weights(0.0, 4))
    found = {member.rank: member.digest for member in boards[0].members()}
    assert found[7] != found[1]
    assert "rank 7" in boards[0].difference(7)
    assert '"w"' in boards[0].difference(7)
    other.close()
    boards[0].members()
    assert "cannot be read" in boards[0].difference(7)


def test_a_second_rank_of_the_same_number_is_left_out(
    boards: list[WindowBoard], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    twin = meet_at(tmp_path / "place", 0)
    twin.open(weights(0.0))
    assert [member.rank for member in boards[0].members()] == [1, 2]
    assert "is rank 0 too" in caplog.text
    twin.close()


def test_ranks_may_meet_at_a_store_of_torch() -> None:
    store = dist.HashStore()
    model = torch.nn.Linear(2, 2)
    with SelectiveAveraging(model, None, Rules(), meet=store, rank=0) as one:
        one.step(0.5)
        with SelectiveAveraging(
            torch.nn.Linear(2, 2),
            None,
            Rules(every=1),
            meet=store,
            rank=1,
            schedule=Schedule(max_wait_steps=0),
        ) as other:
            other.step(0.1)
            assert torch.equal(other.model.weight, model.weight)  # type: ignore[arg-type, union-attr]


def test_a_rank_needs_a_number() -> None:
    with pytest.raises(ConfigError, match="rank is None"):
        SelectiveAveraging(torch.nn.Linear(2, 2), None, Rules(), meet="/nowhere")
    with pytest.raises(ConfigError, match="call open first"):
        meet_at("/nowhere", 0).is_asked()


def trains_for_ever(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    model = torch.nn.Linear(50, 50)
    rules = Rules(every=2, strategy="mean", replace_worst=0.4)
    generator = torch.Generator().manual_seed(rank)
    with SelectiveAveraging(
        model, None, rules, meet=folder, rank=rank, schedule=Schedule(seed=rank)
    ) as engine:
        n_replaced = 0
        while True:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.fill_(float(torch.rand((), generator=generator)))
            event = engine.step(float(torch.rand((), generator=generator)))
            if event is not None:
                n_replaced += 1
                whole = {round(value, 4) for value in model.weight.detach().view(-1).tolist()}
                if len(whole) != 1:
                    raise AssertionError(f"torn: {sorted(whole)[:3]}")
                if n_replaced % 20 == 0:
                    say((os.getpid(), [one.rank for one in event.donations]))


def test_killed_stopped_and_late_ranks(tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    running = ranks.start(trains_for_ever, 3, place)
    late = None
    try:
        pids = [running.receive(rank)[0] for rank in range(3)]
        os.kill(pids[1], signal.SIGKILL)
        os.kill(pids[2], signal.SIGSTOP)
        # Rank 0 goes on with what rank 2 has published; then a rank joins that was not there before.
        assert running.receive(0)[1] == [2]
        late = ranks.start(joins_as_rank_nine, 1, place)
        while 9 not in running.receive(0)[1]:
            pass
        assert 1 not in running.receive(0)[1]
    finally:
        running.stop()
        if late is not None:
            late.stop()


def joins_as_rank_nine(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    trains_for_ever(lambda _: None, 9, size, folder)


def test_a_fixed_group_knows_the_ranks_that_are_alive() -> None:
    layout = SnapshotLayout.of(weights(0.0))
    said: list[bytes] = []

    def alone(message: bytes) -> list[bytes]:
        said.append(message)
        return [message]

    with Window(layout) as ours, Window(layout) as theirs:
        assert GatheredMembers(theirs, 0, alone).refresh() == []
        group = GatheredMembers(ours, 0, lambda message: [message, *said])
        assert [member.rank for member in group.refresh()] == [1]
        theirs.close()
        assert group.refresh() == []
        # A rank that has left before the others open its window.
        assert GatheredMembers(ours, 0, lambda message: [message, *said]).refresh() == []
        group.close()
        group.close()
