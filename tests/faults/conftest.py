"""Markets of real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from market import Market, zygote
from process import HERE, Zygote


@pytest.fixture(scope="session", autouse=True)
def zygotes() -> None:
    """The processes that fork peers live as long as the test run."""
    zygote()
    Zygote.of(HERE / "mortal.py")


@pytest.fixture
def market(short_path: Path) -> Iterator[Market]:
    """A market whose processes end with the test."""
    market = Market(short_path)
    yield market
    market.end()
