"""What becomes of workers whatever they are, and what is said of them."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import factories
import pytest
from waiting import eventually

from softs_fast.fleet import Workers
from softs_fast.fleet import supervisor as supervisors
from softs_fast.fleet.restarts import RestartPolicy
from softs_fast.fleet.supervisor import Supervisor
from softs_fast.market.fleet_report import WorkerReport


def test_a_restart_that_takes_too_long_is_a_failure(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    killed, late = "its process ended: signal SIGKILL", "it did not serve within 0.01 s of its restart"

    def report(workers: Sequence[WorkerReport], scaled: str) -> None:
        told.extend((worker.state, worker.error) for worker in workers)

    policy = RestartPolicy(max_restarts=1, first_pause_s=0.01)
    make_worker = functools.partial(factories.make_idle_once, str(tmp_path / "made"))
    supervisor = Supervisor(make_worker, lambda number: {}, policy, 0.01, report)
    try:
        supervisor.scale(1, 40.0, lambda n_serving: None)
        supervisor.kill(0)
        # The report follows the state, and its end is another state.
        eventually(lambda: ("given up", late) in told, "the restart has ended")
        states = [*dict.fromkeys(told)]
    finally:
        supervisor.close()
    assert states[:2] == [("starting", ""), ("serving", "")]
    assert states[-3:] == [("pausing", killed), ("starting", killed), ("given up", late)]


@pytest.mark.parametrize("make_worker", [factories.Idle, factories.Unstopped])
def test_a_worker_that_is_removed_ends_by_itself_whatever_its_stop_takes(
    make_worker: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "DRAIN_S", 3600.0)
    with Workers(make_worker, {}) as workers:
        workers.scale(2)
        workers.aim(1, "")
        eventually(lambda: workers.states() == {"worker 0": "serving"}, "it has ended")


def test_workers_that_end_with_their_calls_may_take_longer_than_a_start() -> None:
    supervisor = Supervisor(factories.Idle, lambda number: {}, RestartPolicy(), 40.0, lambda *told: None)
    try:
        supervisor.scale(2, 40.0, lambda n_serving: None)
        supervisor.scale(1, 0.0, lambda n_serving: None)
        assert supervisor.states() == {"worker 0": "serving"}
    finally:
        supervisor.close()


def test_after_ctrl_c_a_call_that_goes_on_is_given_one_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(functools.partial(factories.Busy, str(tmp_path / "told")), {})
    workers.scale(1)
    passed_s = 0.0
    monkeypatch.setattr(supervisors, "time", types.SimpleNamespace(monotonic=lambda: passed_s))

    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            workers.close()

    closing = threading.Thread(target=interrupted)
    closing.start()
    try:
        eventually((tmp_path / "told").exists, "the worker is told to end")
        passed_s = 1.0
        eventually(lambda: not closing.is_alive(), "the worker has ended")
    finally:
        passed_s = 60.0
        closing.join()
