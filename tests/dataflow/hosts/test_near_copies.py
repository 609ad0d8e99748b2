"""A worker ends that has copied weights for another one of its host, before the other one reads the copy."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Any

import host_flow
import pytest
from flow_processes import stop
from host_workers import HostWorkers
from waiting import WATCHDOG_S


def test_weights_come_from_their_source_when_the_copy_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host_flow.make_followers() as one:
        # The weight after four steps.
        expected = list(one.steps(5))[4]["f2.note"]["weight"]
    with HostWorkers(tmp_path, "host_flow:make_followers") as workers:
        for worker, name in enumerate(("", "far", "far")):
            workers.start(worker, name, again=worker == 1)
        with workers.flow() as flow:
            next(flow.steps(1))
            # Worker 2 has not read from the next process of worker 1.
            os.kill(flow.ask("inside")[1]["pid"], signal.SIGKILL)
            while flow.ask("stats")["restarts"] < 1 or flow._session.runner.master.order.away:
                flow._session.runner.advance(automatic=False)
            pids = {worker: one["pid"] for worker, one in flow.ask("inside").items()}
            backend: Any = flow._backend
            real, killed = backend._fetched, []

            def fetched(worker: int, message: Any) -> None:
                real(worker, message)
                if not killed and worker == 1 and message.names[0].startswith("weights"):
                    killed.append(worker)
                    # Worker 2 has been told of the copy, and has not read it.
                    os.kill(pids[1], signal.SIGKILL)
                    wait_for_end(pids[1])
                    os.kill(pids[2], signal.SIGCONT)

            monkeypatch.setattr(backend, "_fetched", fetched)
            stop(pids[2])
            assert [step.number for step in flow.steps(3)] == [2, 3, 4]
            assert killed
            assert flow.ask("stats")["restarts"] == 2
            note = flow.post("f2.note", flow.fetch(host_flow.ROWS))
            flow.flush(note)
            assert note.result().numbers["weight"] == expected


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended, which is no child of this one."""
    descriptor = os.pidfd_open(pid)
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        assert waiting.poll(1000 * WATCHDOG_S)
    finally:
        os.close(descriptor)
