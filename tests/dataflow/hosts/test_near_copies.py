"""A worker ends that has copied weights for another one of its host, before the other one reads the copy."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import host_flow
import pytest
from flow_processes import stop
from flows import ROWS, called, kill
from host_workers import on_hosts


def test_weights_come_from_their_source_when_the_copy_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host_flow.make_followers() as one:
        # The weight after four steps.
        expected = list(one.steps(5))[4]["f2.note"]["weight"]
    with on_hosts(tmp_path, "host_flow:make_followers", ("", "far", "far"), again=[1]) as (flow, _):
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
            if not killed and worker == 1 and message.columns.names[0].startswith("weights"):
                killed.append(worker)
                # Worker 2 has been told of the copy, and has not read it.
                kill(pids[1])
                os.kill(pids[2], signal.SIGCONT)

        monkeypatch.setattr(backend, "_fetched", fetched)
        stop(pids[2])
        assert [step.number for step in flow.steps(3)] == [2, 3, 4]
        assert killed
        assert flow.ask("stats")["restarts"] == 2
        assert called(flow, "f2.note", flow.fetch(ROWS)).numbers["weight"] == expected
