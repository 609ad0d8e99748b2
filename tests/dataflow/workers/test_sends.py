"""Orders for workers of several nodes, in virtual time: nothing waits for ever, and each node gets each value once."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

from softs_fast.dataflow.link.messages import Columns, MainTask, MoveTask
from softs_fast.dataflow.master.holdings import Holdings
from softs_fast.dataflow.master.master import DRIVER
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.dataflow.process.work import Work
from softs_fast.dataflow.store import Place, Redistributor, RowsToMove, SegmentAddress
from softs_fast.dataflow.workers.sends import Sends


def place(worker: int, serial: int, n_bytes: int, host: str = "") -> Place:
    segment = SegmentAddress(worker + 1, 1, 1, 3, worker.to_bytes(16, "little"), 1 << 20, host, "")
    return Place(worker, segment, 64 * serial, n_bytes, serial, "bytes", ())


def task(ids: tuple[int, ...], columns: dict[str, list[Place]]) -> MainTask:
    return MainTask(1, 1, "f", ids, Columns.of(columns), ({},) * len(ids), 0, 0, True, 0)


def holding(nodes: dict[int, str], *rows: Place) -> Holdings:
    """Return groups of one row, of which workers have made a column."""
    held = Holdings()
    held.begin(nodes)
    for row_id, one in enumerate(rows):
        held.admit([row_id])
        held.put([row_id], {"x": [one]}, one.worker)
    return held


@dataclass
class Simulation:
    """Workers that run steps by ticket; a step with several participants ends when all are inside and have fetched.

    Args:
        seed: Seed of all random choices.
        fails: Whether some reads fail.
        dies: Whether workers end, and are there again, perhaps on another node; what they had made others make again.
    """

    seed: int
    fails: bool
    dies: bool
    inboxes: dict[int, deque[tuple[Step, MainTask | MoveTask]]] = field(default_factory=dict)
    #: By worker the step that it is inside of, and groups that it has to fetch.
    inside: dict[int, tuple[Step, list[tuple[list[int], list[Place]]]]] = field(default_factory=dict)
    fetched: dict[tuple[int, str], int] = field(default_factory=dict)
    #: By worker its steps that were given to `Sends`, and have not ended; and steps that have ended.
    open: dict[int, set[int]] = field(default_factory=dict)
    ended: set[tuple[int, int]] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    n_deaths: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.nodes = {worker: self.draw.choice("abc") for worker in range(self.draw.randint(2, 6))}
        self.inboxes = {worker: deque() for worker in self.nodes}
        self.open = {worker: set() for worker in self.nodes}
        self.group, self.serials, self.rows = self.draw.choice([1, 1, 3]), count(1), dict[int, Place]()
        self.held = Holdings()
        self.held.begin({**self.nodes, DRIVER: "a"})
        for first in range(0, 10 * self.group, self.group):
            self.held.admit(range(first, first + self.group))
            self.make(first)
        self.sends = Sends(self.deliver, lambda worker, state: None, self.held)
        self.steps: list[tuple[Step, list[int]]] = []
        for ticket in range(1, 40):
            workers = self.draw.sample(list(self.nodes), self.draw.choice([1, 1, 1, 2]))
            firsts = sorted(self.draw.sample(range(0, 10 * self.group, self.group), self.draw.randint(1, 5)))
            ids = [row for first in firsts for row in range(first, first + self.group)]
            self.steps.append((Step(Kind.MAIN, frozenset(workers), ticket=ticket, call=ticket), ids))

    def place(self, worker: int, n_bytes: int) -> Place:
        return place(worker, next(self.serials), n_bytes, self.nodes[worker])

    def make(self, first: int) -> None:
        """A worker makes the column of a group."""
        worker, ids = self.draw.choice(list(self.nodes)), range(first, first + self.group)
        places = [self.place(worker, self.draw.randint(0, 50)) for _ in ids]
        self.rows |= zip(ids, places, strict=True)
        self.held.put(ids, {"x": places}, worker)

    def kill(self, worker: int) -> None:
        """A worker ends; another process with its number joins, and the flow gets to know."""
        self.n_deaths += 1
        self.gone |= {one.serial for one in self.rows.values() if one.worker == worker}
        self.gone |= {one.serial for one in self.copies if one.worker == worker}
        self.inboxes[worker].clear()
        self.inside.pop(worker, None)
        self.sends.lose(worker)
        for ticket in sorted(self.open[worker]):
            self.ended.add((worker, ticket))
            self.open[worker].discard(ticket)
            self.sends.ended(worker, ticket)
        self.nodes[worker] = self.draw.choice("abc")
        self.held.join(worker, self.nodes[worker])
        for first in self.held.lose(worker):
            self.make(first)

    def deliver(self, worker: int, order: Step, made: Work | None) -> None:
        assert isinstance(made, MainTask | MoveTask)
        assert all(before.ticket < order.ticket for before, _ in self.inboxes[worker]), "in their order"
        self.inboxes[worker].append((order, made))

    def run(self) -> None:
        """Send all in the order of tickets, at random moments between events, until all have ended."""
        issued, self.copies = deque(self.steps), list[Place]()
        while issued or len(self.ended) < sum(len(order.workers) for order, _ in self.steps):
            moves = [*self.movable(), *([-1] if issued else [])]
            assert moves, f"seed {self.seed}: nothing can go on"
            if self.dies and self.draw.random() < 0.02:
                self.kill(self.draw.choice(list(self.nodes)))
                continue
            worker = self.draw.choice(moves)
            if worker >= 0:
                self.move(worker)
                continue
            order, ids = issued.popleft()
            columns = {"x": [self.rows[row] for row in ids]}
            work: Work = task(tuple(ids), columns)
            if self.draw.random() < 0.3:
                work = MoveTask(1, 1, tuple(ids), Columns.of(columns))
            for one in sorted(order.workers):
                self.open[one].add(order.ticket)
                self.sends.step(one, order, lambda work=work: work)  # type: ignore[misc]

    def movable(self) -> list[int]:
        return [
            worker
            for worker, inbox in self.inboxes.items()
            if (worker not in self.inside and inbox) or (worker in self.inside and self.can_go_on(worker))
        ]

    def can_go_on(self, worker: int) -> bool:
        order, far = self.inside[worker]
        return bool(far) or all(
            (one, order.ticket) in self.ended
            or (one in self.inside and self.inside[one][0].ticket == order.ticket and not self.inside[one][1])
            for one in order.workers
        )

    def move(self, worker: int) -> None:
        if worker not in self.inside:
            order, work = self.inboxes[worker].popleft()
            columns, size = work.columns.places["x"], self.group
            groups = [
                (list(work.ids[i : i + size]), columns[i : i + size]) for i in range(0, len(work.ids), size)
            ]
            far = [one for one in groups if self.is_far(worker, one[1])]
            self.inside[worker] = order, far
            return
        order, far = self.inside[worker]
        if far:
            ids, places = far.pop()
            if self.has_gone(places) or (self.fails and self.draw.random() < 0.3):
                self.end(worker, order)  # whatever the others do
                return
            key = ids[0], self.nodes[worker]
            self.fetched[key] = self.fetched.get(key, 0) + 1
            here = [self.place(worker, one.n_bytes) for one in places]
            self.copies += here
            self.sends.arrived(worker, order.ticket, "x", ids, here)
            return
        self.end(worker, order)

    def is_far(self, worker: int, places: list[Place]) -> bool:
        """Return whether values are elsewhere, or cannot be read."""
        return places[0].segment.host != self.nodes[worker] or self.has_gone(places)

    def has_gone(self, places: list[Place]) -> bool:
        return places[0].serial in self.gone

    def end(self, worker: int, order: Step) -> None:
        del self.inside[worker]
        self.open[worker].discard(order.ticket)
        self.ended.add((worker, order.ticket))
        self.sends.ended(worker, order.ticket)


@pytest.mark.parametrize("fails", [False, True])
def test_random_flows_end_and_each_node_gets_each_value_once(fails: bool) -> None:
    for seed in range(100):
        simulation = Simulation(seed, fails, dies=False)
        simulation.run()
        assert set(simulation.fetched.values()) <= {1}, f"seed {seed}"
        if not fails:
            assert simulation.held.n_bytes == least_bytes(simulation), f"seed {seed}"


def test_random_flows_end_although_workers_end_and_are_there_again() -> None:
    n_deaths = 0
    for seed in range(100):
        simulation = Simulation(seed, fails=seed % 2 == 0, dies=True)
        simulation.run()
        n_deaths += simulation.n_deaths
        frees = simulation.held.drop(range(10 * simulation.group))
        holders = {one.worker for one in simulation.rows.values()}
        assert holders <= frees.keys() <= simulation.nodes.keys(), f"seed {seed}"
        assert not simulation.held._coming, f"seed {seed}"
    assert n_deaths > 100


def least_bytes(simulation: Simulation) -> int:
    """Return the least that can go between nodes, by the plans of moves."""
    nodes, rows = simulation.nodes, simulation.rows
    numbers = {node: i for i, node in enumerate("abc")}
    plans = Redistributor({worker: numbers[node] for worker, node in nodes.items()})
    least = 0
    for node in set(nodes.values()):
        readers = {worker for worker, other in nodes.items() if other == node}
        ids = sorted({row for order, some in simulation.steps if order.workers & readers for row in some})
        move = RowsToMove.of(
            ids, {"x": [rows[row].n_bytes for row in ids]}, {"x": [[rows[row].worker] for row in ids]}
        )
        least += plans.plan(move, [[min(readers)]]).least_bytes
    return least


def reading() -> tuple[Sends, Callable[..., None], list[tuple[int, int]]]:
    """Workers 1, 2 and 3 are on another node than worker 0, which has two values.

    Returns:
        What passes steps on, what orders a worker a step that reads values, and workers and tickets of what was sent.
    """
    sent: list[tuple[int, int]] = []
    rows = [place(0, 1, 8), place(0, 2, 8)]
    sends = Sends(
        lambda worker, order, made: sent.append((worker, order.ticket)),
        lambda worker, state: None,
        holding({0: "a", 1: "b", 2: "b", 3: "b"}, *rows),
    )

    def order(worker: int, ticket: int, *ids: int) -> None:
        work = task(ids, {"x": [rows[i] for i in ids]})
        sends.step(worker, Step(Kind.MAIN, frozenset({worker}), ticket=ticket, call=ticket), lambda: work)

    return sends, order, sent


def test_an_order_that_is_aborted_while_it_waits_leaves_its_values_to_the_next() -> None:
    sends, order, sent = reading()
    order(1, 1, 0)
    order(2, 2, 0, 1)
    order(1, 3, 1)
    assert sent == [(1, 1)]
    assert sends.held_back() == {2, 3}
    assert sends.abort(2, 2)
    assert sends.held_back() == {3}
    assert not sends.abort(2, 2)
    sends.ended(2, 2)
    assert sent == [(1, 1), (1, 3)]
    assert not sends.held_back()
    sends.lose(1)
    order(2, 4, 0, 1)
    assert sent == [(1, 1), (1, 3), (2, 4)]
    sends.close()
    assert not sends.held_back()


def test_what_a_lost_worker_was_to_get_goes_to_the_first_step_that_waits() -> None:
    sends, order, sent = reading()
    order(1, 1, 0)
    order(3, 2)
    order(2, 3, 0)
    order(3, 4, 0)
    assert sent == [(1, 1), (3, 2)]
    sends.lose(1)
    # Worker 3 was given steps before worker 2 was: the tickets decide. If it got 4, 3 would wait for a later step.
    assert sent == [(1, 1), (3, 2), (2, 3)]
    assert sends.held_back() == {4}


def test_a_step_behind_one_that_waits_does_not_wait_for_a_later_one() -> None:
    sends, order, sent = reading()
    for worker, ticket, row in ((2, 1, 0), (1, 2, 0), (1, 3, 1), (2, 5, 1)):
        order(worker, ticket, row)
    # If 5 were there, 3 would wait for it; and both workers may have to be in 4 before.
    assert sent == [(2, 1)]
    sends.arrived(2, 1, "x", [0], [place(2, 9, 8)])
    assert sent == [(2, 1), (1, 2), (1, 3)]
    sends.arrived(1, 3, "x", [1], [place(1, 9, 8)])
    assert sent == [(2, 1), (1, 2), (1, 3), (2, 5)]
