"""SIGSTOP of workers of other hosts: at the deadline they are lost by name, and their processes end by themselves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from host_workers import HostWorkers, on_hosts
from late_clock import LateClock
from waiting import WATCHDOG_S

from softs_fast.errors import FlowError

#: By the clock of `LateClock`; so long is a wait until it is asked again.
DEADLINE_S = 0.5


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            "main",
            r"main of gen.generate \(call \d+\), .*; its native thread does not answer; ticket \d+, main of",
        ),
        (
            "hang",
            r"main of gen.generate .*; it is inside, and its process runs; it was in .*stopping_flow.py:\d+ generate; ticket \d+, main of",
        ),
    ],
)
def test_a_worker_that_stops_or_hangs_is_lost_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, text: str
) -> None:
    clock = LateClock(monkeypatch)
    arguments = {"place": place, "deadline_s": DEADLINE_S}
    with HostWorkers(tmp_path, "stopping_flow:make_stopping", arguments, hosts=["far"] * 2) as workers:
        with workers.flow(rejoin_timeout_s=0) as flow:
            assert next(flow.steps(1)).is_complete
            pid = flow.ask("inside")[1]["pid"]
            clock.watch(flow, 1, pid)
            with pytest.raises(FlowError, match=rf"worker 1 is lost: process {pid}: ticket \d+, {text}"):
                list(flow.steps(5))
            assert workers.processes[0].is_alive()
        # A step that does not return is ended by a thread of its process, once that runs.
        os.kill(pid, signal.SIGCONT)
        assert "has lost its master: the master has given this worker up: ticket" in workers.log(1)
        workers.processes[0].join(WATCHDOG_S)
        assert workers.processes[0].exitcode == 0


def test_a_flow_goes_on_without_a_process_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LateClock(monkeypatch)
    arguments = {"place": "idle", "deadline_s": DEADLINE_S}
    with on_hosts(tmp_path, "stopping_flow:make_stopping", ["far"] * 2, arguments) as (flow, workers):
        assert next(flow.steps(1)).is_complete
        stopped, pid = workers.processes[1], flow.ask("inside")[1]["pid"]
        clock.watch(flow, 1, pid)
        os.kill(pid, signal.SIGSTOP)
        workers.start(1, "third")
        assert len(list(flow.steps(3))) == 3
        assert flow.ask("inside")[1]["pid"] == workers.processes[1].pid
        assert flow.ask("stats")["restarts"] == 1
        os.kill(pid, signal.SIGCONT)
        stopped.join(WATCHDOG_S)
        assert stopped.exitcode == 1
        assert len(list(flow.steps(1))) == 1
