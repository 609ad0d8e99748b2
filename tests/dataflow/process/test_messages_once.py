"""A hook is one message for all of its workers, which is encoded once."""

from __future__ import annotations

from typing import Any

import pytest
from stream_peers import joined, opened
from waiting import WATCHDOG_S

from softs_fast.dataflow.link import stream
from softs_fast.dataflow.link.messages import Abort, HookTask
from softs_fast.records import replace


def test_what_was_encoded_once_arrives_at_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    def encode(message: Any, *known: Any) -> bytes:
        encoded.append(message)
        return plain(message, *known)

    plain = stream.encode
    monkeypatch.setattr(stream, "encode", encode)
    with opened() as master, joined(master, 0) as first, joined(master, 1) as second:
        one, two = (HookTask(ticket, 3, 0, None, 0, 1) for ticket in (5, 6))
        sent = (one, Abort(5, "why"), two, one)
        for message in sent:
            for number in range(2):
                master.send(number, replace(message))
        for worker in (first, second):
            got: list[Any] = []
            while len(got) < len(sent):
                got += worker.receive(WATCHDOG_S)
            assert tuple(got) == sent
        assert [one for one in encoded if isinstance(one, HookTask)] == [one, two, one]
