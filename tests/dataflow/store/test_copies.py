"""Which worker of a node gets a value: each node gets it once, nothing waits for ever, and senders are balanced."""

from __future__ import annotations

from softs_fast.dataflow.store import Copies, Place, SegmentAddress
from softs_fast.records import replace


def place(worker: int, serial: int, n_bytes: int = 8) -> Place:
    segment = SegmentAddress(worker + 1, 1, 1, 3, worker.to_bytes(16, "little"), 1 << 20, "", "")
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


def test_a_step_that_waits_keeps_what_it_has_claimed_from_later_ones() -> None:
    copies, first, second = Copies(NODES), place(0, 1), place(0, 2)
    assert chosen(copies, 2, 1, first) == [0]
    assert chosen(copies, 3, 2, first, second) is None
    assert copies.choose(2, 3, [1], {"x": [second]}) is None, "or both would wait for each other"
    copies.arrived(2, 1, "x", [0], [place(2, 9)])
    assert not copies.ended(2, 1)
    assert chosen(copies, 3, 2, first, second) == [2, 0]
    assert copies.ended(3, 2)
    assert copies.choose(2, 3, [1], {"x": [second]}) == {"x": [second]}


def test_copies_go_with_their_rows_and_a_value_that_is_made_again_is_another_one() -> None:
    copies = Copies(NODES)
    assert chosen(copies, 2, 1, place(0, 1), place(0, 2)) == [0, 0]
    copies.arrived(2, 1, "x", [0, 1], [place(2, 8), place(2, 9)])
    copies.ended(2, 1)
    assert chosen(copies, 3, 2, place(0, 5), place(0, 2)) == [0, 2]
    copies.arrived(3, 2, "x", [0], [place(3, 7)])
    copies.ended(3, 2)
    assert copies.free([0, 1, 2]) == {2: [0, 1], 3: [0]}, "worker 2 keeps the first value of row 0"
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


def test_what_is_being_read_from_a_worker_counts() -> None:
    copies = Copies({0: "a", 1: "b", 2: "c", 3: "d"})
    ours, both = [place(0, i, 100) for i in range(8)], [place(0, 20 + i, 100) for i in range(8)]
    ids = range(10, 18)
    assert copies.choose(1, 1, ids, {"x": both}) == {"x": both}
    copies.arrived(1, 1, "x", ids, [replace(place(1, 40 + i), n_bytes=100) for i in range(8)])
    copies.ended(1, 1)
    # One worker reads what only worker 0 has, the other one what worker 1 has, too: so worker 1 sends all of that.
    assert chosen(copies, 2, 2, *ours) == [0] * 8
    found = copies.choose(3, 2, ids, {"x": both})
    assert found is not None
    assert [one.worker for one in found["x"]] == [1] * 8


def test_a_sender_that_ends_before_a_worker_was_told_is_replaced() -> None:
    copies = Copies({0: "a", 1: "b", 2: "c", 3: "d"})
    rows = [place(0, i, 100) for i in range(4)]
    assert chosen(copies, 1, 1, *rows) == [0] * 4
    copies.arrived(1, 1, "x", range(4), [replace(place(1, 40 + i), n_bytes=100) for i in range(4)])
    copies.ended(1, 1)
    assert chosen(copies, 2, 2, *rows) == [0, 1, 0, 1]
    copies.lose(1)
    assert chosen(copies, 2, 2, *rows) == [0] * 4


def test_a_step_that_ends_leaves_a_claim_of_a_later_one_alone() -> None:
    copies = Copies(NODES)
    assert chosen(copies, 2, 1, place(0, 1)) == [0]
    assert chosen(copies, 3, 2, place(0, 5)) == [0]  # it was made again meanwhile
    assert copies.ended(2, 1)
    copies.arrived(3, 2, "x", [0], [place(3, 7)])
    copies.ended(3, 2)
    assert chosen(copies, 2, 3, place(0, 5)) == [3]


def test_a_copy_of_a_value_that_is_made_again_goes_with_the_row() -> None:
    copies = Copies(NODES)
    assert copies.choose(2, 1, [5], {"x": [place(0, 1)]}) == {"x": [place(0, 1)]}
    copies.arrived(2, 1, "x", [5], [place(2, 8)])
    copies.ended(2, 1)
    # Its maker has died, and the value was made again: another worker of the node gets it.
    copies.lose(0)
    assert copies.choose(3, 2, [5], {"x": [place(0, 5)]}) == {"x": [place(0, 5)]}
    copies.arrived(3, 2, "x", [5], [place(3, 7)])
    copies.ended(3, 2)
    assert copies.free([5]) == {2: [5], 3: [5]}
    assert copies.free([5]) == {}


def test_what_arrives_without_a_claim_goes_with_the_row_and_with_its_worker() -> None:
    copies = Copies(NODES)
    for worker, ticket, serial in ((2, 1, 1), (3, 2, 5)):
        assert copies.choose(worker, ticket, [5], {"x": [place(0, serial)]}) is not None
    copies.arrived(2, 1, "x", [5], [place(2, 8)])  # its claim is that of the other one now
    copies.ended(2, 1)
    copies.arrived(3, 2, "x", [5], [place(3, 7)])
    copies.lose(3)
    assert copies.free([5]) == {2: [5]}
