"""Masters on several hosts have random numbers: their clocks differ."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from small_flow import make_flow

from softs_fast.dataflow.workers import host_processes
from softs_fast.dataflow.workers.host_processes import HostOptions, HostProcesses
from softs_fast.errors import FlowError
from softs_fast.trust import write_token


def test_no_clock_decides_which_master_workers_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def master(*given: Any, incarnation: int, **options: Any) -> None:
        found.append(incarnation)
        raise FlowError("it does not listen")

    monkeypatch.setattr(host_processes, "ControlMaster", master)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    write_token(tmp_path / "token")
    for _ in range(2):
        one = HostProcesses(make_flow().declaration, HostOptions("tcp://127.0.0.1:0", tmp_path / "token"))
        with pytest.raises(FlowError, match="it does not listen"):
            one.start()
    assert len({*found, 0}) == 3
