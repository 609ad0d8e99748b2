"""Workers that end with the test, and one in the process of the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from coordinator_process import Coordinator
from lone_worker import Worker
from trainers import Start, Trainer

from softs_fast.coordination.job.messages import WorkerState


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """The engine of all workers; see `by_engine`."""
    return str(getattr(request, "param", "memory"))


@pytest.fixture
def start(engine: str) -> Iterator[Start]:
    """Starts processes that train, and end with the test."""
    started = []

    def trainer(coordinator: Coordinator, number: int, **options: Any) -> Trainer:
        started.append(Trainer(coordinator.address, number, **{"engine": engine, **options}))
        return started[-1]

    yield trainer
    for one in started:
        one.kill()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker that has made one step in epoch 1."""
    found = Worker(monkeypatch)
    found.open(1, 0, (0, 1), 0)
    assert found.step()
    assert found.said == WorkerState(7, 1, 1)
    return found
