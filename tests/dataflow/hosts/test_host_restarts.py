"""Workers of other hosts without training state that are killed: another process with their number takes their place."""

from __future__ import annotations

import os
import re
import signal
import threading
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from flows import losses
from host_workers import HostWorkers, on_hosts
from restart_flow import in_order, make_restarting, trained
from waiting import WATCHDOG_S, eventually

from softs_fast.dataflow.master.master import DRIVER
from softs_fast.errors import FlowError

FLOW = "restart_flow:make_restarting"


@pytest.mark.parametrize(("place", "n_restarts"), [("main", 1), ("hook", 1), ("main setup setup", 1)])
def test_a_generator_that_dies_is_followed_by_another_process(
    tmp_path: Path, place: str, n_restarts: int
) -> None:
    with make_restarting() as flow:
        undisturbed = losses(flow, 4)
    marks = tmp_path / "marks"
    arguments = {"place": place, "marks": str(marks)}
    with on_hosts(tmp_path, FLOW, ("", "far", "far"), arguments, again=[1]) as (flow, _):
        assert losses(flow, 4) == undisturbed
        assert flow.ask("stats")["restarts"] == n_restarts
    assert marks.read_text().split() == place.split()
    assert trained(marks) == in_order(4)


def test_others_take_the_place_of_a_process_that_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A second process waits, one of another host comes, and one with another flow is refused."""
    with on_hosts(tmp_path, FLOW, ("", "far", "far")) as (flow, workers):

        def pid_of_1() -> int:
            return int(flow.ask("inside")[1]["pid"])

        found = losses(flow, 1)
        first, second = pid_of_1(), workers.start(1, "far")
        words = f"process {second.pid} of host far waits"
        eventually(lambda: found.extend(losses(flow, 1)) or words in caplog.text, words)
        assert pid_of_1() == first
        os.kill(first, signal.SIGKILL)
        found += losses(flow, 2)
        assert pid_of_1() == second.pid
        for name in ("third", ""):
            os.kill(pid_of_1(), signal.SIGKILL)
            workers.start(1, name)
            found += losses(flow, 1)
            nodes = flow._session.runner.held._nodes
            assert nodes[1] != nodes[2]
            assert (nodes[1] == nodes[DRIVER]) == (name == "")
            assert (1 in flow._backend._here) == (name == "")  # type: ignore[attr-defined]
        os.kill(pid_of_1(), signal.SIGKILL)
        # Both have the same log; the second one comes when the first has been refused.
        workers.start(1, "far", layout="dp2")
        starting = threading.Thread(target=lambda: (workers.log(1), workers.start(1, "far")))
        starting.start()
        found += losses(flow, 2)
        starting.join()
    assert (
        "worker 1 cannot begin: ConfigError: worker 1 has built another flow than its master" in caplog.text
    )
    with make_restarting() as alone:
        assert found == losses(alone, len(found))


def test_a_worker_of_which_no_process_comes_ends_the_flow_by_name(tmp_path: Path) -> None:
    with on_hosts(tmp_path, FLOW, ["far"] * 3, rejoin_timeout_s=1.0) as (flow, _):
        losses(flow, 1)
        pid = flow.ask("inside")[1]["pid"]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            FlowError,
            match=rf"worker 1 is lost: process {pid}: its connection ended.*; no other process has begun with its number "
            r"within 1 s \(rejoin_timeout_s\); no call was open there",
        ):
            losses(flow, 3)


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
