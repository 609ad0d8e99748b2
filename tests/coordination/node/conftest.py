"""Workers that end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from coordinator_process import Coordinator
from trainers import Start, Trainer


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
