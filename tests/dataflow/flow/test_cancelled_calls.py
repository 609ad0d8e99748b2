"""Posted calls that are cancelled: their rows, their numbers, and calls that have begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from flow_threads import in_threads, when
from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.dataflow.link.messages import Result
from softs_fast.errors import ConfigError, FlowError


class Model(df.Role):
    """Notes what it is called with."""

    def setup(self, mesh: df.Mesh) -> None:
        self.log: list[tuple[str, tuple[int, ...]]] = []

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        self.log.append(("generate", rows.ids))
        return {"y": rows["x"] * 2}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        self.log.append(("train", rows.ids))
        return {"mean": rows["y"].mean()}

    def before(self) -> None:
        self.log.append(("before", ()))


def numbers(n: int) -> Iterator[dict[str, Any]]:
    for i in range(n):
        yield {"x": torch.tensor(float(i))}


def make_flow(n: int = 64) -> df.Flow:
    gen, actor = df.place(Model, name="gen"), df.place(Model, on=[1], name="actor")
    before = df.hook(Model.before, on=[actor], every=2)
    calls = [
        df.call(gen.generate, "x -> y", rows=4),
        df.call(actor.train, "y", rows=4, before=[before]),
    ]
    return df.Flow(calls, source=numbers(n))


def roles(flow: df.Flow) -> tuple[df.Placement, df.Placement]:
    gen, actor = sorted(flow.declaration.roles, key=lambda role: role.name, reverse=True)
    return gen, actor


MAKERS: dict[str, Callable[[], df.Flow]] = {
    "one process": make_flow,
    "several": lambda: in_threads(make_flow)[0],
}


@pytest.fixture(params=list(MAKERS))
def flow(request: pytest.FixtureRequest) -> Iterator[df.Flow]:
    with MAKERS[request.param]() as made:
        yield made


def test_a_cancelled_call_says_so_and_its_rows_are_usable_again(flow: df.Flow) -> None:
    gen, _ = roles(flow)
    ids = flow.fetch(4)
    first = flow.post(gen.generate, ids)
    with pytest.raises(ConfigError, match=r"gen.generate: rows \[0\] were used by it"):
        flow.post(gen.generate, ids)
    assert first.cancel() is True
    assert first.cancel() is True
    with pytest.raises(FlowError, match=r"call 1 of gen.generate was cancelled before it had tickets"):
        first.result()
    with pytest.raises(ConfigError, match=r"call 1 of gen.generate was cancelled; post it again"):
        flow.flush(first)
    assert "call 1" not in flow.explain()
    second = flow.post(gen.generate, ids)
    flow.flush(second)
    third = flow.post(df.offload(gen))
    assert second.result(WATCHDOG_S).ids == ids
    assert third.cancel(), "a hook, too"
    assert [step["actor.train"]["mean"] for step in flow.steps(2)] == [3.0, 11.0]


def test_a_call_that_was_flushed_can_be_cancelled_until_it_has_tickets(flow: df.Flow) -> None:
    gen, _ = roles(flow)
    ids = flow.fetch(4)
    first = flow.post(gen.generate, ids)
    flow.flush(first)
    assert first.cancel() is True
    second = flow.post(gen.generate, ids)
    flow.flush(second)
    assert second.result(WATCHDOG_S).ids == ids
    assert second.cancel() is False, "it is over"
    assert second.result().ids == ids


def test_a_training_call_that_was_cancelled_leaves_no_trace() -> None:
    """Its number is free again, so hooks come with the calls that they would have come with."""

    def log(cancels: bool) -> list[tuple[str, tuple[int, ...]]]:
        with make_flow() as flow:
            gen, actor = roles(flow)
            if cancels:
                ids = flow.fetch(4)
                made = flow.post(gen.generate, ids)
                flow.flush(made)
                made.result()
                calls = [flow.post(actor.train, ids[:2]), flow.post(actor.train, ids[2:])]
                assert [one.cancel() for one in calls] == [True, True]
            list(flow.steps(4))
            found: list[tuple[str, tuple[int, ...]]] = flow.role(actor).log
            return found

    expected = log(cancels=False)
    assert [name for name, _ in expected] == ["train", "before", "train", "train", "before", "train"]
    assert log(cancels=True) == expected


def test_a_call_with_tickets_goes_on() -> None:
    flow, workers = in_threads(make_flow)
    with flow:
        gen, _ = roles(flow)
        ids = flow.fetch(4)
        call, refused = flow.post(gen.generate, ids), []
        flow.flush(call)
        ended = when(
            workers.hub,
            lambda worker, message: isinstance(message, Result),
            lambda: refused.append(call.cancel()),
        )
        assert call.result(WATCHDOG_S).ids == ids
        assert ended.is_set()
    assert refused == [False]


def test_calls_of_another_flow_are_not_flushed() -> None:
    with make_flow() as flow, make_flow() as other:
        gen, _ = roles(other)
        foreign = other.post(gen.generate, other.fetch(4))
        own_gen, _ = roles(flow)
        own = flow.post(own_gen.generate, flow.fetch(4))
        assert foreign.number == own.number
        with pytest.raises(
            ConfigError, match=r"call 1 of gen.generate is of another flow, or of this one before"
        ):
            flow.flush(own, foreign)
        assert own.cancel(), "nothing was flushed"


def test_under_asyncio_calls_are_cancelled_between_awaits_or_in_the_thread() -> None:
    async def run() -> None:
        async with make_flow() as flow:
            gen, _ = roles(flow)
            ids = flow.fetch(4)
            assert flow.post(gen.generate, ids).cancel()
            second = flow.post(gen.generate, ids)
            assert await flow.run(second.cancel)
            with pytest.raises(FlowError, match=r"call 2 of gen.generate was cancelled"):
                await flow.run(second.result)
            step = await flow.step()
            assert step is not None
            assert step["actor.train"]["mean"] == 3.0

    asyncio.run(run())
