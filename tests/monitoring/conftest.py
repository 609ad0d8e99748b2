"""Markets of real processes, to be observed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from market import Market, zygote


@pytest.fixture(scope="session", autouse=True)
def zygotes() -> None:
    """The process that forks peers lives as long as the test run."""
    zygote()


@pytest.fixture
def market(short_path: Path) -> Iterator[Market]:
    """A market whose processes end with the test."""
    market = Market(short_path)
    yield market
    market.end()
