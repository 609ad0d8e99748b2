"""torchrun with the coordinator as its rendezvous: real agents, real workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agents import Agent
from coordinator_process import Cluster, Coordinator

Start = Callable[..., Agent]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts agents, which end with the test."""
    started: list[Agent] = []

    def agent(coordinator: Coordinator, seat: int, *options: str, nnodes: str = "2") -> Agent:
        started.append(Agent(coordinator.address, seat, tmp_path, *options, nnodes=nnodes))
        return started[-1]

    yield agent
    for one in started:
        one.kill()


@pytest.mark.timeout(120)
def test_a_node_that_is_lost_restarts_the_others_and_is_replaced(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    agents = [start(coordinator, seat, "--max-restarts=0") for seat in range(2)]
    first = [agent.event("reduced") for agent in agents]
    assert [(one["rank"], one["size"], one["total"]) for one in first] == [(0, 2, 2), (1, 2, 2)]
    agents[0].lose()
    agents[0] = start(coordinator, 0, "--max-restarts=0")
    second = [agent.event("reduced") for agent in agents]
    assert [(one["rank"], one["size"], one["total"]) for one in second] == [(0, 2, 2), (1, 2, 2)]
    assert second[1]["pid"] != first[1]["pid"], "the worker that lives was started anew"
    assert second[1]["restarts"] == 0, "it has not failed"
    (tmp_path / "end").touch()
    assert [agent.wait() for agent in agents] == [0, 0]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_workers_that_fail_restart_those_of_all_nodes(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    agents = [start(coordinator, seat, "--max-restarts=1") for seat in range(2)]
    for agent in agents:
        agent.event("reduced")
    (tmp_path / "fail-1").touch()
    agents[1].event("fails")
    second = [agent.event("reduced") for agent in agents]
    assert [(one["total"], one["restarts"]) for one in second] == [(2, 0), (2, 1)]
    (tmp_path / "end").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
