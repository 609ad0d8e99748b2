"""What a rank takes for a step, in virtual time: after any fences, commits and drops its stream hands out what is due."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.job.feed import Aim, Feed
from softs_fast.job.ledger import Ledger


class Stream:
    """What a loader does: it hands out the numbers of its aim, one after the other."""

    def __init__(self) -> None:
        self._aim: Aim | None = None
        self.n_taken = self.n_aimed = 0

    def aim(self, aim: Aim | None) -> None:
        if aim is not None:
            self._aim, self.n_taken = aim, 0
            self.n_aimed += 1

    def take(self, n: int) -> list[int]:
        assert self._aim is not None, "nothing was ordered"
        self.n_taken += n
        return [self._aim.number(place) for place in range(self.n_taken - n, self.n_taken)]


class Rank:
    """A process with a feed, which joins epochs of any size."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.feed, self.stream = ledger, Feed(), Stream()

    def begin(self, step: int, rank: int, size: int) -> None:
        self.stream.aim(self.feed.begin(self.ledger, step, rank, size))

    def take(self) -> list[int]:
        due = self.feed.due
        assert due is not None
        assert self.feed.place == self.stream.n_taken, "the feed counts otherwise"
        numbers = self.stream.take(len(due.numbers))
        assert numbers == list(due.numbers), "the stream is somewhere else"
        assert self.feed.took() == due
        return numbers

    def take_all(self) -> list[int]:
        taken = []
        while self.feed.due is not None:
            taken += self.take()
        return taken


@pytest.mark.parametrize("n_micro_batches", range(1, 13))
def test_any_size_after_any_other_and_after_any_part_of_a_step(n_micro_batches: int) -> None:
    """Exhaustively: a rank takes a part of a step, loses the epoch, and takes its next place in the same step or a later one."""
    ledger = Ledger("p", 2 * n_micro_batches, 2)
    places = [(rank, size) for size in range(1, min(n_micro_batches, 4) + 2) for rank in range(size)]
    for (before, after), later in itertools.product(itertools.product(places, repeat=2), (0, 1)):
        n_due = len(
            range(before[0] * n_micro_batches // before[1], (before[0] + 1) * n_micro_batches // before[1])
        )
        for n_taken in range(n_due + 1):
            one = Rank(ledger)
            one.begin(3, *before)
            for _ in range(n_taken):
                one.take()
            one.feed.fenced()
            one.feed.dropped()
            one.begin(3 + later, *after)
            numbers = ledger.numbers(3 + later)
            first, last = (place * n_micro_batches // after[1] * 2 for place in (after[0], after[0] + 1))
            assert one.take_all() == list(numbers[first:last])
            assert one.feed.phase == "spent"


@given(st.integers(1, 12), st.integers(0, 2**32), st.integers(1, 60))
def test_committed_steps_train_each_number_once(n_micro_batches: int, seed: int, n_events: int) -> None:
    """J2 under random deaths, joins and lost epochs, with steps that are rolled forward."""
    chance = random.Random(seed)
    ledger = Ledger("p", n_micro_batches, 1)
    ranks = [Rank(ledger) for _ in range(chance.randint(1, 4))]
    trained: list[int] = []
    step = 0
    for _ in range(n_events):
        places = chance.sample(ranks, len(ranks))
        taken: list[int] = []
        for rank, one in enumerate(places):
            one.begin(step, rank, len(places))
        is_whole = chance.random() < 0.6
        for one in places:
            n_left = one.feed.n_due
            for _ in range(n_left if is_whole else chance.randint(0, n_left)):
                taken += one.take()
            if chance.random() < 0.3:
                one.feed.fenced()
        is_committed = is_whole and chance.random() < 0.8
        for one in places:
            if is_committed:
                one.feed.committed()
            else:
                one.feed.dropped()
        if is_committed:
            trained += sorted(taken)
            step += 1
        if chance.random() < 0.4:
            ranks = [*chance.sample(ranks, chance.randint(0, len(ranks))), Rank(ledger)]
    assert trained == list(range(step * n_micro_batches))


def test_a_stream_that_is_in_place_is_left_alone() -> None:
    """Each aim takes a look at all samples that are ordered ahead."""
    one = Rank(Ledger("p", 12, 2))
    for step in range(4):
        one.begin(step, 1, 2)
        assert one.take_all() == list(range(12 * step + 6, 12 * step + 12))
        one.feed.committed()
    assert one.stream.n_aimed == 1
    # Made again, from its begin.
    one.begin(4, 1, 2)
    one.take()
    one.feed.fenced()
    one.feed.dropped()
    one.begin(4, 1, 2)
    assert one.take_all() == list(range(54, 60))
    assert one.stream.n_aimed == 2


def test_a_product_that_comes_again_is_aimed_at_again() -> None:
    """Its numbers go on where its last step ended, and the stream was with another product meanwhile."""
    ledger = Ledger("a", 4, 2, ((1, "b"), (2, "a")))
    feed = Feed()
    for step, first in enumerate((0, 0, 4)):
        assert feed.begin(ledger, step, 0, 1) == Aim(first, 4, 4)
        feed.took()
        feed.took()
        feed.committed()
    assert feed.begin(ledger, 3, 0, 1) is None


def test_a_step_is_not_committed_without_all_micro_batches() -> None:
    one = Rank(Ledger("p", 4, 2))
    one.begin(0, 0, 1)
    one.take()
    with pytest.raises(AssertionError, match="serving"):
        one.feed.committed()
    one.feed.fenced()
    with pytest.raises(AssertionError, match="without micro-batches"):
        one.feed.committed()
    with pytest.raises(AssertionError, match="settling"):
        one.feed.took()
