"""Random calls on overlapping groups give what they should, however the ranks delay one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import random_programs as programs
import ranks
import torch.distributed as dist
from backend_ranks import joined, pretend_hosts


def checked(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    folder: str,
    seeds: list[int],
    n_bursts: int,
    hosts: list[int],
) -> None:
    if len(hosts) > 1:
        pretend_hosts(hosts)
    with joined(rank, size, folder, "softs+plain"):
        groups = [dist.group.WORLD, *map(dist.new_group, programs.GROUPS[1:])]
        for seed in seeds:
            # Results are those of a reference to the bit, so both runs have the same bits.
            wrong = [text for pace in (0, 1) for text in programs.run(seed, n_bursts, rank, groups, pace)]
            say(wrong)


def check(folder: Path, seeds: list[int], n_bursts: int, hosts: list[int]) -> None:
    with ranks.start(checked, programs.SIZE, str(folder), seeds, n_bursts, hosts) as running:
        for seed in seeds:
            for rank in range(programs.SIZE):
                told = running.receive(rank)
                assert not isinstance(told, ranks.Raised), f"seed {seed}: {told.trace}"
                assert told == []


@pytest.mark.parametrize("hosts", [[4], [2, 2], [1, 3]], ids=str)
def test_a_few_random_programs(tmp_path: Path, hosts: list[int]) -> None:
    check(tmp_path, [1], 30, hosts)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [100, 104, 108])
def test_many_random_programs(tmp_path: Path, first: int) -> None:
    check(tmp_path, list(range(first, first + 4)), 100, [programs.SIZE] if first == 100 else [3, 1])
