"""Ranks on two hosts, in network namespaces with a line between: what is encrypted, lossy and cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networks
import pytest
import ranks
from emulator import Shape
from hosts_ranks import (
    leave_after_a_broadcast,
    on_hosts,
    reduce_until_lost,
    send_to_a_rank_that_takes_nothing,
)
from networks import Line, Network
from token_files import token_file

#: Shorter than a host may be silent.
SHORT_CUT_S = 0.4
RATE = Shape(bits_per_s=200e6)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := networks.why_not(lines=True):
        pytest.skip(reason)
    pytest.importorskip("cryptography", reason="makes certificates")
    with Network() as net:
        net.host(switched=False)
        net.host(switched=False)
        yield net


class Running:
    """Ranks that do something, one on each host; a context manager."""

    def __init__(self, network: Network, folder: Path, shape: Shape, act: Callable[..., None]) -> None:
        self.line: Line = network.line(*network.hosts, shape)
        pids = [host.pid for host in network.hosts]
        address, token = self.line.address(network.hosts[0]), token_file(folder / "token", "a")
        self._ranks = ranks.start(on_hosts, 2, pids, address, str(token), act)

    def __enter__(self) -> Running:
        assert self._ranks.results() == ["joined", "joined"]
        return self

    def __exit__(self, *error: object) -> None:
        self._ranks.stop()
        self.line.end()

    def calls(self, n: int) -> None:
        """Return when each rank has made so many calls more."""
        for rank in range(2):
            said = [self._ranks.receive(rank) for _ in range(n)]
            assert isinstance(said[-1], int), said

    def results(self) -> list[Any]:
        """Return what each rank reports next."""
        return self._ranks.results()

    def error(self, rank: int) -> str:
        """Return the error of a rank."""
        while isinstance(said := self._ranks.receive(rank), int):
            pass
        return str(said)


def test_sums_are_right_over_a_line_with_losses(network: Network, tmp_path: Path) -> None:
    with Running(network, tmp_path, Shape(delay_s=0.01, loss=0.01), reduce_until_lost) as running:
        running.calls(10)


def test_a_host_that_is_cut_off_is_lost_on_both_sides(network: Network, tmp_path: Path) -> None:
    with Running(network, tmp_path, RATE, reduce_until_lost) as running:
        running.calls(3)
        running.line.cut()
        for rank in range(2):
            assert f"rank {1 - rank}: its host has not answered for 1." in running.error(rank)


def test_a_short_cut_costs_time_alone(network: Network, tmp_path: Path) -> None:
    with Running(network, tmp_path, RATE, reduce_until_lost) as running:
        for _ in range(3):
            running.calls(2)
            running.line.cut()
            time.sleep(SHORT_CUT_S)
            running.line.heal()
        running.calls(3)


def test_what_a_rank_sent_before_it_left_arrives(network: Network, tmp_path: Path) -> None:
    # What is in its kernel when it leaves takes longer than the other rank waits before it pings.
    with Running(network, tmp_path, Shape(bits_per_s=20e6), leave_after_a_broadcast) as running:
        assert running.results() == [900_000, 900_000]


def test_a_host_that_takes_nothing_is_lost_when_it_is_cut_off(network: Network, tmp_path: Path) -> None:
    with Running(network, tmp_path, RATE, send_to_a_rank_that_takes_nothing) as running:
        # Until all buffers are full.
        time.sleep(1.0)
        running.line.cut()
        assert "rank 1: its host has not answered for " in running.error(0)
