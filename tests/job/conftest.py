"""Jobs of real processes that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from coordinator_process import Cluster
from live_job import LiveJob

import softs_fast as sf


@pytest.fixture
def broker(frontend: str, backend: str) -> Iterator[None]:
    """A broker between `frontend` and `backend`."""
    with sf.Broker(sf.EndpointConfig(frontend=frontend, backend=backend)):
        yield


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Coordinators that end with the test."""
    found = Cluster()
    yield found
    found.end()


@pytest.fixture
def live_job(
    broker: None, frontend: str, backend: str, short_path: Path, cluster: Cluster
) -> Iterator[Callable[..., LiveJob]]:
    """Makes a job of so many steps: suppliers, and a coordinator with options."""
    with ExitStack() as running:

        def make(n_steps: int, *options: str, n_suppliers: int = 2) -> LiveJob:
            coordinator = cluster.coordinator("--job", "digits", *options)
            job = LiveJob(frontend, backend, short_path / "gate", coordinator, n_steps)
            running.callback(job.end)
            job.allow(n_steps)
            for _ in range(n_suppliers):
                job.start_supplier()
            return job

        yield make
