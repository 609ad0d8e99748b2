"""A worker dies at any message, a function fails, a hook waits for one that has died: each call has an answer."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import flows
import parallel_flow
import pytest
from flow_threads import in_threads, when
from flows import make_flow, post, summary

import softs_fast.dataflow as df
from softs_fast.dataflow.link.messages import State
from softs_fast.errors import FlowError


def make_replicas() -> df.Flow:
    """Return a flow of which the weights of two workers go to three others, one of them a source, too."""
    actor = df.place(parallel_flow.Model, "tp2", on=[0, 1], name="actor")
    gen = df.place(parallel_flow.Model, "dp3", on=[1, 2, 3], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y", rows=6),
        df.call(actor.train, "x, y", rows=6, after=[df.publish(gen)]),
    ]
    return df.Flow(calls, source=parallel_flow.numbers())


@pytest.mark.parametrize(
    ("make", "worker", "n_steps", "stride", "least"),
    [
        *((make_flow, worker, 2, 3, 6) for worker in range(3)),
        *((functools.partial(parallel_flow.make_read, "dp2 tp2", 4), worker, 3, 2, 3) for worker in range(4)),
        *((make_replicas, worker, 2, 1, 5) for worker in range(4)),
    ],
)
def test_a_death_before_any_message_is_named(
    make: Callable[[], df.Flow], worker: int, n_steps: int, stride: int, least: int
) -> None:
    for n in itertools.count(0, stride):
        flow, workers = in_threads(make)
        left = [n]

        def dies(sender: int, message: Any, left: list[int] = left) -> bool:
            left[0] -= sender == worker
            return left[0] < 0

        done = when(workers.hub, dies, functools.partial(workers.hub.kill, worker))
        workers.reasons[worker] = "its process ended: signal SIGKILL"
        try:
            summary(flow, n_steps)
        except FlowError as error:
            said = str(error)
        else:
            assert not done.is_set()
            assert n >= least
            return
        assert f"worker {worker} is lost: process {1000 + worker}: its process ended: signal SIGKILL" in said


def test_every_open_call_is_answered_when_a_worker_dies() -> None:
    flow, workers = in_threads(make_flow)
    with flow:
        ids = flow.fetch(8)
        calls = [flow.post("gen.generate", ids[:4]), flow.post("gen.generate", ids[4:])]
        when(workers.hub, lambda worker, message: worker == 1, functools.partial(workers.hub.kill, 1))
        flow.flush(*calls)
        for call in calls:
            with pytest.raises(
                FlowError, match=f"call {call.number} of gen.generate failed: worker 1 is lost: process 1001"
            ):
                call.result(timeout_s=45)
        with pytest.raises(
            FlowError,
            match=r"worker 1 is lost: .*; ticket 2, main of gen.generate \(call \d\), was open there, and behind it call \d of gen",
        ):
            next(flow.steps(1))


def test_targets_return_when_the_source_of_weights_dies_or_fails() -> None:
    flow, workers = in_threads(make_flow)
    done = when(
        workers.hub,
        lambda worker, message: worker == 0 and isinstance(message, State) and message.ticket > 3,
        functools.partial(workers.hub.kill, 0),
    )
    with pytest.raises(FlowError, match="worker 0 is lost"), flow:
        next(flow.steps(1))
    assert done.is_set()


def test_an_exception_in_a_worker_is_raised_with_its_traceback() -> None:
    def broken() -> df.Flow:
        actor = df.place(flows.Model, name="actor")
        return df.Flow([df.call(actor.train, "x", rows=2)], source=flows.numbers())

    flow, _ = in_threads(broken)
    with (
        pytest.raises(FlowError, match=r"(?s)actor.train failed on 2 rows \[0, 1\]: KeyError: 'y'.*in train"),
        flow,
    ):
        next(flow.steps(1))


def test_a_result_that_does_not_come_in_time_may_be_asked_again() -> None:
    is_inside, may_go = threading.Event(), threading.Event()

    class Slow(flows.Model):
        def wait(self, rows: df.Rows) -> None:
            is_inside.set()
            assert may_go.wait(45)

    def slow() -> df.Flow:
        role = df.place(Slow, name="slow", frozen=True)
        return df.Flow([df.call(role.wait, "x", rows=2)], source=flows.numbers())

    flow, _ = in_threads(slow)
    with flow:
        call = post(flow, "slow.wait", flow.fetch(2))
        while not is_inside.is_set():  # the order is sent while its answer is awaited
            with pytest.raises(TimeoutError):
                call.result(timeout_s=0.05)
        with pytest.raises(
            TimeoutError, match=r"call 1 of slow.wait has no answer after 0.05 s(?s:.)*inside: worker 0"
        ):
            call.result(timeout_s=0.05)
        assert flow.ask("inside")[0]["name"] == "slow.wait"
        may_go.set()
        assert call.result(timeout_s=45).ids == (0, 1)
