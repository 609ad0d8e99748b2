"""A coordinator and workers that end with the test."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from coordinator_process import Cluster
from own_coordinators import OwnCoordinators
from patience import pings


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Processes that are killed after the test; members and clients in this process are as patient as they are."""
    for module in ("session", "calls") if importlib.util.find_spec("grpc") else ():
        monkeypatch.setattr(f"softs_fast.coordination.session.{module}.Pings", pings)
    cluster = Cluster()
    yield cluster
    cluster.end()


@pytest.fixture
def own() -> Iterator[OwnCoordinators]:
    """Coordinators in this process."""
    own = OwnCoordinators()
    yield own
    own.end()
