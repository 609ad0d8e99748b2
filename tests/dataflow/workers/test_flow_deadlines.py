"""SIGSTOP of a worker process in each phase: at the deadline it is ended and named, and no other one."""

from __future__ import annotations

import flows
import pytest
from flow_processes import in_forks, stop
from late_clock import LateClock
from stopping_flow import make_stopping

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError, FlowError

#: By the clock of `LateClock`; so long is a wait until it is asked again.
DEADLINE_S = 0.5


@pytest.mark.parametrize(
    ("place", "worker", "text"),
    [
        (
            "main",
            1,
            r"ticket \d+, main of gen.generate \(call \d+\), is with it since \d\.\d s, and its deadline is 0.5 s; "
            r"its process is stopped by a signal \(state T\); ticket \d+, main of gen.generate .*, was open there",
        ),
        (
            "hang",
            1,
            r"ticket \d+, main of gen.generate .*; it is inside, and its process runs; it was in .*threading.py:\d+ wait"
            r".*stopping_flow.py:\d+ generate; ticket \d+, main of gen.generate .*, was",
        ),
        (
            "hook",
            0,
            r"ticket \d+, post of actor.train .*; its process is stopped by a signal \(state T\)"
            r"; not to blame there: worker 1; ticket \d+, post of actor.train .*, was open there",
        ),
    ],
)
def test_a_worker_that_stops_or_hangs_is_ended_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch, place: str, worker: int, text: str
) -> None:
    clock = LateClock(monkeypatch)
    flow, workers = in_forks("stopping_flow", "make_stopping", place=place, deadline_s=DEADLINE_S)
    with flow:
        assert next(flow.steps(1)).is_complete
        process = workers.processes[worker]
        clock.watch(flow, worker, process.pid)
        with pytest.raises(FlowError, match=rf"worker {worker} is lost: process {process.pid}: {text}"):
            list(flow.steps(5))
        process.join(45)
        assert process.exitcode == -9
        assert all(one.is_alive() for number, one in workers.processes.items() if number != worker)
    assert not workers.processes


def test_a_worker_that_stops_while_it_waits_is_named_by_all_calls_that_go_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = LateClock(monkeypatch)
    flow, workers = in_forks("stopping_flow", "make_stopping", deadline_s=DEADLINE_S)
    with flow:
        next(flow.steps(1))
        while flow.ask("stats")["rows"]:  # calls of the next step have begun
            next(flow.steps(1))
        pid = workers.processes[1].pid
        clock.watch(flow, 1, pid)
        stop(pid)
        calls = [flow.post("gen.generate", flow.fetch(2))]
        flow.flush(*calls)
        for call in calls:
            with pytest.raises(
                FlowError,
                match=rf"call {call.number} of gen.generate failed: worker 1 is lost: process {pid}: ticket .*state T",
            ):
                call.result()
        with pytest.raises(FlowError, match="worker 1 is lost"):
            list(flow.steps(2))


def test_a_flow_has_a_deadline_for_all_calls_and_one_of_a_call_is_stronger() -> None:
    flow = make_stopping("main", deadline_s=4.0)
    assert [one.deadline_s for one in flow.declaration.calls] == [4.0, None]
    role = df.place(flows.Light)
    for make in (
        lambda: df.call(role.double, "x -> y", rows=1, deadline_s=0.0),
        lambda: df.Flow([df.call(role.read, "y", rows=1)], source=[{"y": 1.0}], deadline_s=-1.0),
    ):
        with pytest.raises(ConfigError, match="above 0, or None"):
            make()


def test_in_one_process_a_deadline_ends_nothing() -> None:
    role = df.place(flows.Light, name="one")
    flow = df.Flow(
        [df.call(role.double, "x -> y", rows=2), df.call(role.read, "y", rows=2)],
        source=flows.numbers(),
        deadline_s=1e-6,
    )
    with flow:
        assert next(flow.steps(1)).is_complete
