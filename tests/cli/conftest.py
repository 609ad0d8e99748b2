"""Commands as a shell runs them, and markets of real processes to run them on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from market import Market
from shell import Command, Run

from softs_fast.cli import main


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
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process, which has imported what it needs; `Command` is for what a shell sees."""

    def run(*arguments: str, **environment: str) -> tuple[object, str, str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in {"COLUMNS": "80", **environment}.items():
                patch.setenv(name, value)
            try:
                status: object = main(arguments)
            except SystemExit as ended:
                status = ended.code
        return status, *capsys.readouterr()

    return run


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
