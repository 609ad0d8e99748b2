"""Which calls begin by the bytes of stores: what is reserved, what overtakes, and what can never begin."""

from __future__ import annotations

import pytest
from test_order_rules import answers, call, tickets

from softs_fast.dataflow.order.sequencer import NeverFits, Sequencer
from softs_fast.dataflow.order.steps import Call, Kind, Step
from softs_fast.dataflow.stores.ledger import StoreLedger
from softs_fast.dataflow.stores.room import Needs, StoreRoom


class Rooms:
    """A sequencer with a room; calls have the needs that they are offered with."""

    def __init__(self, limit: int, spare: int | None = 0, workers: int = 2) -> None:
        self.ledger = StoreLedger()
        self.spare = spare
        self.of_call: dict[int, Needs] = {}
        self.room = StoreRoom(
            limit, self.ledger, lambda number: self.of_call[number], lambda worker: self.spare
        )
        self.order = Sequencer(range(workers), room=self.room)

    def offer(
        self, one: Call, *, is_first: bool = True, shown: dict[int, int] | None = None, **rows: int
    ) -> None:
        """Offer a call; `w0=5` adds 5 bytes to worker 0."""
        sizes = {int(name[1:]): n for name, n in rows.items()}
        self.of_call[one.number] = Needs(sizes, shown or {}, is_first)
        self.order.offer(one)

    def begun(self) -> list[int]:
        return sorted({number for _, number in tickets(self.order.advance(0.0))})

    def end(self, number: int) -> None:
        """End all steps of a call."""
        for ticket in self.order.tickets:
            if ticket.call.number == number:
                for worker in sorted(ticket.missing):
                    self.order.report(worker, 1, ticket.number)


def test_bytes_are_reserved_until_the_call_has_made_them() -> None:
    rooms = Rooms(10)
    rooms.offer(call(1, 0), w0=6)
    rooms.offer(call(2, 0, oldest=1), w0=6)
    assert rooms.begun() == [1]
    assert rooms.room.reserved[0] == 6
    rooms.ledger.put(0, "y", [1], [4])  # it was less than expected
    rooms.end(1)
    assert rooms.room.reserved[0] == 0
    assert rooms.begun() == [2]
    assert (rooms.room.reserved[0], rooms.ledger.n_bytes[0]) == (6, 4)


def test_what_a_worker_has_made_is_not_reserved_while_the_others_go_on() -> None:
    rooms = Rooms(10)
    main, post = Step(Kind.MAIN, frozenset({0, 1})), Step(Kind.POST, frozenset({0, 1}))
    rooms.offer(Call(1, "both", (main, post)), w0=6, w1=6, shown={0: 2})
    assert rooms.begun() == [1]
    assert dict(rooms.room.reserved) == {0: 8, 1: 6}
    rooms.order.report(0, 1, 1)
    assert dict(rooms.room.reserved) == {0: 2, 1: 6}
    rooms.end(1)
    assert dict(rooms.room.reserved) == {0: 0, 1: 0}


def test_a_call_that_waits_for_bytes_does_not_keep_its_workers_from_those_that_free_some() -> None:
    rooms = Rooms(10)
    rooms.offer(call(1, 1), w1=10)
    assert rooms.begun() == [1]
    rooms.offer(call(2, 0, 1, oldest=1), w1=1)
    rooms.offer(call(3, 0, 1, oldest=2))  # such as training: it makes nothing
    assert rooms.begun() == [3]


def test_calls_on_other_rows_leave_room_for_the_oldest() -> None:
    rooms = Rooms(10, spare=6)
    rooms.ledger.promote([1])
    rooms.ledger.put(0, "y", [1, 2], [3, 2])
    rooms.offer(call(1, 0, oldest=1), is_first=False, w0=3)
    assert rooms.begun() == []
    rooms.spare = 5  # with 2 that are held and 3 that are needed, all of 10
    assert rooms.begun() == [1]
    rooms.offer(call(2, 0, oldest=2), is_first=False, w0=1)
    assert rooms.begun() == []
    rooms.offer(call(3, 0, oldest=0), w0=2)
    assert rooms.begun() == [3]


def test_younger_calls_do_not_take_the_bytes_for_which_an_older_one_waits() -> None:
    rooms = Rooms(10)
    rooms.ledger.put(0, "y", [1], [5])
    rooms.offer(call(1, 1))
    assert rooms.begun() == [1]
    rooms.offer(call(2, 0, oldest=1), is_first=False, w0=6)
    rooms.offer(call(3, 0, oldest=2), is_first=False, w0=1)
    rooms.offer(call(4, 1, oldest=3), is_first=False, w1=1)
    rooms.offer(call(5, 0, oldest=4), w0=1)
    assert rooms.begun() == [4, 5]
    rooms.ledger.free(0, [1])
    assert rooms.begun() == [2]


def test_nothing_younger_begins_before_all_functions_have_made_something() -> None:
    rooms = Rooms(10, spare=None)
    rooms.offer(call(1, 0), w0=0)
    rooms.offer(call(2, 0, oldest=1), is_first=False, w0=0)
    assert rooms.begun() == [1]
    rooms.spare = 2
    assert rooms.begun() == [2]


def test_if_nothing_runs_the_oldest_that_has_room_begins() -> None:
    rooms = Rooms(10, spare=9)
    rooms.offer(call(1, 0), w0=11)
    rooms.offer(call(2, 0, oldest=1), is_first=False, w0=9)
    assert rooms.begun() == []
    assert [one.number for one in rooms.order.waiting] == [1, 2]
    assert tickets(rooms.order.advance_one(0.0)) == [(1, 2)]
    assert rooms.begun() == []
    assert rooms.order.waiting == []  # something runs


def test_calls_that_can_never_begin_are_named_with_the_numbers() -> None:
    rooms = Rooms(10)
    rooms.ledger.put(0, "y", [1, 2], [3, 2])
    rooms.offer(call(1, 0), w0=6)
    rooms.offer(call(2, 0, oldest=1), w0=7)
    assert rooms.begun() == []
    match = (
        r"call 1 of f1 needs 6 bytes in the store of worker 0, which has 10: 5 are held \(5 of column y\), 0 reserved; "
        "call 2 of f2 needs 7 bytes in the store of worker 0"
    )
    with pytest.raises(NeverFits, match=match):
        rooms.order.advance_one(0.0)


def test_what_was_reserved_goes_with_a_call_that_fails() -> None:
    rooms = Rooms(10)
    rooms.offer(call(1, 0, 1), w0=6, w1=6)
    rooms.begun()
    rooms.order.lose(1, "worker 1 died")
    assert [one.call for one in answers(rooms.order.advance(0.0))] == [1]
    rooms.order.report(0, 1, 1, "aborted")
    assert dict(rooms.room.reserved) == {0: 0, 1: 0}


def test_calls_that_run_reserve_what_they_will_make_when_it_is_known() -> None:
    rooms = Rooms(10)
    rooms.offer(call(1, 0, 1), w0=0, w1=0)
    assert rooms.begun() == [1]
    rooms.order.report(0, 1, 1)
    rooms.of_call[1] = Needs({0: 4, 1: 4})
    rooms.room.revise()
    assert dict(rooms.room.reserved) == {0: 0, 1: 4}
    rooms.end(1)
    assert dict(rooms.room.reserved) == {0: 0, 1: 0}
