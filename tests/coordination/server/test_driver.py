"""What the machine wants done is done in its order; a failure stops all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from softs_fast.coordination.job.events import (
    Booted,
    Close,
    Event,
    Evict,
    Gone,
    Log,
    Output,
    Persist,
    Received,
    Record,
    Send,
    Tick,
)
from softs_fast.coordination.job.job import Job
from softs_fast.coordination.job.messages import Alarm, Fence, Leave, Member, Table, ToWorker, Welcome
from softs_fast.coordination.server.driver import Driver
from softs_fast.coordination.wire.formats import RECORDS, TO_WORKER
from softs_fast.durable import Log as DurableLog
from softs_fast.errors import ConfigError, PeerLost, SoftsError

TABLE = Table(7, 1, (Member(0, 0, "a", 1, ""),), 0, "back", (), None)


class Script:
    """A machine that does what a test says, and notes its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.outputs: list[Output] = []
        self.wake_s: float | None = None

    def handle(self, now_s: float, event: Event) -> list[Output]:
        self.events.append(event)
        if isinstance(event, Evict):
            raise ConfigError("no worker has the seat")
        outputs, self.outputs = self.outputs, []
        return outputs

    def next_wake_s(self) -> float | None:
        due_s, self.wake_s = self.wake_s, None
        return due_s

    def records(self) -> list[Record]:
        return [Booted("compacted", 1)]


class File:
    """A state file that notes what happens to it."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes
        self.needs_compacting = False
        self.failure: SoftsError | None = None

    def append(self, body: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.notes.append(RECORDS.decode(body))

    def replace(self, bodies: list[bytes]) -> None:
        self.needs_compacting = False
        self.notes.append(tuple(map(RECORDS.decode, bodies)))


class Wire:
    """A connection that notes what is sent on it."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes
        self.sent: list[bytes] = []

    def send(self, message: ToWorker, data: bytes) -> None:
        assert TO_WORKER.decode(data) == message
        self.sent.append(data)
        self.notes.append(message)

    def finish(self) -> None:
        self.notes.append("finished")


class Bench:
    """A driver of a script."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.script, self.file = Script(), File(self.notes)
        self.driver = Driver(cast(Job, self.script), cast(DurableLog, self.file))
        self.wires = [Wire(self.notes) for _ in range(2)]
        self.numbers = [self.driver.connect(wire) for wire in self.wires]

    def do(self, *outputs: Output) -> list[str]:
        self.script.outputs = list(outputs)
        return self.driver.handle(Tick())


def driven(scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test with a driver, in an event loop."""

    def test() -> None:
        async def run() -> None:
            bench = Bench()
            async with asyncio.timeout(30):
                await scenario(bench)
            bench.driver.close()

        asyncio.run(run())

    test.__name__ = scenario.__name__
    return test


@driven
async def test_outputs_are_done_in_their_order(bench: Bench) -> None:
    one, two = bench.numbers
    record, alarm = Booted("job", 7), Alarm((), "x")
    logged = bench.do(Send(one, alarm), Persist(record), Send(two, TABLE), Close(two), Log("said"))
    assert bench.notes == [alarm, record, TABLE, "finished"]
    assert logged == ["said"]


@driven
async def test_nothing_is_sent_after_a_record_that_cannot_be_written(bench: Bench) -> None:
    bench.file.failure = SoftsError("disk full")
    bench.do(Persist(Booted("job", 7)), Send(bench.numbers[0], TABLE))
    assert bench.notes == []
    with pytest.raises(SoftsError, match="disk full"):
        await bench.driver.failure
    bench.do(Send(bench.numbers[0], TABLE))
    assert bench.notes == [], "it does nothing any more"


@driven
async def test_what_an_administrator_cannot_have_changes_nothing(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="no worker has the seat"):
        bench.driver.handle(Evict(1, "why"))
    bench.do(Send(bench.numbers[0], TABLE))
    assert bench.notes == [TABLE]


@driven
async def test_a_message_to_many_is_encoded_once(bench: Bench) -> None:
    bench.do(*(Send(number, TABLE) for number in bench.numbers))
    assert bench.wires[0].sent[0] is bench.wires[1].sent[0]


@driven
async def test_a_closed_connection_says_nothing_and_is_gone_once(bench: Bench) -> None:
    one = bench.numbers[0]
    bench.do(Close(one))
    bench.driver.receive(one, Leave("late"), None)
    assert not any(isinstance(event, Received) for event in bench.script.events)
    bench.do(Send(one, Welcome(1, 0)))
    assert bench.notes == ["finished"]
    bench.driver.gone(one)
    assert bench.script.events[-1] == Gone(one)


@driven
async def test_a_tick_comes_when_the_machine_wants_it(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    bench.script.wake_s = due_s = loop.time() + 0.05
    bench.do()
    n_events = len(bench.script.events)
    bench.script.outputs = [Send(bench.numbers[0], TABLE)]
    await bench.driver.changed.wait()
    assert loop.time() >= due_s
    assert bench.script.events[n_events:] == [Tick()]


@driven
async def test_keys_live_from_a_table_to_its_fence(bench: Bench) -> None:
    from softs_fast.coordination.wire.requests import KeysRequest

    number = bench.numbers[0]
    ask = KeysRequest("job", 7, 1, "check", ("k",))
    with pytest.raises(PeerLost):
        await bench.driver.keys.apply(ask, None)
    bench.do(Send(number, TABLE))
    for fence in (Fence(7, 1, "left", 0, "", planned=True), Fence(6, 1, "coordinator", 0, "")):
        bench.do(Send(number, fence))
        assert not (await bench.driver.keys.apply(ask, None)).found
    bench.do(Send(number, Fence(7, 1, "gone", 0, "")))
    with pytest.raises(PeerLost, match="epoch 1 is over"):
        await bench.driver.keys.apply(ask, None)
    assert bench.driver.keys.table is None


@driven
async def test_the_state_file_is_compacted(bench: Bench) -> None:
    bench.file.needs_compacting = True
    bench.do(Persist(Booted("job", 7)))
    assert bench.notes == [Booted("job", 7), (Booted("compacted", 1),)]
