"""torchrun with the coordinator as its rendezvous: real agents, real workers."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import ranks
from coordinator_process import Cluster

SCRIPT = str(Path(__file__).with_name("agent_script.py"))


def torchrun(
    say: Callable[[Any], None], rank: int, size: int, output: Connection, arguments: list[str]
) -> None:
    """Run torchrun, of which the workers write to a pipe."""
    from torch.distributed.run import main

    os.dup2(output.fileno(), 1)
    output.close()
    main(arguments)


class Agent:
    """A torchrun with the coordinator as its rendezvous; its workers report events."""

    def __init__(self, address: str, seat: int, folder: Path) -> None:
        rendezvous = ["--rdzv-backend=softs", f"--rdzv-endpoint={address}", "--rdzv-id=job"]
        rendezvous.append(f"--rdzv-conf=seat={seat},worker_id=node-{seat}")
        size = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=0"]
        self._events, output = multiprocessing.Pipe(duplex=False)
        self._lines = io.TextIOWrapper(io.FileIO(self._events.fileno(), closefd=False))
        self._running = ranks.start(torchrun, 1, output, [*rendezvous, *size, SCRIPT, str(folder)])
        output.close()

    def event(self) -> dict[str, Any]:
        """Return what the next worker reports."""
        found: dict[str, Any] = json.loads(self._lines.readline())
        return found

    def end(self) -> Any:
        """Return what torchrun returns."""
        return self._running.receive(0)

    def kill(self) -> None:
        """Kill the agent and its workers at once, as if the machine were gone; or end all that is left."""
        [agent] = self._running.processes
        if not self._events.closed:
            if agent.is_alive():
                for pid in [agent.pid, *_children(agent.pid)]:
                    # A worker may end with its agent before its turn.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self._running.stop()
            self._lines.close()
            self._events.close()


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
    first = [agent.event() for agent in agents]
    assert [(one["rank"], one["size"], one["total"]) for one in first] == [(0, 2, 2), (1, 2, 2)]
    agents[0].kill()
    agents[0] = start(0)
    second = [agent.event() for agent in agents]
    assert [(one["rank"], one["size"], one["total"]) for one in second] == [(0, 2, 2), (1, 2, 2)]
    assert second[1]["pid"] != first[1]["pid"], "the worker that lives was started anew"
    assert second[1]["restarts"] == 0, "it has not failed"
    (tmp_path / "end").touch()
    assert [agent.end() for agent in agents] == [None, None]
