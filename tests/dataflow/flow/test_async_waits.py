"""Waits of a flow under asyncio that are awaited no more: they end, whatever a worker does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from flow_threads import ThreadWorkers, in_threads
from flows import make_light
from shard_flow import make as make_shards
from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError, FlowError


class Held:
    """Holds the next message of each worker until the test lets it go, or the flow ends its workers.

    Attributes:
        inside: set when a worker is held.
        go_on: lets all go.
        was_ended: set when the flow has ended its workers.
    """

    def __init__(self, workers: ThreadWorkers) -> None:
        self.inside, self.go_on, self.was_ended = threading.Event(), threading.Event(), threading.Event()
        self._close = workers.close
        workers.hub.on_message = self._hold
        workers.close = self._end  # type: ignore[method-assign]

    def _hold(self, worker: int, message: Any) -> None:
        self.inside.set()
        assert self.go_on.wait(WATCHDOG_S)

    def _end(self) -> None:
        if not self.go_on.is_set():
            self.was_ended.set()
        self.go_on.set()  # as the death of their processes does
        self._close()


def by_hand(flow: df.Flow) -> Callable[[], Any]:
    call = flow.post("first.double", flow.fetch(2))
    flow.flush(call)
    return call.result


@pytest.mark.parametrize("is_cancelled_first", [False, True])
@pytest.mark.parametrize(
    ("make", "wait"),
    [(make_light, by_hand), (make_shards, lambda flow: lambda: flow.fetch(2))],
    ids=["the result of a call", "elements of a dataset"],
)
def test_the_end_of_the_block_does_not_wait_for_a_worker(
    make: Callable[[], df.Flow], wait: Callable[[df.Flow], Callable[[], Any]], is_cancelled_first: bool
) -> None:
    flow, workers = in_threads(make)
    held: list[Held] = []

    async def use() -> None:
        async with flow:
            held.append(Held(workers))
            task = asyncio.create_task(flow.run(wait(flow)))
            assert await asyncio.to_thread(held[0].inside.wait, WATCHDOG_S)
            if is_cancelled_first:
                task.cancel()
        with pytest.raises((asyncio.CancelledError, FlowError)):
            await task

    asyncio.run(use())
    assert held[0].was_ended.is_set()


def test_a_call_that_was_awaited_no_more_may_be_asked_again() -> None:
    flow, workers = in_threads(make_light)

    async def use() -> None:
        async with flow:
            held = Held(workers)
            result = by_hand(flow)
            task = asyncio.create_task(flow.run(result))
            assert await asyncio.to_thread(held.inside.wait, WATCHDOG_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            left = flow._thread._left  # type: ignore[union-attr]
            assert left is not None
            with pytest.raises(FlowError, match="is awaited no more"):
                await asyncio.to_thread(left.result, WATCHDOG_S)
            # Requests of the task's own thread are not stopped by that.
            assert flow.fetch(2) == (2, 3)
            held.go_on.set()
            assert (await flow.run(result)).ids == (0, 1)

    asyncio.run(use())


class Light(df.Role):
    """Trains nothing."""

    inside, go_on = threading.Event(), threading.Event()

    def read(self, rows: df.Rows) -> dict[str, float]:
        self.inside.set()
        assert self.go_on.wait(WATCHDOG_S)
        return {"sum": float(rows["x"].sum())}


def make_held(**arguments: Any) -> tuple[df.Flow, type[Light]]:
    """Return a flow of which each function waits, and its class."""
    kind = type("Light", (Light,), {"inside": threading.Event(), "go_on": threading.Event()})

    def numbers() -> Iterator[dict[str, Any]]:
        yield from ({"x": torch.tensor(float(i))} for i in range(100))

    call = df.call(df.place(kind, name="light").read, "x", rows=2, interface=df.Interface.INFERENCE)
    return df.Flow([call], source=numbers(), **arguments), kind


async def cancel_a_step(flow: df.Flow, light: type[Light]) -> None:
    """Cancel a step that is complete later."""
    task = asyncio.create_task(flow.step())
    assert await asyncio.to_thread(light.inside.wait, WATCHDOG_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    light.go_on.set()


@pytest.mark.parametrize("has_journal", [False, True])
def test_a_late_step_counts_when_it_is_returned(has_journal: bool, tmp_path: Any) -> None:
    async def use() -> None:
        flow, light = make_held(journal=tmp_path / "j" if has_journal else None)
        async with flow:
            await cancel_a_step(flow, light)
            assert [step.number async for step in flow.steps_async(2)] == [1, 2]
            assert [step.number async for step in flow.steps_async(1)] == [3]

    asyncio.run(use())


def test_a_late_step_is_returned_to_one_task() -> None:
    async def use() -> None:
        flow, light = make_held()
        async with flow:
            await cancel_a_step(flow, light)
            first, second = await asyncio.gather(flow.step(), flow.step(), return_exceptions=True)
            assert isinstance(first, df.FlowStep)
            assert first.number == 1
            assert isinstance(second, ConfigError)
            step = await flow.step()
            assert step is not None
            assert step.number == 2

    asyncio.run(use())


@pytest.mark.parametrize("in_workers", [False, True])
def test_a_result_that_is_asked_for_again_and_again_without_a_wait_arrives(in_workers: bool) -> None:
    with in_threads(make_light)[0] if in_workers else make_light() as flow:
        result: Any = by_hand(flow)
        give_up = threading.Event()
        timer = threading.Timer(WATCHDOG_S, give_up.set)
        timer.start()
        try:
            while not give_up.is_set():
                try:
                    assert result(timeout_s=0).ids == (0, 1)
                    break
                except TimeoutError:
                    continue
            assert not give_up.is_set()
        finally:
            timer.cancel()
            timer.join()
