"""A hook is one message for all of its workers, which is encoded once."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import WATCHDOG_S

from softs_fast.dataflow.link import stream
from softs_fast.dataflow.link.messages import Abort, HookTask
from softs_fast.dataflow.link.stream import MasterStream, WorkerStream
from softs_fast.records import replace
from softs_fast.trust import new_token


def test_what_was_encoded_once_arrives_at_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    def encode(message: Any, *known: Any) -> bytes:
        encoded.append(message)
        return plain(message, *known)

    plain = stream.encode
    monkeypatch.setattr(stream, "encode", encode)
    token = new_token()
    master = MasterStream(token)
    workers = [WorkerStream(master.endpoint, token, number) for number in range(2)]
    try:
        joined = 0
        while joined < 2:
            joined += len(master.receive(WATCHDOG_S))
        one, two = (HookTask(ticket, 3, 0, None, 0, 1) for ticket in (5, 6))
        sent = (one, Abort(5, "why"), two, one)
        for message in sent:
            for number in range(2):
                master.send(number, replace(message))
        for worker in workers:
            got: list[Any] = []
            while len(got) < len(sent):
                got += worker.receive(WATCHDOG_S)
            assert tuple(got) == sent
        assert [one for one in encoded if isinstance(one, HookTask)] == [one, two, one]
    finally:
        for worker in workers:
            worker.close()
        master.close()
