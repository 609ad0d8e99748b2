"""Which workers hold what: memory goes when rows have gone and no step reads them, and each node gets a value once.

Histories of rows, with what workers hold of them, are in rows/test_rows_reference.py, and those of steps that wait for
copies in workers/test_sends.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from softs_fast.dataflow.master.holdings import Holdings

NODES = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"}
APART = {0: "a", 1: "b", 2: "c", 3: "d"}


@dataclass(frozen=True)
class At:
    """A place: a worker, a number that no other place has, and the bytes of the value."""

    worker: int
    serial: int
    n_bytes: int = 8


@pytest.fixture
def held() -> Holdings:
    """Two groups of two rows, with a column of the master and one of worker 0."""
    made = Holdings()
    for ids in ([0, 1], [2, 3]):
        made.admit(ids)
    made.put([0, 1, 2, 3], {"x": ["a", "b", "c", "d"]}, -1)
    made.put([0, 1, 2, 3], {"y": ["e", "f", "g", "h"]}, 0)
    return made


def test_places_are_those_of_the_last_that_has_made_them(held: Holdings) -> None:
    held.put([2, 3], {"y": ["i", "j"]}, 1)
    assert held.places([3, 0, 3], "y") == ["j", "e", "j"]
    assert held.columns(1) == ["x", "y"]
    assert held.columns(7) == []
    assert (1 in held, 7 in held) == (True, False)


def test_all_workers_with_memory_of_a_row_free_it(held: Holdings) -> None:
    assert held.note(1, [0, 1]) == {}
    assert held.drop([0, 1]) == {-1: [0, 1], 0: [0, 1], 1: [0, 1]}
    assert held.columns(1) == []
    assert held.drop([0, 1]) == {}


def test_each_column_goes_with_the_worker_that_has_made_it(held: Holdings) -> None:
    held.put([2, 3], {"z": ["k", "l"]}, 3)
    for _ in range(2):
        assert held.lose(0) == {0: ["y"], 2: ["y"]}
        assert [held.columns(row) for row in (1, 2)] == [["x"], ["x", "z"]]
    assert held.places([1], "y") == ["f"], "an order may still name where it was"
    held.put([0, 1], {"y": ["m", "n"]}, 4)
    assert held.lose(3) == {2: ["y", "z"]}
    assert held.drop([0, 1, 2, 3]) == {-1: [0, 1, 2, 3], 4: [0, 1]}


def test_a_row_that_a_step_reads_keeps_its_memory(held: Holdings) -> None:
    held.pin([0, 1, 2, 3])
    held.pin([0, 1])
    assert held.drop([0, 1, 2, 3]) == {}
    assert held.unpin([0, 1, 2, 3]) == {-1: [2, 3], 0: [2, 3]}
    assert held.places([1], "x") == ["b"]
    assert held.unpin([0, 1]) == {-1: [0, 1], 0: [0, 1]}
    assert 0 not in held
    assert held.unpin([0, 1]) == {}


def test_what_arrives_late_is_freed_at_once(held: Holdings) -> None:
    held.drop([0, 1])
    held.arrived(3, 1, "x", [0, 1], ["k", "l"])
    assert held.note(4, [0, 1, 2, 3]) == {4: [0, 1]}
    assert held.drop([2, 3]) == {-1: [2, 3], 0: [2, 3], 4: [2, 3]}


def test_a_group_is_not_split(held: Holdings) -> None:
    for ids in ([0], [1, 2], [1, 0], [0, 1, 2]):
        with pytest.raises(ValueError, match=r"rows \[.*\] are not the group \[.*\]"):
            held.put(ids, {"z": ids}, 0)


def test_an_element_goes_when_its_rows_have_gone(held: Holdings) -> None:
    held.bind([2, 3], 5, 100)
    assert (held.element(3), held.element(0), held.element(7)) == ((5, 100), None, None)
    assert (held.elements_of(5), held.elements_of(0)) == ([100], [])
    assert list(held.rows_of(5, 100)) == [2, 3]
    held.lose(5)
    assert held.elements_of(5) == [100], "it is read again"
    assert held.drop([2, 3]) == {-1: [2, 3], 0: [2, 3], 5: [100]}
    assert (held.elements_of(5), held.rows_of(5, 100)) == ([], ())


def test_nothing_is_left_of_a_flow_that_has_ended(held: Holdings) -> None:
    held.clear()
    assert held.drop([0, 1, 2, 3]) == {}
    assert held.columns(0) == []


# --- Values of other nodes ---


def holding(*places: At, nodes: dict[int, str] = NODES) -> Holdings:
    """Return rows 0, 1, ... of which workers have made a column."""
    held = Holdings()
    held.begin(nodes)
    for row_id, one in enumerate(places):
        held.admit([row_id])
        make(held, row_id, one)
    return held


def make(held: Holdings, row_id: int, place: At) -> None:
    held.put([row_id], {"x": [place]}, place.worker)


def chosen(held: Holdings, worker: int, ticket: int, *ids: int) -> list[int] | None:
    """Return the workers from which a worker reads rows; None: it waits."""
    found = held.choose(worker, ticket, ids, {"x": held.places(ids, "x")})
    return None if found is None else [one.worker for one in found["x"]]


def test_the_first_worker_of_a_node_gets_a_value_and_the_others_have_it_from_there() -> None:
    held = holding(At(0, 1))
    assert held.has_nodes
    assert chosen(held, 1, 5, 0) == [0]
    assert chosen(held, 2, 6, 0) == [0]
    assert chosen(held, 3, 7, 0) is None
    assert chosen(held, 2, 6, 0) == [0], "it is its own to get"
    held.arrived(2, 6, "x", [0], [At(2, 9)])
    assert not held.ended(2, 6)
    assert chosen(held, 3, 7, 0) == [2]
    assert chosen(held, 2, 8, 0) == [2]
    assert held.n_bytes == 8


def test_on_one_node_all_is_there() -> None:
    held = holding(At(0, 1), nodes={})
    assert not held.has_nodes
    assert chosen(held, 3, 5, 0) == [0]
    assert not held.ended(3, 5)
    held.join(3, "b")
    assert chosen(held, 3, 6, 0) == [0]
    assert held.n_bytes == 0


def test_what_does_not_arrive_is_fetched_by_the_next() -> None:
    held = holding(At(0, 1), At(0, 2))
    assert chosen(held, 2, 6, 0, 1) == [0, 0]
    held.arrived(2, 6, "x", [1], [At(2, 9)])
    assert held.ended(2, 6)
    assert chosen(held, 3, 7, 0, 1) == [0, 2]
    held.lose(3)
    assert not held.ended(3, 7), "it has no claims any more"
    assert chosen(held, 2, 8, 0, 1) == [0, 2]
    held.lose(2)
    assert chosen(held, 3, 9, 1) == [0]


def test_a_step_that_waits_keeps_what_it_has_claimed_from_later_ones() -> None:
    held = holding(At(0, 1), At(0, 2))
    assert chosen(held, 2, 1, 0) == [0]
    assert chosen(held, 3, 2, 0, 1) is None
    assert chosen(held, 2, 3, 1) is None, "or both would wait for each other"
    held.arrived(2, 1, "x", [0], [At(2, 9)])
    assert not held.ended(2, 1)
    assert chosen(held, 3, 2, 0, 1) == [2, 0]
    assert held.ended(3, 2)
    assert chosen(held, 2, 3, 1) == [0]


def test_copies_go_with_their_rows_and_a_value_that_is_made_again_is_another_one() -> None:
    held = holding(At(0, 1), At(0, 2))
    assert chosen(held, 2, 1, 0, 1) == [0, 0]
    held.arrived(2, 1, "x", [0, 1], [At(2, 8), At(2, 9)])
    held.ended(2, 1)
    make(held, 0, At(1, 5))
    assert held.choose(3, 2, [0], {"x": [At(0, 1)]}) == {"x": [At(0, 1)]}, "a step may name the first value"
    assert not held.ended(3, 2), "which is not its to keep"
    assert chosen(held, 3, 3, 0, 1) == [1, 2]
    held.arrived(3, 3, "x", [0], [At(3, 7)])
    held.ended(3, 3)
    # Worker 2 keeps the first value of row 0.
    assert held.drop([0, 1]) == {0: [0, 1], 2: [0, 1], 1: [0], 3: [0]}


def test_what_arrives_without_a_claim_goes_with_the_row_and_with_its_worker() -> None:
    held = holding(At(0, 1))
    assert chosen(held, 2, 1, 0) == [0]
    make(held, 0, At(0, 5))
    assert chosen(held, 3, 2, 0) == [0]
    held.arrived(2, 1, "x", [0], [At(2, 8)])  # of the value before
    held.ended(2, 1)
    assert chosen(held, 2, 3, 0) is None
    held.arrived(3, 2, "x", [0], [At(3, 7)])
    held.lose(3)
    assert held.drop([0]) == {0: [0], 2: [0]}


def test_a_step_that_ends_leaves_a_claim_of_a_later_one_alone() -> None:
    held = holding(At(0, 1))
    assert chosen(held, 2, 1, 0) == [0]
    make(held, 0, At(0, 5))
    assert chosen(held, 3, 2, 0) == [0]
    assert held.ended(2, 1)
    held.arrived(3, 2, "x", [0], [At(3, 7)])
    held.ended(3, 2)
    assert chosen(held, 2, 3, 0) == [3]


def test_copies_outlive_the_worker_that_has_made_the_value() -> None:
    held = holding(At(0, 1), At(0, 2))
    assert chosen(held, 2, 1, 0) == [0]
    held.arrived(2, 1, "x", [0], [At(2, 9)])
    held.ended(2, 1)
    held.lose(0)
    assert held.columns(0) == [], "the flow does not count on them"
    assert chosen(held, 3, 2, 0) == [2]
    assert chosen(held, 4, 2, 0) == [2]
    # Of what has no copy, the place is that of before: a worker that reads it notices.
    assert chosen(held, 3, 3, 1) == [0]
    assert held.ended(3, 3)


def test_the_senders_of_values_that_several_nodes_have_are_balanced() -> None:
    held = holding(*(At(0, i, 100) for i in range(10)))
    assert chosen(held, 2, 1, *range(10)) == [0] * 10
    held.arrived(2, 1, "x", range(10), [At(2, 20 + i, 100) for i in range(10)])
    held.ended(2, 1)
    senders = chosen(held, 4, 2, *range(10))
    assert senders is not None
    assert sorted(senders.count(one) for one in (0, 2)) == [5, 5]


def test_what_is_being_read_from_a_worker_counts() -> None:
    held = holding(*(At(0, i, 100) for i in range(16)), nodes=APART)
    assert chosen(held, 1, 1, *range(8, 16)) == [0] * 8
    held.arrived(1, 1, "x", range(8, 16), [At(1, 40 + i, 100) for i in range(8)])
    held.ended(1, 1)
    # One worker reads what only worker 0 has, the other one what worker 1 has, too: so worker 1 sends all of that.
    assert chosen(held, 2, 2, *range(8)) == [0] * 8
    assert chosen(held, 3, 2, *range(8, 16)) == [1] * 8


def test_a_value_that_has_one_holder_counts_before_those_that_have_two() -> None:
    held = holding(*(At(0, i, 100) for i in range(2)), nodes=APART)
    assert chosen(held, 1, 1, 0) == [0]
    held.arrived(1, 1, "x", [0], [At(1, 9, 100)])
    held.ended(1, 1)
    assert chosen(held, 2, 2, 0, 1) == [1, 0]


def test_a_sender_that_ends_before_a_worker_was_told_is_replaced() -> None:
    held = holding(*(At(0, i, 100) for i in range(4)), nodes=APART)
    assert chosen(held, 1, 1, *range(4)) == [0] * 4
    held.arrived(1, 1, "x", range(4), [At(1, 40 + i, 100) for i in range(4)])
    held.ended(1, 1)
    assert chosen(held, 2, 2, *range(4)) == [0, 1, 0, 1]
    held.lose(1)
    assert chosen(held, 2, 2, *range(4)) == [0] * 4


def test_groups_travel_as_a_whole() -> None:
    held = Holdings()
    held.begin(NODES)
    rows = [At(0, i) for i in range(4)]
    for ids in ([0, 1], [2, 3]):
        held.admit(ids)
        held.put(ids, {"x": rows[ids[0] : ids[-1] + 1]}, 0)
    assert held.choose(2, 1, [0, 1], {"x": rows[:2]}) == {"x": rows[:2]}
    assert held.n_bytes == 16
    there = [replace(one, worker=2) for one in rows[:2]]
    held.arrived(2, 1, "x", [0, 1], there)
    held.ended(2, 1)
    assert held.choose(3, 2, [2, 3, 0, 1], {"x": [*rows[2:], *rows[:2]]}) == {"x": [*rows[2:], *there]}
