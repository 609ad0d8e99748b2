"""Commands as a shell runs them, and markets of real processes to run them on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from market import Market
from shell import Command


@pytest.fixture
def command() -> Iterator[Command]:
    """The command; what of it still runs is killed after the test."""
    command = Command()
    yield command
    for process in command.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def market(short_path: Path) -> Iterator[Market]:
    """A market; its processes end with the test."""
    market = Market(short_path)
    yield market
    market.end()


@pytest.fixture
def busy_market(market: Market) -> Market:
    """A broker, a supplier, and a client that has taken all its samples."""
    market.broker()
    market.supplier()
    market.client().event("done")
    return market
