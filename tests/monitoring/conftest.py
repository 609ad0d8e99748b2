"""Markets of real processes, to be observed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from market import Market


@pytest.fixture
def market(short_path: Path) -> Iterator[Market]:
    """A market; its processes end with the test."""
    market = Market(short_path)
    yield market
    market.end()
