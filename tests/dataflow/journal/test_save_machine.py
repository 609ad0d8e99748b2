"""Common saves in virtual time: random histories of steps, losses and full disks."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from softs_fast.dataflow.journal.machine import Move, SaveMachine, Seen

N_WORKERS = 3


class VirtualFlow:
    """A flow of which the events are drawn; it checks what is saved and yielded.

    Args:
        rng: Generator that draws.
        n_steps: Steps that its source has.
        dangers: Events that may end a save or the flow.
    """

    def __init__(self, rng: random.Random, n_steps: int, dangers: tuple[str, ...]) -> None:
        self.rng, self.n_steps, self.dangers = rng, n_steps, dangers
        self.every, self.max_restarts = rng.randint(1, 4), rng.randint(0, 3)
        self.machine = SaveMachine(self.every, self.max_restarts)
        self.moves: Counter[Move] = Counter()
        self.yielded_steps: list[int] = []
        self.n_disturbed = self.n_back = self.n_beside = 0
        self.dropped: set[int] = set()
        self.is_over = False
        self.go_on(None)

    def go_on(self, last: int | None) -> None:
        """All begins, with what a save has."""
        self.machine.goes_on(last)
        self.complete = self.yielded = last or 0
        self.is_training = self.is_away = False
        self.call = ""  # of the save: waits for tickets, is placed, has its answer or failed
        self.writing: set[int] = set()
        self.is_reading = False
        self.disturbed_at = 0

    def events(self) -> list[str]:
        """Return what can happen without a danger."""
        can = {
            # The order gives no tickets of a training call to a step behind the hold.
            "train": not self.is_training
            and not self.is_away
            and self.complete < min(self.machine.hold, self.n_steps),
            "complete": self.is_training and not self.is_away,
            "yield": self.yielded < self.complete,
            "place": self.call == "waits" and not self.is_training and not self.is_away,
            "write": self.call == "placed",
            "read": self.is_reading,
            "back": self.is_away,
        }
        return [name for name, is_possible in can.items() if is_possible]

    def do(self, event: str) -> None:
        """Have an event happen."""
        if event == "train":
            assert self.machine.last is not None, "it trains before a save counts"
            self.is_training = True
            self.n_beside += self.call == "placed"
        elif event == "complete":
            self.is_training = False
            self.complete += 1
        elif event == "yield":
            self.yielded += 1
            self.yielded_steps.append(self.yielded)
        elif event == "place":
            self.call, self.writing = "placed", set(range(N_WORKERS))
            # What is saved is of a moment between two steps.
            assert self.complete == self.machine.begun
        elif event == "write":
            self.writing.discard(self.rng.choice(sorted(self.writing)))
            self.call = "placed" if self.writing else "over"
        elif event == "read":
            self.is_reading = False
        elif event == "back":
            self.is_away = False
        elif event == "full" and self.call == "placed":
            self.call = "failed"
        elif event == "disturb" and not self.is_away:
            self.n_disturbed += 1
            self.is_away = True
            self.call = "failed" if self.call == "placed" else self.call
        elif event == "lose":
            self.lose()

    def lose(self) -> None:
        """A worker is lost, with what training has changed."""
        may = self.machine.may_go_back
        assert may == (self.machine.last is not None and self.machine.n_restarts < self.max_restarts)
        if not may:
            self.is_over = True
            return
        self.n_back += 1
        self.machine.goes_back()
        self.machine.was_dropped()
        self.go_on(self.machine.last)

    def advance(self) -> None:
        """Do what the machine says, as `CommonSaves` does."""
        while not self.is_over:
            is_disturbed = self.disturbed_at != self.n_disturbed
            has_answer = self.call in ("over", "failed")
            seen = Seen(
                self.complete,
                self.yielded,
                is_whole=not self.is_away,
                is_idle=not self.is_training and self.call != "placed",
                is_placed=self.call not in ("", "waits"),
                is_disturbed=is_disturbed,
                is_over=has_answer,
                has_failed=self.call == "failed",
                has_rows=not self.is_reading,
            )
            move = self.machine.move(seen)
            self.moves.update([move] if move is not None else [])
            if move is Move.BEGIN:
                assert not self.is_away
                assert not self.is_training
                assert self.complete % self.every == 0
                self.call, self.disturbed_at = "waits", self.n_disturbed
                self.is_reading = self.rng.random() < 0.5
                self.machine.has_begun(self.complete)
            elif move is Move.WITHDRAW:
                self.call = "failed" if self.call == "waits" else self.call
                return
            elif move is Move.COMMIT:
                step = self.machine.begun
                assert self.call == "over"
                assert not is_disturbed
                assert step is not None
                assert self.yielded >= step
                # Training is not held up by rows that are read, unless nothing else can be done.
                assert not self.is_reading or not self.is_training or self.complete >= self.machine.hold
                self.call, self.is_reading = "", False
                self.machine.has_counted()
                assert (self.machine.last, self.machine.n_restarts) == (step, 0)
            elif move is Move.DROP:
                assert is_disturbed
                assert has_answer, "others write, still"
                assert self.machine.begun is not None
                self.dropped.add(self.machine.begun)
                self.call, self.is_reading = "", False
                self.machine.was_dropped()
            elif move is Move.FAIL:
                self.is_over = True
            if move is None:
                return

    def run(self) -> None:
        """Run until all steps are yielded and saved, or the flow has failed."""
        for _ in range(10_000):
            self.advance()
            if self.is_over or (self.yielded == self.n_steps and self.machine.begun is None):
                return
            possible = self.events()
            assert set(possible) - {"read"}, "nothing can happen, but rows are read"
            if self.dangers and self.rng.random() < 0.05:
                self.do(self.rng.choice(self.dangers))
            elif possible:
                self.do(self.rng.choice(possible))
        raise AssertionError("the flow does not end")

    def check(self) -> None:
        """Each step is yielded in its order, those behind a save again after the flow has gone back."""
        before = 0
        for number in self.yielded_steps:
            assert number == before + 1 or (number <= before and (number - 1) % self.every == 0)
            before = number
        if not self.is_over:
            assert before == self.n_steps
            due = self.n_steps // self.every * self.every
            assert self.machine.last == due or due in self.dropped or self.is_away


@pytest.mark.parametrize("dangers", [(), ("disturb",), ("full", "disturb"), ("lose",), ("lose", "disturb")])
def test_histories(dangers: tuple[str, ...]) -> None:
    moves: Counter[Move] = Counter()
    n_back = n_failed = n_beside = 0
    for seed in range(200):
        flow = VirtualFlow(random.Random(seed), 3 + seed % 12, dangers)
        flow.run()
        flow.check()
        moves += flow.moves
        n_back += flow.n_back
        n_beside += flow.n_beside
        n_failed += flow.is_over
    assert n_beside > 25, "training waits for workers that write"
    assert (moves[Move.DROP] > 25) == (moves[Move.WITHDRAW] > 25) == ("disturb" in dangers)
    assert (moves[Move.FAIL] > 25) == ("full" in dangers)
    assert (n_back > 25) == ("lose" in dangers)
    assert bool(n_failed) == bool({"full", "lose"} & set(dangers))


@pytest.mark.parametrize(("last", "n", "may"), [(None, 0, False), (0, 0, True), (0, 2, True), (4, 3, False)])
def test_a_flow_goes_back_to_a_save_and_not_endlessly(last: int | None, n: int, may: bool) -> None:
    machine = SaveMachine(2, 3)
    machine.goes_on(last)
    for _ in range(n):
        machine.goes_back()
    assert machine.may_go_back is may
