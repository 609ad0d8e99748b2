"""A flow under asyncio: the bits of `steps`, one thread, an event loop that goes on, and cancelled tasks."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from flow_threads import in_threads
from flows import make_flow, make_light, summary
from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError, FlowError


class Gate(df.Role):
    """Waits in its function, or in `setup`, until a test lets it go on."""

    inside, go_on = threading.Event(), threading.Event()
    holds = ""
    threads: ClassVar[set[int]] = set()

    def setup(self, mesh: df.Mesh) -> None:
        self.pause("setup")

    def pause(self, place: str) -> None:
        type(self).threads.add(threading.get_ident())
        if self.holds == place:
            self.inside.set()
            assert self.go_on.wait(WATCHDOG_S)

    def read(self, rows: df.Rows) -> dict[str, float]:
        self.pause("main")
        if float(rows["x"].max()) == 7:
            raise RuntimeError("seven")
        return {"sum": float(rows["x"].sum()) + torch.rand(()).item()}

    def close(self) -> None:
        type(self).threads.add(threading.get_ident())


@pytest.fixture
def gate() -> type[Gate]:
    """A class of its own for each test."""
    return type(
        "Gate",
        (Gate,),
        {"inside": threading.Event(), "go_on": threading.Event(), "holds": "", "threads": set()},
    )


def make_gate(gate: type[Gate], n: int = 6, n_functions: int = 1) -> df.Flow:
    def numbers() -> Iterator[dict[str, Any]]:
        for i in range(n):
            yield {"x": torch.tensor(float(i))}

    role, inference = df.place(gate, name="gate"), df.Interface.INFERENCE
    calls = [
        df.call(role.read, "x", rows=2, interface=inference, name=f"read{number}")
        for number in range(n_functions)
    ]
    return df.Flow(calls, source=numbers())


async def wait_for(event: threading.Event) -> None:
    """Wait for an event while the event loop goes on."""
    assert await asyncio.to_thread(event.wait, WATCHDOG_S)


def numbers_of(step: df.FlowStep | None) -> list[Any]:
    assert step is not None
    return [step.number, sorted((one.function, one.ids, one.digest, one.numbers) for one in step.calls)]


@pytest.mark.parametrize(
    "make",
    [make_flow, lambda: in_threads(make_flow)[0]],
    ids=["one process", "several"],
)
def test_the_bits_are_those_of_steps(make: Callable[[], df.Flow]) -> None:
    torch.manual_seed(5)
    expected = summary(make_flow(), 4)
    torch.manual_seed(5)

    async def run() -> list[Any]:
        async with make() as flow:
            found = [await flow.step(), await flow.step()]
            found += [step async for step in flow.steps_async(2)]
            return found

    steps = asyncio.run(run())
    assert [numbers_of(step) for step in steps] == [[number, calls] for number, _, calls in expected]


def test_generators_of_the_process_go_on_as_in_steps(gate: type[Gate]) -> None:
    torch.manual_seed(5)
    with make_gate(gate) as flow:
        expected = [numbers_of(step) for step in flow.steps()]
    torch.manual_seed(5)

    async def run() -> list[Any]:
        async with make_gate(gate) as flow:
            return [numbers_of(step) async for step in flow.steps_async()]

    assert asyncio.run(run()) == expected


def test_all_runs_in_one_thread_and_the_event_loop_goes_on(gate: type[Gate]) -> None:
    gate.holds = "main"

    async def run() -> None:
        async with make_gate(gate) as flow:
            step = asyncio.create_task(flow.step())
            await wait_for(gate.inside)  # the loop runs while the function does
            with pytest.raises(ConfigError, match="another task awaits this flow"):
                await flow.step()
            gate.go_on.set()
            assert numbers_of(await step)[0] == 1
            ids = flow.fetch(2)
            call = flow.post("read0", ids)
            flow.flush(call)
            assert (await flow.run(call.result)).ids == ids

    asyncio.run(run())
    assert len(gate.threads) == 1
    assert threading.get_ident() not in gate.threads


def test_the_end_of_the_source_and_errors_of_functions(gate: type[Gate]) -> None:
    async def run() -> None:
        async with make_gate(gate, 4) as flow:
            assert [numbers_of(step)[0] async for step in flow.steps_async(5)] == [1, 2]
            assert await flow.step() is None
        async with make_gate(gate, 8) as flow:
            with pytest.raises(FlowError, match=r"read0 failed on 2 rows \[6, 7\]: RuntimeError: seven"):
                async for _ in flow.steps_async():
                    pass
            with pytest.raises(FlowError, match="seven"):
                await flow.step()

    asyncio.run(run())


def test_a_cancelled_task_loses_nothing(gate: type[Gate], caplog: pytest.LogCaptureFixture) -> None:
    """The function goes on; the step stops behind it, and the next one goes on there."""
    torch.manual_seed(5)
    with make_gate(gate, n_functions=2) as flow:
        expected = [numbers_of(step) for step in flow.steps()]
    torch.manual_seed(5)
    gate.holds = "main"

    async def run() -> list[Any]:
        async with make_gate(gate, n_functions=2) as flow:
            step = asyncio.create_task(flow.step())
            await wait_for(gate.inside)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            assert not gate.go_on.is_set()  # the task has ended before the function
            gate.go_on.set()
            return [numbers_of(one) async for one in flow.steps_async()]

    assert asyncio.run(run()) == expected
    gc.collect()
    assert not caplog.records, "asyncio has logged what the next step knows"


def test_a_step_that_was_complete_is_given_to_the_next_one(gate: type[Gate]) -> None:
    gate.holds = "main"

    async def run() -> None:
        async with make_gate(gate) as flow:
            for number in (1, 2):
                gate.inside.clear()
                gate.go_on.clear()
                step = asyncio.create_task(flow.step())
                await wait_for(gate.inside)
                step.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await step
                gate.go_on.set()
                later = [one async for one in flow.steps_async(1)]
                assert [numbers_of(one)[0] for one in later] == [number]

    asyncio.run(run())


def test_an_error_of_what_was_cancelled_is_raised_by_the_next_await(gate: type[Gate]) -> None:
    def fail() -> None:
        gate.inside.set()
        assert gate.go_on.wait(WATCHDOG_S)
        raise OSError("no such file")

    async def run() -> None:
        async with make_gate(gate) as flow:
            task = asyncio.create_task(flow.run(fail))
            await wait_for(gate.inside)
            task.cancel()
            gate.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(OSError, match="no such file"):
                await flow.step()
            assert numbers_of(await flow.step())[0] == 1

    asyncio.run(run())


def test_an_error_of_a_cancelled_step_is_raised_by_the_next_one(gate: type[Gate]) -> None:
    gate.holds = "main"

    async def run() -> None:
        async with make_gate(gate, 8) as flow:
            flow.clear_data_cache(flow.fetch(2))
            gate.go_on.set()
            assert [numbers_of(one)[0] async for one in flow.steps_async(2)] == [1, 2]
            gate.inside.clear()
            gate.go_on.clear()
            step = asyncio.create_task(flow.step())
            await wait_for(gate.inside)
            step.cancel()
            gate.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await step
            with pytest.raises(FlowError, match="seven"):
                await flow.step()

    asyncio.run(run())


@pytest.mark.parametrize("place", ["setup", "main"])
def test_a_flow_that_is_left_by_a_cancelled_task_is_closed(gate: type[Gate], place: str) -> None:
    gate.holds = place
    flows: list[df.Flow] = []

    async def use() -> None:
        flows.append(make_gate(gate))
        async with flows[0] as flow:
            await flow.step()

    async def run() -> None:
        task = asyncio.create_task(use())
        await wait_for(gate.inside)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # the end of `async with` is not cut short
        asyncio.get_running_loop().call_later(0.01, gate.go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert not flows[0]._session.is_open
    assert flows[0]._thread is None


def test_a_wait_for_workers_stops_soon() -> None:
    """A worker is in a function that does not return before the task was cancelled."""
    inside, go_on = threading.Event(), threading.Event()
    flow, workers = in_threads(make_light)
    look = workers.hub.on_message

    def hold(worker: int, message: Any) -> None:
        look(worker, message)
        inside.set()
        assert go_on.wait(WATCHDOG_S)

    async def run() -> None:
        async with flow:
            workers.hub.on_message = hold
            step = asyncio.create_task(flow.step())
            await wait_for(inside)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            assert not go_on.is_set()
            # The thread is free again, although the worker has not answered.
            left = flow._thread._left  # type: ignore[union-attr]
            assert left is not None
            with pytest.raises(FlowError, match="the step is awaited no more"):
                await asyncio.to_thread(left.result, WATCHDOG_S)
            go_on.set()
            assert numbers_of(await flow.step())[0] == 1

    asyncio.run(run())


def test_a_flow_is_entered_once_and_used_inside(gate: type[Gate]) -> None:
    async def run() -> None:
        flow = make_gate(gate)
        with pytest.raises(ConfigError, match="use it in an `async with` block"):
            await flow.step()
        async with flow:
            with pytest.raises(ConfigError, match="the flow is open"):
                await flow.__aenter__()
            assert await flow.step() is not None
        with flow, pytest.raises(ConfigError, match="the flow is open"):
            await flow.__aenter__()
        with pytest.raises(ConfigError, match="not open for asyncio"):
            await flow.run(int)

    asyncio.run(run())
