"""A coordinator and workers that end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from coordinator_process import Cluster
from own_coordinators import OwnCoordinators


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Processes that are killed after the test."""
    cluster = Cluster()
    yield cluster
    cluster.end()


@pytest.fixture
def own() -> Iterator[OwnCoordinators]:
    """Coordinators in this process."""
    own = OwnCoordinators()
    yield own
    own.end()
