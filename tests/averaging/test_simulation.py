"""300 ranks in virtual time: each decides for itself by old news of the others, while ranks die, join and lag."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest

from softs_fast.averaging import Member, Rules, decide

N_RANKS = 300
RULES = Rules(every=20, strategy="mean", replace_worst=0.1, burn_in=40, cooldown=60, donor_share=0.02)


@dataclass
class Rank:
    """A rank: what it has done, and the quality of its weights."""

    number: int
    step_s: float
    quality: float
    step: int = 0
    trained: int = 0
    version: int = 0
    is_alive: bool = True
    replaced_at: list[int] = field(default_factory=list)
    lineage: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class World:
    """All ranks and the clock."""

    seed: int
    rules: Rules
    ranks: dict[int, Rank] = field(default_factory=dict)
    board: dict[int, Member] = field(default_factory=dict)
    donated_untrained: int = 0
    donated_dead: int = 0

    def run(self, n_checks: int) -> None:
        """Let ranks train until `n_checks` of them have checked their rules."""
        chance = random.Random(self.seed)
        events: list[tuple[float, int]] = []
        for number in range(N_RANKS):
            self.start(number, chance, events, now=0.0)
        n_done = 0
        newcomer = N_RANKS
        while n_done < n_checks:
            now, number = heapq.heappop(events)
            rank = self.ranks[number]
            if chance.random() < 0.01:
                # It dies. Others see its last snapshot as of a dead rank from then on; a new rank starts.
                rank.is_alive = False
                known = self.board.get(number)
                if known is not None:
                    self.board[number] = Member(
                        number, False, known.version, known.trained, known.metric, b""
                    )
                self.start(newcomer, chance, events, now)
                newcomer += 1
                continue
            rank.step += self.rules.every
            rank.trained += self.rules.every
            rank.quality += chance.gauss(0.1, 0.5)
            self.check(rank)
            n_done += 1
            heapq.heappush(events, (now + rank.step_s * self.rules.every, number))

    def start(self, number: int, chance: random.Random, events: list[tuple[float, int]], now: float) -> None:
        """A rank joins; one in ten is slow, down to a hundredth of the speed."""
        step_s = chance.choice([0.1, 1.0]) if chance.random() < 0.1 else 0.01
        self.ranks[number] = Rank(number, step_s, chance.gauss(0, 1))
        heapq.heappush(events, (now + step_s * self.rules.every * chance.random(), number))

    def check(self, rank: Rank) -> None:
        """A rank decides by what the others have published, takes over, and publishes."""
        rank.version += 1
        own = Member(rank.number, True, rank.version, rank.trained, rank.quality, b"")
        self.board[rank.number] = own
        last = rank.replaced_at[-1] if rank.replaced_at else None
        decision = decide(
            rank.number,
            rank.step,
            list(self.board.values()),
            self.rules,
            last,
            len(rank.replaced_at),
            self.seed,
        )
        if decision.replace:
            for donor, _ in decision.donors:
                self.donated_untrained += self.board[donor].trained < self.rules.burn_in
                self.donated_dead += not self.ranks[donor].is_alive
            rank.quality = sum(weight * self.ranks[donor].quality for donor, weight in decision.donors)
            rank.lineage += [(donor, self.board[donor].version) for donor, _ in decision.donors]
            rank.replaced_at.append(rank.step)
            rank.trained = 0


@pytest.fixture(scope="module")
def world() -> World:
    world = World(seed=3, rules=RULES)
    world.run(6 * N_RANKS)
    return world


def test_rules_hold_in_every_history(world: World) -> None:
    n_replaced = 0
    for rank in world.ranks.values():
        n_replaced += len(rank.replaced_at)
        assert all(step % RULES.every == 0 and step >= RULES.burn_in for step in rank.replaced_at)
        gaps = [after - before for before, after in zip(rank.replaced_at, rank.replaced_at[1:], strict=False)]
        assert all(gap >= RULES.cooldown for gap in gaps)
    assert n_replaced > 30
    assert world.donated_untrained == 0
    assert world.donated_dead == 0
    assert len(world.ranks) > N_RANKS, "ranks died and joined"


def test_slow_ranks_hold_up_no_other(world: World) -> None:
    """Fast ranks have made as many steps as their own speed allows."""
    fast = [rank.step for rank in world.ranks.values() if rank.step_s == 0.01 and rank.number < N_RANKS]
    slow = [rank.step for rank in world.ranks.values() if rank.step_s == 1.0 and rank.number < N_RANKS]
    assert sum(fast) / len(fast) > 5 * max(1, sum(slow) / len(slow))


def test_replacement_raises_the_quality(world: World) -> None:
    without = World(seed=3, rules=Rules(every=20, replace_worst=0.0))
    without.run(6 * N_RANKS)

    def mean(of: World) -> float:
        alive = [rank.quality for rank in of.ranks.values() if rank.is_alive]
        return sum(alive) / len(alive)

    assert mean(world) > mean(without) + 0.1


def test_the_same_seed_gives_the_same_history(world: World) -> None:
    again = World(seed=3, rules=RULES)
    again.run(6 * N_RANKS)
    assert [rank.lineage for rank in again.ranks.values()] == [rank.lineage for rank in world.ranks.values()]
