"""The thread of a head: what it keeps, what it says of errors, and how it ends; flows of which heads are slow or hang."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from flow_threads import in_threads
from shard_flow import GROUP, Model, make, summary
from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.engine.dataset_reads import DatasetReads
from softs_fast.dataflow.link.messages import ElementsRead, ReadElements
from softs_fast.dataflow.process.loader import Loader
from softs_fast.dataflow.process.shards import Shards
from softs_fast.dataflow.store import DataManager
from softs_fast.dataflow.store.ids import element_id
from softs_fast.errors import FlowError, PeerLost, WireError


class Head:
    """A loader with a store, and what it sends."""

    def __init__(self, shard: Callable[[], Any], max_bytes: int | None = None) -> None:
        role = type("Some", (df.Role,), {"shard": lambda self, shard, n: shard_of()})
        shard_of = shard
        placed = df.place(role, on=[3], name="some")
        dataset = df.dataset(placed.shard, "x, text")
        self.store = DataManager(3, max_bytes=max_bytes)
        self.sent: queue.Queue[ElementsRead] = queue.Queue()
        self.requests = count(7)
        declaration = Declaration((), datasets={"train": dataset})
        shards = Shards(declaration, 3, self.store.put, self.store.free)
        self.loader = Loader(shards, self.sent.put)
        objects: Any = {placed: role()}
        self.lengths = shards.setup(objects)

    def ask(self, *numbers: int) -> ElementsRead:
        self.loader.read(ReadElements(next(self.requests), 0, numbers))
        return self.sent.get(timeout=WATCHDOG_S)

    def __enter__(self) -> Head:
        return self

    def __exit__(self, *error: object) -> None:
        self.loader.close()
        self.store.close()


def element(number: int) -> dict[str, Any]:
    return {"x": torch.full((4,), float(number)), "text": f"text {number}"}


def test_values_are_kept_by_the_ids_of_elements() -> None:
    with Head(lambda: list(map(element, range(5)))) as head:
        assert head.lengths == {0: 5}
        answer = head.ask(1, 3)
        assert (answer.request, answer.sizes, answer.length, answer.failure) == (7, (22, 22), None, None)
        assert [one.tolist() for one in head.store.get(answer.columns.places["x"])] == [[1.0] * 4, [3.0] * 4]
        assert head.store.get(answer.columns.places["text"]) == ["text 1", "text 3"]
        n_bytes = head.store.n_bytes
        head.store.free([element_id(0, 1)])
        assert head.store.n_bytes == n_bytes // 2
        end = head.ask(4, 5)
        assert (len(end.sizes), end.length) == (1, 5)


def test_a_request_that_arrives_twice_is_answered_once() -> None:
    """Reading again would write the values anew, and free those of which the master has the places."""
    with Head(lambda: list(map(element, range(5)))) as head:
        head.loader.read(ReadElements(1, 0, (1,)))
        head.loader.read(ReadElements(1, 0, (1,)))
        head.loader.read(ReadElements(2, 0, (2,)))
        first, second = (head.sent.get(timeout=WATCHDOG_S) for _ in range(2))
        assert (first.request, second.request) == (1, 2)
        assert [one.tolist() for one in head.store.get(first.columns.places["x"])] == [[1.0] * 4]


def test_a_thread_begins_with_the_first_request_and_ends_with_the_worker() -> None:
    before = set(threading.enumerate())
    with Head(lambda: [element(0)]) as head:
        assert set(threading.enumerate()) == before
        head.ask(0)
        (thread,) = set(threading.enumerate()) - before
        assert thread.name == "softs-flow-data"
        head.loader.close()
    assert not thread.is_alive()


def test_a_store_that_is_full_is_an_error_and_keeps_nothing() -> None:
    """The first column has room, and the second one has not."""
    with Head(lambda: list(map(element, range(50))), max_bytes=4096) as head:
        answer = head.ask(*range(50))
        assert answer.failure is not None
        assert answer.failure.text.startswith(
            "some.shard on worker 3, elements [0, 1, 2, 3, 4, 5, 6, 7]: FlowError: "
        )
        assert (
            "column 'text' of 50 rows needs 3200 bytes in the store of worker 3, 896 of 4096 are free"
            in answer.failure.text
        )
        assert (answer.sizes, answer.columns.places) == ((), {"x": (), "text": ()})
        assert head.store.n_bytes == 0
        assert len(head.ask(0, 1).sizes) == 2


def test_an_iterable_that_ends_its_thread_is_an_error() -> None:
    def stream() -> Iterator[Any]:
        yield element(0)
        raise SystemExit(3)

    with Head(stream) as head:
        answer = head.ask(0, 1)
        assert answer.failure is not None
        assert answer.failure.text.startswith(
            "some.shard: shard 0 of 1 on worker 3, element 1: SystemExit: 3\n"
        )
        assert head.ask(0).failure is None


def test_a_master_that_has_ended_ends_the_thread() -> None:
    with Head(lambda: [element(0)]) as head:
        head.ask(0)
        thread = head.loader._thread
        assert thread is not None

        def lost(message: ElementsRead) -> None:
            raise PeerLost("the master has ended")

        head.loader._send = lost
        head.loader.read(ReadElements(8, 0, (0,)))
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()


def test_a_dataset_of_another_worker_is_refused() -> None:
    with Head(list) as head, pytest.raises(WireError, match="worker 3 is no head of dataset 1"):
        head.loader.read(ReadElements(7, 1, (0,)))


class Slow(Model):
    """Has a shard that waits."""

    go = threading.Event()

    def prompts(self, shard: int, n_shards: int) -> Iterator[dict[str, Any]]:
        for number, one in enumerate(self.stream(list(range(8)))):
            if number == 4:
                assert self.go.wait(WATCHDOG_S)
            yield one


def make_slow(**options: Any) -> df.Flow:
    role = df.place(Slow, name="slow")
    calls = [
        df.call(role.double, "prompt -> y", rows=4 * GROUP, at_least=GROUP),
        df.call(role.train, "prompt, answer, y", rows=4 * GROUP),
    ]
    source = df.dataset(role.prompts, "prompt, answer", tags="length")
    return df.Flow(calls, source=source, group=GROUP, digests=True, **options)


def test_a_head_that_hangs_is_named_and_ends_the_flow_by_option() -> None:
    Slow.go.clear()
    flow, _ = in_threads(lambda: make_slow(watchdog_s=0.2, on_stall="abort"))
    try:
        with flow:
            steps = flow.steps()
            text = r"slow.prompts: shard 0 of 1: worker 0 reads 8 elements since \d+\.\d s, the first is 0"
            with pytest.raises(FlowError, match=text):
                next(steps)
            Slow.go.set()
    finally:
        Slow.go.set()


def test_what_a_function_gets_does_not_depend_on_when_elements_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A function that takes what is ready gets a whole step, as from a source of the master."""
    Slow.go.set()
    with make_slow() as alone:
        expected = summary(alone)
    real = DatasetReads._ask

    def one_by_one(self: Any, partition: str, worker: int, numbers: list[int], *, is_lost: bool) -> None:
        for number in numbers:
            real(self, partition, worker, [number], is_lost=is_lost)

    monkeypatch.setattr(DatasetReads, "_ask", one_by_one)
    flow, workers = in_threads(make_slow)
    with flow:
        assert summary(flow) == expected
        asked = [one for _, one in workers.hub.sent if isinstance(one, ReadElements)]
    assert {len(one.numbers) for one in asked} == {1}
    assert [len(one[3]) for one in expected] == [2, 2]


def test_slow_shards_do_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shard 0 answers only after shard 1 has answered all that it was asked first."""
    with make("dp2", 2) as alone:
        expected = [[one[:2] for one in step[3]] for step in summary(alone)]
    flow, workers = in_threads(lambda: make("dp2", 2))
    first = threading.Event()

    def look(worker: int, message: object) -> None:
        if isinstance(message, ElementsRead):
            if worker == 1:
                first.set()
            assert first.wait(WATCHDOG_S)

    workers.hub.on_message = look
    with flow:
        assert [[one[:2] for one in step[3]] for step in summary(flow)] == expected
