"""What an open flow says to `softs-fast top`: true while its thread is busy, gone at its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from flow_processes import in_forks, stop
from flow_threads import in_threads
from flows import Light, make_flow, numbers
from waiting import WATCHDOG_S, eventually

import softs_fast.dataflow as df
from softs_fast.monitoring.flow_status import FlowView, flow_folder, flows


@pytest.fixture(autouse=True)
def folder(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sockets, of this test alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    return flow_folder()


def sole() -> FlowView:
    (seen,) = flows(timeout_s=WATCHDOG_S)
    assert not seen.error, seen.error
    return seen


def test_a_flow_is_listed_while_it_is_open_and_leaves_nothing(folder: Path) -> None:
    assert flows() == ()
    with make_flow(n_workers=2) as flow, make_flow(n_workers=2):
        list(flow.steps(2))
        first, second = flows(timeout_s=WATCHDOG_S)
        assert (first.pid, first.steps, first.age, second.steps) == (os.getpid(), 2, 0, 0)
        assert first.doing == "is in the code of the caller"
        assert [one.name for one in first.functions] == [
            "gen.generate",
            "scorer.score",
            "extra",
            "actor.train",
        ]
        assert first.functions[0].needed == 4
        assert first.workers == ()
        modes = {stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.iterdir())}
        assert modes == {0o700, 0o600}
    assert not folder.exists()


def test_it_is_true_while_the_thread_of_the_flow_and_a_worker_are_busy() -> None:
    begun, may_go = threading.Event(), threading.Event()
    seen: list[FlowView] = []

    class Slow(Light):
        def double(self, rows: df.Rows) -> dict[str, Any]:
            begun.set()
            assert may_go.wait(WATCHDOG_S)
            return super().double(rows)

    def own(rows: df.Rows) -> dict[str, Any]:
        try:
            assert begun.wait(WATCHDOG_S)
            seen.append(sole())
        finally:
            may_go.set()
        return {"z": rows["x"]}

    def slow() -> df.Flow:
        role = df.place(Slow, on=[3], name="slow")
        calls = [
            df.call(role.double, "x -> y", rows=2),
            df.call(own, "x -> z", rows=2),
            df.call(role.read, "y, z", rows=2),
        ]
        return df.Flow(calls, source=numbers())

    flow, _ = in_threads(slow)
    with flow:
        assert next(flow.steps(1)).is_complete
    (view,) = seen
    assert view.doing == "runs own, a function without a role,"
    assert view.doing_s >= 0
    (worker,) = view.workers
    assert (worker.worker, worker.pid, worker.inside, worker.ticket) == (3, 1003, "slow.double", 1)
    assert {one.name: one.running for one in view.functions} == {"slow.double": 1, "own": 1, "slow.read": 0}


def test_a_worker_that_is_stopped_is_shown_as_that() -> None:
    flow, workers = in_forks("stopping_flow", "make_stopping")
    with flow:
        next(flow.steps(1))
        pid = workers.processes[1].pid
        stop(pid)
        try:
            view = sole()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert {one.worker: one.state for one in view.workers} == {0: "", 1: "stopped by a signal (state T)"}
        assert view.workers[1].pid == pid


KILLED = """
import sys, time
sys.path[:0] = {path!r}
import flows
with flows.make_light() as flow:
    next(flow.steps(1))
    print("open", flush=True)
    time.sleep(1000)
"""


def test_the_socket_of_a_flow_that_was_killed_is_removed_by_the_next_look(folder: Path) -> None:
    script = KILLED.format(path=[one for one in sys.path if "tests" in one])
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            assert sole().pid == process.pid
        finally:
            process.kill()
        process.wait()
        assert [path.name.partition("-")[0] for path in folder.iterdir()] == [str(process.pid)]
        assert flows() == ()
        assert not list(folder.iterdir())
    folder.rmdir()


def test_one_that_asks_and_does_not_read_holds_up_nothing(folder: Path) -> None:
    with make_flow(n_workers=2) as flow:
        (path,) = folder.iterdir()
        links = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for link in links:
            link.connect(str(path))
        assert next(flow.steps(1)).is_complete
        assert sole().steps == 1
        for link in links:
            link.close()


def test_a_flow_runs_where_no_socket_can_be_made(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING), make_flow(n_workers=2) as flow:
        assert next(flow.steps(1)).is_complete
    assert "softs-fast top cannot show this flow" in caplog.text
    assert "is not a folder of this user alone" in caplog.text
    folder.rmdir()


def test_a_flow_that_is_idle_wakes_nothing() -> None:
    with make_flow(n_workers=2, watchdog_s=None) as flow:
        next(flow.steps(1))
        sole()
        (task,) = [
            path
            for path in Path("/proc/self/task").iterdir()
            if (path / "comm").read_text().startswith("softs-flow-watc")
            or path.name == str(_native_id("softs-flow-watch"))
        ]
        last = [""]

        def rests() -> bool:
            last.append(_switches(task))
            return len(last) > 5 and len(set(last[-5:])) == 1

        # On a machine that is busy it goes to sleep late after its answer. A thread that wakes each second would not.
        eventually(rests, last, every_s=0.5)


def _native_id(name: str) -> int | None:
    return next((thread.native_id for thread in threading.enumerate() if thread.name == name), None)


def _switches(task: Path) -> str:
    lines = (task / "status").read_text().splitlines()
    return next(line for line in lines if line.startswith("voluntary"))
