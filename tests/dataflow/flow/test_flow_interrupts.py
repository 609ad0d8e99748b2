"""Steps that are interrupted, as by Ctrl-C: the flow says so from then on, and never waits for what has no answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from flow_threads import in_threads

import softs_fast.dataflow as df
from softs_fast.dataflow.watch.trace import Trace
from softs_fast.errors import FlowError


class Model(df.Role):
    """Has two functions."""

    #: What is raised once, and where.
    raises: ClassVar[dict[str, type[BaseException]]] = {}

    def double(self, rows: df.Rows) -> dict[str, Any]:
        raise_once("role")
        return {"y": rows["x"] * 2}

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": float(rows["z"].sum())}


def half(rows: df.Rows) -> dict[str, Any]:
    """A function without a role."""
    raise_once("no role")
    return {"z": rows["y"] / 2}


def raise_once(place: str) -> None:
    error = Model.raises.pop(place, None)
    if error is not None:
        raise error


def make_flow(**arguments: Any) -> df.Flow:
    """Return a flow of two workers and a function without a role."""

    def numbers() -> Iterator[dict[str, Any]]:
        for i in range(100):
            raise_once("source")
            yield {"x": torch.tensor(float(i))}

    first, second = df.place(Model, name="first"), df.place(Model, on=[1], name="second")
    inference = df.Interface.INFERENCE
    calls = [
        df.call(first.double, "x -> y", rows=2, interface=inference),
        df.call(half, "y -> z", rows=2),
        df.call(second.read, "z", rows=4, interface=inference),
    ]
    return df.Flow(calls, source=numbers(), **arguments)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """What a test did not raise is not raised by the next one."""
    yield
    Model.raises.clear()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(
    ("make", "place"),
    [
        (make_flow, "role"),
        (make_flow, "no role"),
        (make_flow, "source"),
        (lambda: in_threads(make_flow)[0], "no role"),
    ],
)
def test_a_function_that_was_interrupted_is_not_awaited(
    make: Callable[[], df.Flow], place: str, error: type[BaseException]
) -> None:
    is_of_function = place != "source" and error is SystemExit
    said = (
        f"failed on 2 rows .*: {error.__name__}"
        if is_of_function
        else f"was interrupted by {error.__name__}; the"
    )
    with make() as flow:
        next(flow.steps(1))
        Model.raises[place] = error
        with pytest.raises(FlowError if is_of_function else error):
            list(flow.steps(1))
        for _ in range(2):
            with pytest.raises(FlowError, match=said):
                list(flow.steps(1))


def test_ctrl_c_in_a_wait_for_workers_loses_nothing() -> None:
    """No function of this process was interrupted, so the flow goes on."""
    flow, workers = in_threads(make_flow)
    go_on, was_sent = threading.Event(), threading.Event()
    real, main = workers.hub.receive, threading.main_thread().ident
    assert main is not None

    def hold(worker: int, message: Any) -> None:
        assert go_on.wait(45)

    def receive(timeout_s: float) -> list[Any]:
        if timeout_s and not was_sent.is_set():
            was_sent.set()
            signal.pthread_kill(main, signal.SIGINT)
        return real(timeout_s)

    with flow:
        workers.hub.on_message, workers.hub.receive = hold, receive  # type: ignore[method-assign]
        try:
            with pytest.raises(KeyboardInterrupt) as caught:
                list(flow.steps(1))
            assert caught.type is KeyboardInterrupt, "Python has status 130 for this type alone"
        finally:
            go_on.set()
        assert [step.number for step in flow.steps(2)] == [1, 2]


def test_a_trace_that_has_no_room_ends_and_the_flow_goes_on(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with make_flow(trace=tmp_path / "run.json") as flow:
        next(flow.steps(1))
        trace = flow._session.runner.observer
        assert isinstance(trace, Trace)
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, trace._file)
        os.close(full)
        assert [step.number for step in flow.steps(3)] == [2, 3, 4]
    text = f"cannot write the trace {tmp_path / 'run.json'} any more: No space left on device; it ends here"
    assert [one.getMessage() for one in caplog.records] == [text]


def test_a_trace_that_has_no_room_for_its_end_is_closed(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trace = Trace(tmp_path / "run.json", 1)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, trace._file)
    os.close(full)
    trace.close()
    trace.close()
    assert len(caplog.records) == 1
