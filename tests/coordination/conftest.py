"""A coordinator and workers that end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from coordinator_process import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Processes that are killed after the test."""
    cluster = Cluster()
    yield cluster
    cluster.end()
