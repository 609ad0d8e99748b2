"""Boards over windows: which ranks there are, what is read, and what is refused; with ranks that die."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from waiting import eventually

from softs_fast import identity
from softs_fast.averaging import Donation, Refused, Rules, Schedule, SelectiveAveraging, meeting, window_board
from softs_fast.averaging.meeting import meet_at
from softs_fast.averaging.window_board import WindowBoard, WindowFetch
from softs_fast.errors import ConfigError, ForkedError
from softs_fast.snapshots import Fetched


def weights(value: float, n: int = 3) -> dict[str, torch.Tensor]:
    return {"w": torch.full((n,), value), "seen": torch.tensor(int(value) if math.isfinite(value) else 0)}


def test_a_rank_with_a_masked_proc_counts_as_a_host_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert meeting.host_id() == meeting.host_id()
    monkeypatch.setattr(identity, "host_id", lambda: "")
    assert meeting.host_id() != meeting.host_id()
    assert "counts as a host of its own" in caplog.text


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


def complete(board: WindowBoard) -> WindowFetch | Refused:
    """Wait for a fetch."""
    return eventually(board.fetched, "the fetch")


def fetched(board: WindowBoard, donors: list[tuple[int, float]]) -> WindowFetch | Refused:
    board.fetch(donors)
    return complete(board)


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
    found = fetched(boards[0], [(1, 0.25), (2, 0.75)])
    assert isinstance(found, WindowFetch)
    assert into["w"].tolist() == [0.0] * 3
    found.apply({"seen": into["seen"]})
    assert (into["w"].tolist(), into["seen"].item()) == ([0.0] * 3, 5), "a part of them"
    found.apply(into)
    assert into["w"].tolist() == [4.25] * 3
    taken = found.donations
    assert [(one.rank, one.weight, one.version, one.step) for one in taken] == [
        (1, 0.25, 1, 7),
        (2, 0.75, 1, 9),
    ]
    assert all(isinstance(one, Donation) and one.age_s >= 0 and one.config == {"lr": 0.1} for one in taken)


def test_a_donor_that_is_of_no_use_is_named(boards: list[WindowBoard]) -> None:
    publish(boards[1], 2.0)
    publish(boards[2], math.nan)
    boards[0].members()
    refused = fetched(boards[0], [(1, 0.5), (2, 0.5)])
    assert isinstance(refused, Refused)
    assert refused.rank == 2
    assert "is not finite" in refused.reason
    boards[1].close()
    boards[0].members()
    assert fetched(boards[0], [(1, 1.0)]) == Refused(1, "it has ended")


class Held:
    """Holds the reads of boards until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        self.n_reads = 0
        self._fetch = window_board.fetch
        monkeypatch.setattr(window_board, "fetch", self)

    def __call__(self, *arguments: Any, **named: Any) -> Fetched | None:
        self.n_reads += 1
        self.reached.set()
        assert self.open.wait(30)
        return self._fetch(*arguments, **named)


def test_a_fetch_runs_beside_the_caller_and_a_later_one_takes_its_place(
    boards: list[WindowBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    publish(boards[1], 2.0)
    publish(boards[2], 5.0)
    boards[0].members()
    assert boards[0].fetched() is None, "none was begun"
    boards[0].fetch([(1, 1.0)])
    assert held.reached.wait(30)
    assert boards[0].fetched() is None
    boards[0].fetch([(1, 0.5), (2, 0.5)])
    boards[0].fetch([(2, 1.0)])
    held.open.set()
    found = complete(boards[0])
    assert isinstance(found, WindowFetch)
    assert [one.rank for one in found.donations] == [2]
    assert boards[0].fetched() is found, "until the next one"
    assert held.n_reads == 2, "the second one was dropped before it began"
    into = weights(0.0)
    found.apply(into)
    assert into["w"].tolist() == [5.0] * 3


def test_a_donor_that_ends_and_is_forgotten_while_it_is_read(
    boards: list[WindowBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    publish(boards[1], 2.0)
    boards[0].members()
    boards[0].fetch([(1, 1.0)])
    assert held.reached.wait(30)
    boards[1].close()
    assert [member.rank for member in boards[0].members()] == [2], "its window is closed here"
    held.open.set()
    refused = complete(boards[0])
    assert isinstance(refused, Refused)
    assert refused.rank == 1


def test_wrong_weights_are_raised_where_the_fetch_is_looked_at(boards: list[WindowBoard]) -> None:
    publish(boards[1], 2.0)
    boards[0].members()
    with pytest.raises(ConfigError, match="weights are"):
        fetched(boards[0], [(1, math.nan)])


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("softs-fetch")]


def test_the_thread_starts_with_the_first_fetch_and_ends_with_the_board(
    boards: list[WindowBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(boards[1], 2.0)
    boards[0].members()
    assert readers() == []
    fetched(boards[0], [(1, 1.0)])
    assert len(readers()) == 1
    held = Held(monkeypatch)
    boards[0].fetch([(1, 1.0)])
    assert held.reached.wait(30)
    boards[0].fetch([(1, 1.0)])
    waiting = boards[0]._reading
    assert waiting is not None
    opens = threading.Thread(target=lambda: eventually(waiting.cancelled) and held.open.set())
    opens.start()
    boards[0].close()
    opens.join()
    assert readers() == []
    assert held.n_reads == 1, "what had not begun is dropped"
    assert boards[0].fetched() is None


def test_a_fork_cannot_fetch_and_closes_without_a_thread(boards: list[WindowBoard]) -> None:
    publish(boards[1], 2.0)
    boards[0].members()
    fetched(boards[0], [(1, 1.0)])
    pid = os.fork()
    if not pid:
        try:
            boards[0].fetch([(1, 1.0)])
        except ForkedError:
            boards[0]._reader.shutdown = None  # type: ignore[method-assign, assignment]
            boards[0].close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert isinstance(fetched(boards[0], [(1, 1.0)]), WindowFetch)


def test_a_fetch_that_runs_when_the_interpreter_exits(tmp_path: Path) -> None:
    code = f"""
import sys, torch
from softs_fast.averaging.meeting import meet_at
boards = [meet_at({str(tmp_path / "exit")!r}, rank) for rank in range(2)]
tensors = {{"w": torch.ones(1 << 22)}}
for board in boards:
    board.open(tensors)
boards[1].publish(tensors, step=1, metric=0.5, trained=1, config=None)
boards[0].members()
for _ in range(20):
    boards[0].fetch([(1, 1.0)])
print("exits")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "exits\n", "")


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
    with (
        SelectiveAveraging(model, None, Rules(every=1), meet=store, rank=0) as one,
        SelectiveAveraging(
            torch.nn.Linear(2, 2),
            None,
            Rules(every=1),
            meet=store,
            rank=1,
            schedule=Schedule(max_wait_steps=0),
        ) as other,
    ):
        one.step(0.5)
        while other.step(0.1) is None:
            one.step(0.5)
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
    with ranks.start(trains_for_ever, 3, place) as running:
        pids = [running.receive(rank)[0] for rank in range(3)]
        os.kill(pids[1], signal.SIGKILL)
        os.kill(pids[2], signal.SIGSTOP)
        # Rank 0 goes on alone; then a rank joins that was not there before.
        with ranks.start(joins_as_rank_nine, 1, place):
            while running.receive(0)[1] != [9]:
                pass


def joins_as_rank_nine(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    trains_for_ever(lambda _: None, 9, size, folder)
