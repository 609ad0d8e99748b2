"""Workers of other hosts without training state that are killed: another process with their number takes their place."""

from __future__ import annotations

import os
import re
import signal
import threading
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from host_workers import HostWorkers
from restart_flow import ROWS, losses, make_restarting, trained
from waiting import WATCHDOG_S, eventually

from softs_fast.dataflow.master.master import DRIVER
from softs_fast.errors import FlowError


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[int, int, float]]:
    with make_restarting() as flow:
        return losses(flow, 4)


def started(folder: Path, names: tuple[str, str, str] = ("", "far", "far"), **arguments: Any) -> HostWorkers:
    """Start three workers, of which the generator is started again whenever it ends."""
    arguments["marks"] = str(folder / "marks")
    workers = HostWorkers(folder, "restart_flow:make_restarting", arguments)
    for worker, name in enumerate(names):
        workers.start(worker, name, again=worker == 1)
    return workers


@pytest.mark.parametrize(("place", "n_restarts"), [("main", 1), ("hook", 1), ("main setup setup", 1)])
def test_a_generator_that_dies_is_followed_by_another_process(
    tmp_path: Path, undisturbed: list[tuple[int, int, float]], place: str, n_restarts: int
) -> None:
    with started(tmp_path, place=place) as workers, workers.flow() as flow:
        assert losses(flow, 4) == undisturbed
        assert flow.ask("stats")["restarts"] == n_restarts
    assert (tmp_path / "marks").read_text().split() == place.split()
    assert trained(tmp_path / "marks") == [list(range(step * ROWS, (step + 1) * ROWS)) for step in range(4)]


def test_the_other_process_may_be_on_another_host(
    tmp_path: Path, undisturbed: list[tuple[int, int, float]]
) -> None:
    with HostWorkers(tmp_path, "restart_flow:make_restarting") as workers:
        for worker, name in enumerate(("", "far", "far")):
            workers.start(worker, name)
        with workers.flow() as flow:
            found = losses(flow, 1)
            for name in ("third", ""):
                os.kill(flow.ask("inside")[1]["pid"], signal.SIGKILL)
                workers.start(1, name)
                found += losses(flow, 1)
                nodes = flow._runner.held._nodes
                assert nodes[1] != nodes[2]
                assert (nodes[1] == nodes[DRIVER]) == (name == "")
            assert (1 in flow._backend._here) == (name == "")  # type: ignore[attr-defined]
            found += losses(flow, 1)
    assert found == undisturbed


def test_a_worker_of_which_no_process_comes_ends_the_flow_by_name(tmp_path: Path) -> None:
    with HostWorkers(tmp_path, "restart_flow:make_restarting") as workers:
        for worker in range(3):
            workers.start(worker, "far")
        with workers.flow(rejoin_timeout_s=1.0) as flow:
            losses(flow, 1)
            pid = flow.ask("inside")[1]["pid"]
            os.kill(pid, signal.SIGKILL)
            match = rf"worker 1 is lost: process {pid}: its connection ended.*; no other process has begun with its number "
            with pytest.raises(
                FlowError, match=match + r"within 1 s \(rejoin_timeout_s\); no call was open there"
            ):
                losses(flow, 3)


def test_a_process_with_another_flow_does_not_take_the_place(
    tmp_path: Path, undisturbed: list[tuple[int, int, float]], caplog: pytest.LogCaptureFixture
) -> None:
    with HostWorkers(tmp_path, "restart_flow:make_restarting") as workers:
        for worker in range(3):
            workers.start(worker, "far")
        with workers.flow() as flow:
            found = losses(flow, 1)
            os.kill(flow.ask("inside")[1]["pid"], signal.SIGKILL)
            # Both have the same log; the second one comes when the first has been refused.
            workers.start(1, "far", layout="dp2")
            second = threading.Thread(target=lambda: (workers.log(1), workers.start(1, "far")))
            second.start()
            found += losses(flow, 3)
            second.join()
    assert found == undisturbed
    assert (
        "worker 1 cannot begin: ConfigError: worker 1 has built another flow than its master" in caplog.text
    )


def test_before_a_flow_has_begun_a_second_process_of_a_worker_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with HostWorkers(tmp_path, "host_flow:make_flow", {"n_workers": 2}) as workers:
        both = [workers.start(0, "far") for _ in range(2)]

        def start_the_other() -> None:
            assert wait([one.sentinel for one in both], WATCHDOG_S)
            workers.start(1, "far")

        starting = threading.Thread(target=start_the_other)
        starting.start()
        with workers.flow() as flow:
            list(flow.steps(1))
            starting.join()
            assert sorted(str(one.exitcode) for one in both) == ["1", "None"]
    assert re.search(
        r"process \d+ of host far is not taken: worker 0 is joined already: process \d+ of host far; each worker",
        caplog.text,
    )


def test_in_a_flow_a_second_process_of_a_worker_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with HostWorkers(tmp_path, "restart_flow:make_restarting") as workers:
        for worker in range(3):
            workers.start(worker, "far")
        with workers.flow() as flow:
            list(flow.steps(1))
            pid = flow.ask("inside")[1]["pid"]
            waiting = workers.start(1, "far")
            words = f"process {waiting.pid} of host far waits"
            eventually(lambda: list(flow.steps(1)) and words in caplog.text, words)
            assert flow.ask("inside")[1]["pid"] == pid
            os.kill(pid, signal.SIGKILL)
            list(flow.steps(3))
            assert flow.ask("inside")[1]["pid"] == waiting.pid
