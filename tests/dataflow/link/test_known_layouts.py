"""Layouts of weights are sent once on each connection, and a successor of a worker gets them again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stream_peers import joined, opened
from test_streams import take
from wire_samples import shown

from softs_fast import records
from softs_fast.dataflow.link.events import Received
from softs_fast.dataflow.link.layouts import KnownLayouts
from softs_fast.dataflow.link.messages import Message, State, decode, encode
from softs_fast.dataflow.store.weights.boxes import Box
from softs_fast.dataflow.store.weights.shown import Shown, ShownLayout, ShownRegion
from softs_fast.errors import WireError


def large(number: int, n: int = 500) -> Shown:
    """A layout of many regions; numbers make them differ."""
    regions = [ShownRegion(f"{number}.layer.{i}.bias", (8,), Box((0,), (8,)), "int64") for i in range(n)]
    one = shown(0)
    return Shown(0, ShownLayout(tuple(regions)), records.replace(one.place, n_bytes=64 * n))


def state(ticket: int, number: int = 0) -> State:
    made = large(number)
    place = records.replace(made.place, segment=records.replace(made.place.segment, n_bytes=1 << 24))
    return State(ticket, replace(made, place=place))


def test_the_second_message_has_a_digest() -> None:
    sent, got = KnownLayouts(), KnownLayouts()
    first, second = (encode(state(ticket), sent) for ticket in (1, 2))
    assert len(first) > 10_000
    assert len(second) < 300
    messages = [decode(one, got) for one in (first, second)]
    assert messages == [state(1), state(2)]
    assert messages[0].shown.layout is messages[1].shown.layout  # type: ignore[union-attr]
    # Of another connection nothing is known.
    for known in (KnownLayouts(), None):
        with pytest.raises(WireError, match="which was not sent on this connection"):
            decode(second, known)
    assert decode(encode(state(3))) == state(3)


def test_both_ends_drop_the_same_layouts() -> None:
    sent, got = KnownLayouts(), KnownLayouts()
    short = []
    for ticket, number in enumerate([*range(40), 39, 38, 10, 39, 10, 24, 25, 24]):
        message = state(ticket, number)
        data = encode(message, sent)
        assert decode(data, got) == message
        short.append(len(data) < 300)
    assert short == [False] * 40 + [True, True, False, True, True, False, False, True]
    assert len(got) == 16


def test_what_was_not_sent_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from softs_fast.dataflow.link import messages

    sent = KnownLayouts()
    monkeypatch.setattr(messages._PACKED, "most_bytes", 1000)
    with pytest.raises(WireError, match="at most 1,000"):
        encode(state(1), sent)
    monkeypatch.undo()
    assert decode(encode(state(1), sent), KnownLayouts()) == state(1)


def test_a_successor_of_a_worker_gets_a_layout_again() -> None:
    with opened() as master:
        for ticket in (1, 3, 5):
            with joined(master, 5) as worker:
                for n in (ticket, ticket + 1):
                    master.send(5, state(n))
                found: list[Message] = []
                while len(found) < 2:
                    found += worker.receive(None)
                assert found == [state(ticket), state(ticket + 1)]
                # And back.
                for one in found:
                    worker.send(one)
                assert take(master, 2) == [Received(5, one) for one in found]
            take(master, 1)
            if ticket == 1:
                # What is sent between two of them goes nowhere, and the successor gets the layout.
                master.send(5, state(9))
