"""All interleavings of a small job: each number of the committed steps is trained once, in order, on all ranks (J2 to J4)."""

from __future__ import annotations

import random

import pytest
from job_model import World, search

from softs_fast.job.feed import Aim, Feed
from softs_fast.job.ledger import Ledger
from softs_fast.job.position import Position


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "size",
    [
        (2, 3, 1, 1),
        pytest.param((2, 2, 2, 1), marks=[pytest.mark.full]),
        pytest.param((2, 2, 2, 2), marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
        pytest.param((2, 4, 3, 2), marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_all_interleavings(size: tuple[int, int, int, int]) -> None:
    """Ranks, micro-batches, steps, faults: deaths and joins at every event."""
    n_worlds, n_over, is_all = search(World(*size), most=10**6)
    print(f"{size}: {n_worlds} worlds, {n_over} of them over")
    assert is_all
    assert n_over


@pytest.mark.parametrize("seed", range(8))
def test_random_histories(seed: int) -> None:
    """Three ranks, up to seven micro-batches, three steps and three faults, in 50 orders of chance each."""
    chance = random.Random(seed)
    for _ in range(50):
        world = World(chance.randint(1, 3), chance.randint(1, 7), 3, 3)
        n_left = 2000
        while n_left and not (world.is_over() and not world.n_faults):
            events = world.events()
            # Faults are rare among events, so that they come at any step.
            quiet = [event for event in events if event[0] not in ("kill", "join")]
            world.do(chance.choice(events if chance.random() < 0.05 or not quiet else quiet))
            n_left -= 1
        assert world.is_over()


# --- What a mistake would do ---


def hands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position advances when samples are handed out."""
    begin = Feed.begin

    def later(feed: Feed, ledger: Ledger, step: int, rank: int, size: int) -> Aim | None:
        aim = begin(feed, ledger, step, rank, size)
        # The stream stays where it is, whatever became of what it has handed out.
        return aim if feed.__dict__.setdefault("is_aimed", aim) is aim else None

    monkeypatch.setattr(Feed, "begin", later)


def strides_of_the_first_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is that of the size with which the rank has begun."""
    begin = Feed.begin

    def early(feed: Feed, ledger: Ledger, step: int, rank: int, size: int) -> Aim | None:
        rank, size = feed.__dict__.setdefault("place", (rank, size))
        return begin(feed, ledger, step, rank, size)

    monkeypatch.setattr(Feed, "begin", early)


def goes_on_in_the_midst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that was dropped is not begun anew."""
    monkeypatch.setattr(Feed, "dropped", lambda feed: setattr(feed, "phase", "idle"))
    begin = Feed.begin

    def again(feed: Feed, ledger: Ledger, step: int, rank: int, size: int) -> Aim | None:
        rest = list(feed._due)
        aim = begin(feed, ledger, step, rank, size)
        if rest:
            feed._due, aim = rest, None
        return aim

    monkeypatch.setattr(Feed, "begin", again)


def position_stays_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position does not travel with the weights."""
    monkeypatch.setattr(Position, "load_state_dict", lambda position, state: None)


def position_counts_begun_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position advances with the steps that a rank begins, and not with those that are applied."""
    monkeypatch.setattr(Position, "applied", lambda position: None)
    begin = Feed.begin

    def count(feed: Feed, ledger: Ledger, step: int, rank: int, size: int) -> Aim | None:
        return begin(feed, ledger, step + 1 if feed.__dict__.setdefault("n", 0) else step, rank, size)

    monkeypatch.setattr(Feed, "begin", count)


def ranks_share_unevenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last micro-batch of a size that does not divide is trained by no rank."""
    from softs_fast.job import feed

    monkeypatch.setattr(
        feed, "share", lambda n, rank, size: range(rank * (n // size), (rank + 1) * (n // size))
    )


@pytest.mark.parametrize(
    ("mistake", "size"),
    [
        (hands_out, (2, 3, 2, 1)),
        (strides_of_the_first_day, (2, 3, 2, 1)),
        (goes_on_in_the_midst, (2, 3, 2, 1)),
        # A rank that joins is enough for these two, and no fault for the last one.
        (position_stays_at_home, (1, 1, 2, 1)),
        (position_counts_begun_steps, (1, 1, 2, 1)),
        (ranks_share_unevenly, (2, 3, 1, 0)),
    ],
)
def test_mistakes_are_found(
    mistake: object, size: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(mistake)
    mistake(monkeypatch)
    with pytest.raises((AssertionError, IndexError), match=r"J2|J4|a step|micro-batch|nothing"):
        search(World(*size), most=5000)
