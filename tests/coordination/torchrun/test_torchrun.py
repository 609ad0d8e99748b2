"""torchrun with the coordinator as its rendezvous: real agents, real workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from coordinator_process import Cluster
from waiting import Lines

SCRIPT = str(Path(__file__).with_name("agent_script.py"))


class Agent(Lines):
    """A torchrun with the coordinator as its rendezvous; its workers report events."""

    def __init__(self, address: str, seat: int, folder: Path) -> None:
        rendezvous = ["--rdzv-backend=softs", f"--rdzv-endpoint={address}", "--rdzv-id=job"]
        rendezvous.append(f"--rdzv-conf=seat={seat},worker_id=node-{seat}")
        size = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=0"]
        super().__init__(["-m", "torch.distributed.run", *rendezvous, *size, SCRIPT, str(folder)])

    def kill(self) -> None:
        """Kill the agent and its workers at once, as if the machine were gone; or end all that is left."""
        if self.is_alive():
            parent = self.process.pid
            for pid in [parent, *_children(parent)]:
                os.kill(pid, signal.SIGKILL)
        super().kill()


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


@pytest.mark.timeout(120)
def test_a_node_that_is_lost_restarts_the_others_and_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = cluster.coordinator("--world-size", "2")

    def start(seat: int) -> Agent:
        agent = Agent(coordinator.address, seat, tmp_path)
        cluster.add(agent)
        return agent

    agents = [start(seat) for seat in range(2)]
    first = [agent.event("reduced") for agent in agents]
    assert [(one["rank"], one["size"], one["total"]) for one in first] == [(0, 2, 2), (1, 2, 2)]
    agents[0].kill()
    agents[0] = start(0)
    second = [agent.event("reduced") for agent in agents]
    assert [(one["rank"], one["size"], one["total"]) for one in second] == [(0, 2, 2), (1, 2, 2)]
    assert second[1]["pid"] != first[1]["pid"], "the worker that lives was started anew"
    assert second[1]["restarts"] == 0, "it has not failed"
    (tmp_path / "end").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
