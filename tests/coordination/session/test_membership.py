"""Workers and a coordinator as processes: killed, stopped, busy, forked, restarted."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
from coordinator_process import Cluster, Coordinator, Worker


def pair(cluster: Cluster, *options: str) -> tuple[Coordinator, list[Worker]]:
    """A job of two with an open epoch."""
    coordinator = cluster.coordinator("--world-size", "2", *options)
    workers = [cluster.worker(coordinator, f"w{i}", seat=i) for i in range(2)]
    for worker in workers:
        table = worker.event("Table")
        assert table["epoch"] == 1
        assert len(table["members"]) == 2
    return coordinator, workers


def test_a_killed_worker_is_fenced_and_its_successor_has_its_seat(cluster: Cluster) -> None:
    coordinator, (first, second) = pair(cluster)
    second.kill()
    fence = first.event("Fence")
    assert (fence["cause"], fence["culprit_seat"]) == ("gone", 1)
    assert '"w1"' in fence["text"]
    third = cluster.worker(coordinator, "w1", incarnation=2)
    assert third.event("Welcome")["seat"] == 1
    assert third.event("Table")["epoch"] == first.event("Table")["epoch"] == 2


def test_a_stopped_worker_is_fenced_by_pings(cluster: Cluster) -> None:
    _, (first, second) = pair(cluster, "--lost-after", "2")
    second.signal(signal.SIGSTOP)
    assert first.event("Fence")["culprit_seat"] == 1
    second.signal(signal.SIGCONT)
    # Its connection has ended meanwhile; it is told that its epoch is over, and is a member again.
    assert second.event("Fence")["epoch"] == 1
    assert second.event("Table")["epoch"] == 2


def test_a_worker_that_holds_the_gil_stays_a_member(cluster: Cluster) -> None:
    _, (first, second) = pair(cluster, "--lost-after", "4")
    second.ask("hold the GIL", 6.0)
    # Had it been given up, the fence would be first.
    first.order("fault", "boom")
    fence = first.event("Fence")
    assert fence["cause"] == "fault"
    assert "boom" in fence["text"]


@pytest.mark.parametrize(("how", "n"), [("_exit", 20), ("exit", 2)])
def test_forks_of_a_worker_do_no_harm(cluster: Cluster, how: str, n: int) -> None:
    _, (first, second) = pair(cluster)
    assert second.ask("fork", n, how) == [0] * n
    first.order("fault", "after the forks")
    assert first.event("Fence")["cause"] == "fault"
    assert second.event("Table")["epoch"] == 2, "it still has its connection"


def test_a_coordinator_that_restarts_with_its_state_keeps_the_epoch(cluster: Cluster, tmp_path: Path) -> None:
    options = ("--state", str(tmp_path / "state"))
    coordinator, workers = pair(cluster, *options)
    coordinator.kill()
    for worker in workers:
        assert worker.event("lost")["text"]
    cluster.coordinator("--world-size", "2", *options, listen=coordinator.address)
    for worker in workers:
        assert worker.event("Table")["epoch"] == 1
    workers[0].order("fault", "now")
    assert {worker.event("Fence")["cause"] for worker in workers} == {"fault"}
    assert {worker.event("Table")["epoch"] for worker in workers} == {2}


def test_a_coordinator_that_restarts_without_state_begins_anew(cluster: Cluster) -> None:
    coordinator, workers = pair(cluster)
    coordinator.kill()
    cluster.coordinator("--world-size", "2", listen=coordinator.address)
    for worker in workers:
        assert worker.event("Fence")["cause"] == "coordinator"
        assert worker.event("Table")["epoch"] == 1


def test_workers_may_be_first(cluster: Cluster) -> None:
    coordinator = cluster.coordinator("--world-size", "1")
    address = coordinator.address
    coordinator.kill()
    worker = cluster.worker(address, "w0")
    assert "no coordinator answers" in worker.event("lost")["text"]
    cluster.coordinator("--world-size", "1", listen=address)
    assert worker.event("Table")["epoch"] == 1


def test_a_worker_that_does_not_fit_is_refused_for_good(cluster: Cluster) -> None:
    coordinator, _ = pair(cluster, "--lost-after", "2")
    refused = cluster.worker(coordinator, "w0", incarnation=2)
    assert refused.event("Refused")["code"] == "taken"
    assert "refuses the worker" in refused.event("over")["text"]


def test_a_session_that_is_closed_sends_what_was_said(cluster: Cluster) -> None:
    _, (first, second) = pair(cluster)
    second.order("leave", "done here")
    second.order("close")
    fence = first.event("Fence")
    assert fence["cause"] == "left"
    assert "done here" in fence["text"]


def test_a_coordinator_that_ends_frees_its_address(cluster: Cluster) -> None:
    coordinator = cluster.coordinator("--world-size", "1")
    coordinator.signal(signal.SIGTERM)
    assert coordinator.process.wait() == 0
    cluster.coordinator("--world-size", "1", listen=coordinator.address)
