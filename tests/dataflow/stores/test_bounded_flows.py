"""Real flows with stores of few bytes: they end, no store ever holds more, and the master knows what each holds."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any

import pytest
from bounded_flow import ROWS, SCORE_BYTES, STEP_BYTES, X_BYTES, Y_BYTES, make_bounded, make_ranks
from flow_threads import ThreadWorkers, in_threads, when
from small_flow import make_flow, summary

import softs_fast.dataflow as df
from softs_fast.dataflow.moves import DataManager
from softs_fast.dataflow.wire.messages import StepEnded
from softs_fast.errors import ConfigError, FlowError

WATCHDOG_S = 45.0


@pytest.fixture
def most_held(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The most bytes that the store of each worker ever held."""
    most: Counter[int] = Counter()
    take = DataManager._take

    def noting(store: DataManager, *arguments: Any) -> Any:
        offsets = take(store, *arguments)
        most[store.worker] = max(most[store.worker], store.n_bytes)
        return offsets

    monkeypatch.setattr(DataManager, "_take", noting)
    return most


def numbers_of(flow: df.Flow) -> list[Any]:
    with flow:
        return [
            (step.number, sorted((one.function, one.ids, one.digest, one.numbers) for one in step.calls))
            for step in flow.steps()
        ]


def await_same(flow: df.Flow, workers: ThreadWorkers) -> dict[int, int]:
    """Wait until no call runs, and each worker has dropped what it was told to; returns the bytes of all stores."""
    while flow._runner.master.order.tickets:
        flow._runner.advance(automatic=False)
    stores = flow._runner.stores
    assert stores is not None
    backend: Any = flow._backend
    end_s = time.monotonic() + WATCHDOG_S
    while True:
        there = {number: one._loop.store.n_bytes for number, one in workers.workers.items() if one._loop}
        there[-1] = backend._store.n_bytes
        if all(stores.ledger.n_bytes[worker] == n_bytes for worker, n_bytes in there.items()):
            return there
        assert time.monotonic() < end_s, (there, stores.ledger.n_bytes)
        time.sleep(0.001)


@pytest.mark.parametrize("store_bytes", [STEP_BYTES, 2 * STEP_BYTES + 1])
def test_a_generator_waits_for_room(most_held: Counter[int], store_bytes: int) -> None:
    expected = numbers_of(make_bounded(store_bytes=None))
    assert len(expected) == 8
    flow, workers = in_threads(partial(make_bounded, store_bytes=store_bytes))
    found = []
    with flow:
        for step in flow.steps():
            found.append(
                (step.number, sorted((one.function, one.ids, one.digest, one.numbers) for one in step.calls))
            )
            await_same(flow, workers)
        assert await_same(flow, workers) == {-1: 0, 0: 0, 1: 0, 2: 0}
        assert not any(flow._runner.stores.room.reserved.values())  # type: ignore[union-attr]
    assert STEP_BYTES <= most_held[1] <= store_bytes
    # The same calls, though perhaps in other steps.
    assert sorted(one for _, calls in found for one in calls) == sorted(
        one for _, calls in expected for one in calls
    )


def test_without_a_bound_a_generator_is_ahead(most_held: Counter[int]) -> None:
    flow, _ = in_threads(partial(make_bounded, store_bytes=None))
    assert len(numbers_of(flow)) == 8
    assert most_held[1] > STEP_BYTES


@pytest.mark.parametrize("store_bytes", [STEP_BYTES, 2 * STEP_BYTES])
def test_the_same_in_one_process(store_bytes: int) -> None:
    flow = make_bounded(store_bytes=store_bytes)
    most: Counter[int] = Counter()
    with flow:
        stores = flow._runner.stores
        assert stores is not None
        put = stores.ledger.put

        def noting(worker: int, *arguments: Any) -> None:
            put(worker, *arguments)
            most[worker] = max(most[worker], stores.ledger.n_bytes[worker])

        stores.ledger.put = noting  # type: ignore[method-assign]
        assert len(list(flow.steps())) == 8
        assert not any(stores.ledger.n_bytes.values())
    assert STEP_BYTES <= most[1] <= store_bytes
    assert most[-1] <= store_bytes


