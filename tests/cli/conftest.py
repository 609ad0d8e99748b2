"""Commands as a shell runs them, and markets of real processes to run them on."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from market import Market
from process import Zygote
from segments import remove_abandoned, segments
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


@pytest.fixture(scope="session", autouse=True)
def zygotes() -> None:
    """The process that forks softs' peers lives as long as the test run."""
    Zygote.of("softs", None)


@pytest.fixture
def market(short_path: Path) -> Iterator[Market]:
    """A market whose processes end with the test; softs' peers leave segments, so those are removed."""
    before = segments()
    market = Market(short_path)
    yield market
    market.end()
    remove_abandoned(before)


@pytest.fixture
def busy_market(market: Market) -> Market:
    """A broker, a supplier, and a client that has taken all its samples."""
    market.broker()
    market.supplier()
    market.client().event("done")
    return market


@pytest.fixture
def write_counters() -> Callable[..., None]:
    """Write the words of a client's or supplier's counters into a segment, where docs/segment.md says they are.

    ``write(address, slots_len, client=[...], suppliers={index: (pid, [...])})``.
    """

    def write(
        address: str,
        slots_len: int,
        client: list[int],
        suppliers: dict[int, tuple[int, list[int]]] | None = None,
    ) -> None:
        lanes_at = -(-slots_len // 4096) * 4096
        with open(Path("/dev/shm", address), "r+b") as file:
            file.seek(lanes_at + 512)
            file.write(struct.pack(f"<{len(client)}Q", *client))
            for index, (pid, counters) in (suppliers or {}).items():
                entry = lanes_at + 9216 + 128 * index
                file.seek(entry)
                file.write(struct.pack("<QQII", pid << 32 | 1, 1, 0, 1))
                file.seek(entry + 64)
                file.write(struct.pack(f"<{len(counters)}Q", *counters))

    return write
