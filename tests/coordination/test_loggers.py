"""Coordinators and workers log to the loggers that they are given, and to those of their modules otherwise."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import ranks
import torch

# Not loaded here: it must be told first that processes fork.
if not importlib.util.find_spec("grpc"):
    pytest.skip("needs the extra grpc", allow_module_level=True)
from softs_fast.coordination.job.events import Evict
from softs_fast.coordination.job.options import JobOptions
from softs_fast.coordination.node import Membership, TrainingState, WorkerNode
from softs_fast.coordination.server.serving import Coordinator, CoordinatorOptions
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.errors import PeerLost


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logger_of(name: str) -> tuple[logging.Logger, list[str]]:
    """Return a logger, and what is logged to it."""
    handler = Kept()
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    return logger, handler.lines


def trains_alone(say: Callable[[Any], None], rank: int, size: int) -> dict[str, list[str]]:
    coordinator_logger, of_coordinator = logger_of("user.coordinator")
    worker_logger, of_worker = logger_of("user.worker")
    _, of_modules = logger_of("softs_fast")

    async def main() -> None:
        coordinator = Coordinator(JobOptions("job", 1, 1), CoordinatorOptions(logger=coordinator_logger))
        await coordinator.start()
        await asyncio.to_thread(train, coordinator.address)
        await coordinator.stop()

    def train(address: str) -> None:
        model = torch.nn.Linear(2, 1)
        state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with WorkerNode(address, state, seat=0, logger=worker_logger) as node, node.step():
            model(torch.ones(1, 2)).sum().backward()

    asyncio.run(main())
    return {"coordinator": of_coordinator, "worker": of_worker, "modules": of_modules}


def test_each_has_its_logger() -> None:
    [found] = ranks.run(trains_alone, 1)
    assert any('coordinator of job "job" listens at 127.0.0.1:' in line for line in found["coordinator"])
    assert len(found["coordinator"]) >= 3, "the machine of the job logs, too"
    assert found["modules"] == []


def finds_no_coordinator(say: Callable[[Any], None], rank: int, size: int) -> list[str]:
    logger, lines = logger_of("user.worker")
    model = torch.nn.Linear(2, 1)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(PeerLost):
        WorkerNode("127.0.0.1:1", state, seat=0, join_s=0.5, logger=logger).__enter__()
    return lines


def test_a_worker_logs_that_there_is_no_coordinator() -> None:
    [lines] = ranks.run(finds_no_coordinator, 1)
    assert "no connection to the coordinator: no coordinator answers at 127.0.0.1:1" in lines[0]


def is_evicted(say: Callable[[Any], None], rank: int, size: int) -> dict[str, list[str]]:
    member_logger, of_member = logger_of("user.member")
    _, of_modules = logger_of("softs_fast.coordination.node")

    async def main() -> None:
        coordinator = Coordinator(JobOptions("job", 1, 1), CoordinatorOptions())
        await coordinator.start()
        await asyncio.to_thread(be_evicted, coordinator.address)
        await coordinator.stop()

    def be_evicted(address: str) -> None:
        over = threading.Event()

        def end(reason: str) -> None:
            over.set()

        with Membership(address, seat=0, on_end=end, logger=member_logger) as member:
            member.next_epoch(30.0)
            with CoordinatorClient(address) as client:
                client.administer(Evict(0, "to see what is logged"))
            assert over.wait(30.0)

    asyncio.run(main())
    return {"member": of_member, "modules": of_modules}


def test_a_membership_has_its_logger() -> None:
    [found] = ranks.run(is_evicted, 1)
    assert any("epoch 1 is over: " in line for line in found["member"])
    assert found["modules"] == []
