"""What ranks of several hosts say to each other, in virtual time: messages that are late, ranks that stop, and limits."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from softs_fast.averaging.hosts.correspondent import (
    BEAT_S,
    MAX_FAILURES,
    MAX_SERVED,
    SILENT_S,
    WANTED_S,
    Correspondent,
)
from softs_fast.averaging.hosts.messages import Ask, Leave, Look, Message, Seen, SentHeader, Want
from softs_fast.averaging.reports import Report
from softs_fast.snapshots import Header


def header(version: int) -> Header:
    return Header(version, 0, 0.5, 0, 0.0, None)


def sent(version: int) -> SentHeader:
    return SentHeader.of(header(version), 0.0)


@dataclass
class Node:
    """A rank: what it knows, the version that it has, and the times in which it does not run."""

    known: Correspondent
    version: int = 0
    reports: tuple[Report, ...] = ()
    is_stopped: bool = False
    waiting: list[tuple[int, Message]] = field(default_factory=list)


class Network:
    """Ranks that exchange messages, each after a random time; all of it follows from the seed."""

    def __init__(self, size: int, seed: int = 0, slowest_s: float = 0.05) -> None:
        self.now_s = 0.0
        self.nodes = {
            rank: Node(Correspondent([other for other in range(size) if other != rank], 0.0))
            for rank in range(size)
        }
        self._chance = random.Random(seed)
        self._slowest_s = slowest_s
        self._number = itertools.count()
        self._flying: list[tuple[float, int, int, int, Message]] = []
        self.n_sent = 0
        self.most_flying = 0
        for rank, node in self.nodes.items():
            self.send(rank, node.known.greet())

    def send(self, sender: int, letters: list[tuple[int, Message]]) -> None:
        for rank, message in letters:
            self.n_sent += 1
            at_s = self.now_s + self._chance.uniform(0, self._slowest_s)
            heapq.heappush(self._flying, (at_s, next(self._number), sender, rank, message))
        pairs = [(sender, rank) for _, _, sender, rank, _ in self._flying]
        pairs += [(sender, rank) for rank, node in self.nodes.items() for sender, _ in node.waiting]
        self.most_flying = max([self.most_flying, *(pairs.count(pair) for pair in set(pairs))])

    def run(self, seconds: float, poll_s: float = 0.01) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += poll_s
            while self._flying and self._flying[0][0] <= self.now_s:
                _, _, sender, rank, message = heapq.heappop(self._flying)
                self.nodes[rank].waiting.append((sender, message))
            for rank, node in self.nodes.items():
                if node.is_stopped:
                    continue
                for sender, message in node.waiting:
                    self.send(rank, node.known.hear(sender, message, self.now_s))
                node.waiting = []
                self.send(rank, node.known.tell(header(node.version), node.reports, self.now_s))

    def sees(self, rank: int, other: int) -> tuple[int, bool]:
        known = self.nodes[rank].known
        return known.header(other).version, known.is_alive(other, self.now_s)


@pytest.mark.parametrize("seed", range(8))
def test_versions_arrive_and_messages_between_two_ranks_are_few(seed: int) -> None:
    network = Network(5, seed)
    chance = random.Random(seed)
    for _ in range(300):
        network.nodes[chance.randrange(5)].version += 1
        network.run(0.01)
    network.run(0.5)
    for rank, other in itertools.permutations(range(5), 2):
        assert network.sees(rank, other) == (network.nodes[other].version, True)
    assert network.most_flying <= 3


def test_ranks_that_have_nothing_new_say_so_once_per_beat() -> None:
    network = Network(3)
    network.run(1.0)
    before = network.n_sent
    network.run(100 * BEAT_S)
    per_pair = (network.n_sent - before) / (3 * 2)
    # A look and its answer.
    assert per_pair <= 2 * 100


def test_a_rank_that_stops_is_missed_and_seen_again_when_it_goes_on() -> None:
    network = Network(3)
    network.run(1.0)
    network.nodes[1].is_stopped = True
    network.run(SILENT_S / 2)
    assert network.sees(0, 1) == (0, True)
    network.run(SILENT_S)
    assert network.sees(0, 1) == (0, False)
    assert network.sees(0, 2) == (0, True)
    # However much the others publish, a rank that does not read is not sent more and more.
    for _ in range(1000):
        network.nodes[0].version += 1
        network.run(0.01)
    assert network.most_flying <= 3
    network.nodes[1].is_stopped = False
    network.nodes[1].version = 7
    network.run(0.5)
    assert network.sees(0, 1) == (7, True)
    assert network.sees(1, 0) == (1000, True)


def test_a_rank_that_leaves_gets_no_more_answers() -> None:
    network = Network(2)
    network.run(1.0)
    network.send(1, network.nodes[1].known.farewell())
    network.nodes[1].is_stopped = True
    network.run(1.0)
    assert network.nodes[0].known.has_left(1)
    before = network.n_sent
    network.nodes[0].version += 1
    network.run(10.0)
    assert network.n_sent == before
    assert network.nodes[0].known.farewell() == []


def test_messages_that_overtake_each_other_bring_no_older_version() -> None:
    known = Correspondent([1], 0.0)
    assert known.hear(1, Seen(sent(5)), 0.0) == [(1, Look(5, 0))]
    assert known.hear(1, Seen(sent(4)), 0.0) == [(1, Look(5, 0))]
    assert known.header(1).version == 5


def test_a_report_is_news_without_a_version() -> None:
    network = Network(2)
    network.run(1.0)
    network.nodes[1].reports = (Report(1, 0.5, 100),)
    network.run(0.2)
    assert network.nodes[0].known.reports(1) == (Report(1, 0.5, 100),)
    known = Correspondent([1], 0.0)
    newer, older = (Report(2, 0.5, 200),), (Report(1, 0.5, 100),)
    known.hear(1, Seen(sent(1), newer), 0.0)
    assert known.hear(1, Seen(sent(1), older), 0.0) == [(1, Look(1, 2))]
    assert known.reports(1) == newer


def test_an_ask_holds_until_a_newer_version() -> None:
    known = Correspondent([1, 2], 0.0)
    assert not known.is_asked(0)
    known.hear(1, Ask(3), 0.0)
    known.hear(2, Ask(2), 0.0)
    assert known.is_asked(3)
    assert not known.is_asked(4)
    known.hear(1, Ask(1 << 60), 0.0)
    assert not known.is_asked(4), "a version that there is not yet cannot be known"


def test_wants_are_served_in_turn_and_few_at_once() -> None:
    known = Correspondent(range(1, 6), 0.0)
    for rank in range(1, 6):
        known.hear(rank, Want(rank, False), 0.0)
    first = [known.next_to_serve(0.0) for _ in range(MAX_SERVED + 1)]
    assert first == [(1, Want(1, False)), (2, Want(2, False)), None]
    # A rank that wants again while it is served comes after those that wait.
    known.hear(1, Want(11, False), 0.0)
    order = []
    for rank in (1, 2, 3, 4, 5, 1):
        known.served(rank)
        found = known.next_to_serve(1.0)
        order.append(found[0] if found else None)
    assert order == [3, 4, 5, 1, None, None]


def test_a_want_that_its_rank_has_given_up_is_not_served() -> None:
    known = Correspondent([1, 2], 0.0)
    known.hear(1, Want(1, False), 0.0)
    known.hear(2, Want(1, False), 0.0)
    known.hear(2, Want(2, False), 1.0)
    assert known.next_to_serve(WANTED_S) == (2, Want(2, False)), (
        "the newer want of a rank replaces the older one"
    )
    assert known.next_to_serve(WANTED_S) is None
    known.hear(1, Want(3, False), 2.0)
    known.hear(1, Leave(), 2.0)
    assert known.next_to_serve(2.0) is None


def test_a_rank_with_failed_transfers_counts_as_dead_until_it_is_heard_and_in_the_end_for_good() -> None:
    known = Correspondent([1], 0.0)
    for _ in range(MAX_FAILURES - 1):
        known.failed(1)
        assert not known.is_alive(1, 0.0)
        known.hear(1, Seen(sent(1)), 0.0)
        assert known.is_alive(1, 0.0)
    known.received(1)
    for _ in range(MAX_FAILURES):
        assert not known.has_left(1)
        known.failed(1)
    known.hear(1, Seen(sent(1)), 0.0)
    assert known.has_left(1)
    assert not known.is_alive(1, 0.0)
