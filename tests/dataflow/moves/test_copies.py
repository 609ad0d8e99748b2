"""Which worker of a node gets a value: each node gets it once, nothing waits for ever, and senders are balanced."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from softs_fast.dataflow.moves import Copies, Place, Redistributor, RowsToMove, SegmentAddress


def place(worker: int, serial: int, n_bytes: int = 8) -> Place:
    segment = SegmentAddress(worker + 1, 1, 1, 3, worker.to_bytes(16, "little"), 1 << 20)
    return Place(worker, segment, 64 * serial, n_bytes, serial, "bytes", ())


NODES = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"}


def chosen(copies: Copies, worker: int, ticket: int, *places: Place) -> list[int] | None:
    """Return the workers from which a worker reads rows 0, 1, ... of a column; None: it waits."""
    found = copies.choose(worker, ticket, range(len(places)), {"x": places})
    return None if found is None else [one.worker for one in found["x"]]


def test_the_first_worker_of_a_node_gets_a_value_and_the_others_have_it_from_there() -> None:
    copies, made = Copies(NODES), place(0, 1)
    assert chosen(copies, 1, 5, made) == [0]
    assert chosen(copies, 2, 6, made) == [0]
    assert chosen(copies, 3, 7, made) is None
    assert chosen(copies, 2, 6, made) == [0], "it is its own to get"
    copies.arrived(2, 6, "x", [0], [place(2, 9)])
    copies.ended(2, 6)
    assert chosen(copies, 3, 7, made) == [2]
    assert chosen(copies, 2, 8, made) == [2]
    assert copies.n_bytes == 8


def test_what_does_not_arrive_is_fetched_by_the_next() -> None:
    copies, made = Copies(NODES), place(0, 1)
    assert chosen(copies, 2, 6, made, place(0, 2)) == [0, 0]
    copies.arrived(2, 6, "x", [1], [place(2, 9)])
    copies.ended(2, 6)
    assert chosen(copies, 3, 7, made, place(0, 2)) == [0, 2]
    copies.lose(3)
    assert chosen(copies, 2, 8, made, place(0, 2)) == [0, 2]
    copies.lose(2)
    assert chosen(copies, 3, 9, place(0, 2)) == [0]


def test_copies_go_with_their_rows_and_a_value_that_is_made_again_is_another_one() -> None:
    copies = Copies(NODES)
    assert chosen(copies, 2, 1, place(0, 1), place(0, 2)) == [0, 0]
    copies.arrived(2, 1, "x", [0, 1], [place(2, 8), place(2, 9)])
    copies.ended(2, 1)
    assert chosen(copies, 3, 2, place(0, 5), place(0, 2)) == [0, 2]
    copies.arrived(3, 2, "x", [0], [place(3, 7)])
    copies.ended(3, 2)
    assert copies.free([0, 1, 2]) == {3: [0], 2: [1]}
    assert copies.free([0, 1, 2]) == {}
    copies.arrived(3, 2, "x", [0], [place(3, 7)])  # late
    assert chosen(copies, 3, 4, place(0, 5)) == [0]


def test_the_senders_of_values_that_several_nodes_have_are_balanced() -> None:
    copies = Copies(NODES)
    rows = [place(0, i, 100) for i in range(10)]
    assert chosen(copies, 2, 1, *rows) == [0] * 10
    copies.arrived(2, 1, "x", range(10), [replace(place(2, 20 + i), n_bytes=100) for i in range(10)])
    copies.ended(2, 1)
    senders = chosen(copies, 4, 2, *rows)
    assert senders is not None
    assert sorted(senders.count(one) for one in (0, 2)) == [5, 5]


@pytest.mark.parametrize("seed", range(60))
def test_random_orders_of_steps_end_and_move_the_least_bytes(seed: int) -> None:
    """Workers run steps by ticket; a step begins when its values are on the node. Some reads fail, and rows go."""
    draw = random.Random(seed)
    nodes = {worker: draw.choice("abc") for worker in range(draw.randint(2, 6))}
    copies, fails = Copies(nodes), seed % 3 == 0
    rows = {row: place(draw.choice(list(nodes)), row + 1, draw.randint(0, 50)) for row in range(12)}
    queues: dict[int, list[tuple[int, list[int]]]] = {worker: [] for worker in nodes}
    for ticket in range(1, 40):
        queues[draw.choice(list(nodes))].append((ticket, sorted(draw.sample(list(rows), draw.randint(1, 6)))))
    had: dict[tuple[int, str], int] = {}
    inside: dict[int, tuple[int, list[tuple[int, Place]]]] = {}
    wanted: set[tuple[int, str]] = set()
    while any(queues.values()) or inside:
        moves = []
        for worker, queue in queues.items():
            if worker in inside:
                moves.append(worker)
            elif queue:
                ticket, ids = queue[0]
                found = copies.choose(worker, ticket, ids, {"x": [rows[row] for row in ids]})
                if found is not None:
                    far = [
                        (row, one)
                        for row, one in zip(ids, found["x"], strict=True)
                        if nodes[one.worker] != nodes[worker]
                    ]
                    wanted |= {
                        (row, nodes[worker]) for row in ids if nodes[rows[row].worker] != nodes[worker]
                    }
                    inside[worker] = ticket, far
                    moves.append(worker)
        assert moves, f"seed {seed}: nothing can go on"
        worker = draw.choice(moves)
        ticket, far = inside[worker]
        if far and not (fails and draw.random() < 0.3):
            row, one = far.pop()
            had[row, nodes[worker]] = had.get((row, nodes[worker]), 0) + 1
            copies.arrived(
                worker, ticket, "x", [row], [replace(place(worker, 100 + row), n_bytes=one.n_bytes)]
            )
            continue
        copies.ended(worker, ticket)
        del inside[worker]
        queues[worker].pop(0)
    assert set(had.values()) <= {1}, f"seed {seed}: each node has each value once"
    if fails:
        return
    assert set(had) == wanted
    numbers = {node: i for i, node in enumerate(sorted(set(nodes.values())))}
    plans = Redistributor({worker: numbers[node] for worker, node in nodes.items()})
    least = 0
    for node in numbers:
        ids = [row for row, other in wanted if other == node]
        worker = next(one for one, other in nodes.items() if other == node)
        move = RowsToMove.of(
            ids, {"x": [rows[i].n_bytes for i in ids]}, {"x": [[rows[i].worker] for i in ids]}
        )
        least += plans.plan(move, [[worker]]).least_bytes
    assert copies.n_bytes == least
