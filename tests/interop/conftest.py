"""Markets of mixed fleets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import Fleet


@pytest.fixture
def fleet(short_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A fleet; its processes end with the test."""
    fleet = Fleet(short_path, medium=getattr(request, "param", "shm"))
    yield fleet
    fleet.end()
