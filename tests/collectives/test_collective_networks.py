"""Ranks on two hosts, in network namespaces with a line between: what is encrypted, lossy and cut."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import networks
import pytest
from emulator import Shape
from networks import Line, Network
from token_files import token_file

#: One that is longer than a host may be silent, and one that is shorter.
SHORT_CUT_S = 0.4


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := networks.why_not(lines=True):
        pytest.skip(reason)
    pytest.importorskip("cryptography", reason="makes certificates")
    with Network() as net:
        net.host(switched=False)
        net.host(switched=False)
        yield net


class Ranks:
    """Ranks that reduce, one on each host.

    Args:
        network: Network of the hosts.
        folder: Folder for the token file.
        shape: Shape of the line.
        words: Words for `hosts_ranks.py`.
    """

    def __init__(self, network: Network, folder: Path, shape: Shape, *words: str) -> None:
        self.line: Line = network.line(*network.hosts, shape)
        self._stack = ExitStack()
        self._stack.callback(self.line.end)
        token = token_file(folder / "token", "a")
        command = [sys.executable, str(Path(__file__).with_name("hosts_ranks.py"))]
        self._running = [
            self._stack.enter_context(
                subprocess.Popen(
                    [
                        *host.prefix(),
                        *command,
                        str(rank),
                        "2",
                        self.line.address(network.hosts[0]),
                        "softs",
                        *words,
                    ],
                    env=os.environ | {"SOFTS_FAST_TOKEN_FILE": str(token)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank, host in enumerate(network.hosts)
        ]
        for one in self._running:
            self._stack.callback(one.kill)

    def __enter__(self) -> Ranks:
        assert [self.say(rank) for rank in range(2)] == ["joined", "joined"]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def say(self, rank: int) -> str:
        """Return the next line of a rank."""
        pipe = self._running[rank].stdout
        assert pipe is not None
        return pipe.readline().strip()

    def calls(self, n: int) -> None:
        """Return when each rank has made so many calls more."""
        for rank in range(2):
            said = [self.say(rank) for _ in range(n)]
            assert said[-1].isdigit(), said

    def error(self, rank: int) -> str:
        """Return the error of a rank."""
        while (said := self.say(rank)).isdigit():
            pass
        return said


@pytest.mark.parametrize(
    "shape", [Shape(bits_per_s=200e6), Shape(delay_s=0.01, loss=0.01)], ids=["rate", "loss"]
)
def test_sums_are_right_over_a_line(network: Network, tmp_path: Path, shape: Shape) -> None:
    with Ranks(network, tmp_path, shape) as ranks:
        ranks.calls(10)


def test_a_host_that_is_cut_off_is_lost_on_both_sides(network: Network, tmp_path: Path) -> None:
    with Ranks(network, tmp_path, Shape(bits_per_s=200e6)) as ranks:
        ranks.calls(3)
        ranks.line.cut()
        for rank in range(2):
            assert f"rank {1 - rank}: its host has not answered for 1." in ranks.error(rank)


def test_a_short_cut_costs_time_alone(network: Network, tmp_path: Path) -> None:
    with Ranks(network, tmp_path, Shape(bits_per_s=200e6)) as ranks:
        for _ in range(3):
            ranks.calls(2)
            ranks.line.cut()
            time.sleep(SHORT_CUT_S)
            ranks.line.heal()
        ranks.calls(3)


def test_what_a_rank_sent_before_it_left_arrives(network: Network, tmp_path: Path) -> None:
    # What is in its kernel when it leaves takes longer than the other rank waits before it pings.
    with Ranks(network, tmp_path, Shape(bits_per_s=20e6), "leave") as ranks:
        assert [ranks.say(rank) for rank in range(2)] == ["900000", "900000"]


def test_a_host_that_takes_nothing_is_lost_when_it_is_cut_off(network: Network, tmp_path: Path) -> None:
    with Ranks(network, tmp_path, Shape(bits_per_s=200e6), "send") as ranks:
        # Until all buffers are full.
        time.sleep(1.0)
        ranks.line.cut()
        assert "rank 1: its host has not answered for " in ranks.say(0)
