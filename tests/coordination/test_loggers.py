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


def logger_of(name: str) -> tuple[logging.Logger, list[str]]:
    """Return a logger, and what is logged to it."""
    lines: list[str] = []
    logger, handler = logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    return logger, lines


def small_state() -> TrainingState:
    model = torch.nn.Linear(2, 1)
    return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))


def takes_part(say: Callable[[Any], None], rank: int, size: int) -> dict[str, list[str]]:
    names = ("coordinator", "worker", "member")
    loggers, lines = zip(*(logger_of(f"user.{name}") for name in names), strict=True)
    _, of_modules = logger_of("softs_fast")
    over = threading.Event()

    async def main() -> None:
        coordinator = Coordinator(JobOptions("job", 1, 1), CoordinatorOptions(logger=loggers[0]))
        await coordinator.start()
        await asyncio.to_thread(work, coordinator.address)
        await coordinator.stop()

    def work(address: str) -> None:
        state = small_state()
        with WorkerNode(address, state, seat=0, logger=loggers[1]) as node:
            with node.step():
                state.model(torch.ones(1, 2)).sum().backward()
            # The job would end with its last worker.
            node._close(leaves=False)
        with Membership(address, seat=0, on_end=lambda reason: over.set(), logger=loggers[2]) as member:
            member.next_epoch(30.0)
            with CoordinatorClient(address) as client:
                client.administer(Evict(0, "to see what is logged"))
            assert over.wait(30.0)

    asyncio.run(main())
    return {**dict(zip(names, lines, strict=True)), "modules": of_modules}


def test_each_has_its_logger() -> None:
    [found] = ranks.run(takes_part, 1)
    assert any('coordinator of job "job" listens at 127.0.0.1:' in line for line in found["coordinator"])
    assert any("epoch 1 is open" in line for line in found["coordinator"]), "the machine of the job logs, too"
    assert any("epoch 2 ends: " in line for line in found["member"])
    assert found["modules"] == []


def finds_no_coordinator(say: Callable[[Any], None], rank: int, size: int) -> list[str]:
    logger, lines = logger_of("user.worker")
    with pytest.raises(PeerLost):
        WorkerNode("127.0.0.1:1", small_state(), seat=0, join_s=2.0, logger=logger).__enter__()
    return lines


def test_a_worker_logs_that_there_is_no_coordinator() -> None:
    [lines] = ranks.run(finds_no_coordinator, 1)
    assert "no connection to the coordinator: no coordinator answers at 127.0.0.1:1" in lines[0]
