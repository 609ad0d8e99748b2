"""Values that were brought for the main part of a call: it takes those that are of the same place, once."""

from __future__ import annotations

import pytest

from softs_fast.dataflow.process.kept import KeptInputs
from softs_fast.dataflow.store import Place, SegmentAddress
from softs_fast.dataflow.store.ids import kept_id, state_id

SEGMENT = SegmentAddress(17, 12345, 4026531836, 5, bytes(16), 1 << 20, "", "")


def place(serial: int) -> Place:
    return Place(2, SEGMENT, 64 * serial, 8, serial, "int", ())


@pytest.fixture
def kept() -> KeptInputs:
    made = KeptInputs()
    made.put(7, [4, 5], {"x": [place(1), place(2)], "y": [place(3), place(4)]}, [10, 11, 12, 13])
    return made


def test_a_call_takes_what_was_brought_for_it_once(kept: KeptInputs) -> None:
    columns = {"y": [place(4)], "x": [place(2)], "z": [place(9)]}
    assert kept.take(8, [5], columns) == {}
    assert kept.take(7, [5], columns) == {0: 13, 1: 11}
    assert (len(kept), kept.take(7, [5], columns)) == (0, {})


def test_a_value_that_was_made_again_is_another_one(kept: KeptInputs) -> None:
    assert kept.take(7, [4, 5], {"x": [place(1), place(8)]}) == {0: 10}


def test_values_go_with_their_rows_and_with_their_call(kept: KeptInputs) -> None:
    kept.put(8, [4], {"x": [place(1)]}, [10])
    kept.free([4, state_id(7)])
    assert len(kept) == 1
    assert kept.take(7, [4, 5], {"x": [place(1), place(2)]}) == {1: 11}
    kept.put(9, [5], {"x": [place(2)]}, [11])
    kept.free([kept_id(9)])
    assert len(kept) == 0
    kept.free([5])


def test_two_transfers_of_one_call_are_taken_together(kept: KeptInputs) -> None:
    kept.put(7, [6], {"x": [place(5)]}, [14])
    assert kept.take(7, [4, 6], {"x": [place(1), place(5)]}) == {0: 10, 1: 14}