def test_each_rank_reserves_the_rows_of_its_slice(most_held: Counter[int]) -> None:
    """Half of the rows of a step, and one group more: that is how ranks are balanced."""
    limit = (ROWS // 2 + 1) * Y_BYTES
    flow, workers = in_threads(partial(make_ranks, store_bytes=limit))
    with flow:
        assert sum(step.n_rows for step in flow.steps()) == 6 * ROWS
        assert not any(await_same(flow, workers).values())
    least = (ROWS // 2) * (Y_BYTES - SCORE_BYTES)
    assert all(least <= most_held[worker] <= limit for worker in (0, 1))


def test_the_source_waits_for_room_in_the_store_of_the_master(most_held: Counter[int]) -> None:
    """The master holds a step of the source, and what it makes of one; slots were for four."""
    limit = ROWS * (X_BYTES + SCORE_BYTES)
    flow, _ = in_threads(partial(make_bounded, store_bytes=limit, factor=0))
    assert len(numbers_of(flow)) == 8
    assert ROWS * X_BYTES <= most_held[3] <= limit


@pytest.mark.parametrize("backend", ["threads", "one process"])
def test_what_can_never_have_room_is_an_error_with_the_numbers(backend: str) -> None:
    make = partial(make_bounded, store_bytes=4 * Y_BYTES + 100)
    flow = in_threads(make)[0] if backend == "threads" else make()
    match = (
        rf"gen.generate needs {2 * Y_BYTES} bytes in the store of worker 1, which has {4 * Y_BYTES + 100}: {4 * Y_BYTES} "
        rf"are held \({4 * Y_BYTES} of gen.generate\), 0 reserved; .*use fewer rows, or raise store_bytes"
    )
    with flow, pytest.raises(FlowError, match=match):
        list(flow.steps())


def test_a_source_that_can_never_have_room_is_an_error_with_the_numbers() -> None:
    flow, _ = in_threads(partial(make_bounded, store_bytes=X_BYTES - 1))
    match = f"the next group of the source needs {X_BYTES} bytes in the store of the master, which has {X_BYTES - 1}: 0 are"
    with flow, pytest.raises(FlowError, match=match):
        list(flow.steps())


@pytest.mark.parametrize("store_bytes", [0, -1, 1 << 45])
def test_a_bound_that_no_store_can_have_is_refused(store_bytes: int) -> None:
    with pytest.raises(ConfigError, match=f"store_bytes is {store_bytes}; need 1 to"):
        make_bounded(store_bytes=store_bytes)


def test_weights_on_their_way_and_drops_are_counted(most_held: Counter[int]) -> None:
    """Steps one after the other are the same with a bound; its least has room for the weights that are published."""
    expected = summary(in_threads(make_flow)[0], 4)
    limit = max(most_held.values())
    most_held.clear()
    flow, workers = in_threads(partial(make_flow, store_bytes=2 * limit))
    with flow:
        list(flow.steps(4))
        await_same(flow, workers)
        assert set(flow._backend.notes.largest_shown) == {0}
    flow, _ = in_threads(partial(make_flow, store_bytes=2 * limit))
    assert summary(flow, 4) == expected
    assert max(most_held.values()) <= 2 * limit


def test_explain_says_what_stores_hold() -> None:
    flow, workers = in_threads(make_bounded)
    with flow:
        next(flow.steps(1))
        flow.fetch(1)
        await_same(flow, workers)
        assert f"the store of the master, which has {2 * STEP_BYTES}" in flow.explain()
        assert "of the source" in flow.explain()


def test_the_master_knows_what_stores_hold_after_a_worker_was_lost() -> None:
    flow, workers = in_threads(partial(make_bounded, store_bytes=2 * STEP_BYTES))
    workers.left = 1
    died = when(
        workers.hub,
        lambda worker, message: worker == 1 and isinstance(message, StepEnded) and bool(message.columns),
        lambda: workers.hub.kill(1),
    )
    with flow:
        n_rows = sum(step.n_rows for step in flow.steps())
        assert await_same(flow, workers) == {-1: 0, 0: 0, 1: 0, 2: 0}
        assert flow.ask("stats")["restarts"] == 1
    assert died.is_set()
    assert n_rows == 8 * ROWS


def test_what_is_dropped_and_what_failed_leaves_nothing() -> None:
    flow, workers = in_threads(partial(make_bounded, store_bytes=2 * STEP_BYTES, drops=True))
    with flow:
        list(flow.steps())
        assert await_same(flow, workers) == {-1: 0, 0: 0, 1: 0, 2: 0}


def test_a_column_that_has_no_room_takes_the_others_of_its_call_with_it() -> None:
    """Rows that are larger than all before: the error has the numbers, and the store keeps nothing of that call."""
    flow, workers = in_threads(partial(make_bounded, store_bytes=2 * STEP_BYTES, grows=True, ahead=0))
    with flow:
        with pytest.raises(FlowError, match=r"column 'z' of 2 rows needs \d+ bytes in the store of worker 1"):
            list(flow.steps())
        await_same(flow, workers)
