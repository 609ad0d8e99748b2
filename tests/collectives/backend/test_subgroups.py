"""A part of the default group is made by its first call: before that it takes no memory, and waits for no rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import joined

from softs_fast import _kernels
from softs_fast.collectives.backend import membership, register
from softs_fast.collectives.backend.work import BackendLost
from softs_fast.errors import ConfigError, SegmentError


def n_segments() -> int:
    """Return how many segments this process has mapped."""
    return Path("/proc/self/maps").read_text().count("/dev/shm/")


def total(group: Any) -> float:
    """Return a sum over a group, of one from each rank."""
    one = torch.ones(3)
    dist.all_reduce(one, group=group)
    return float(one[0])


def made_when_used(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        before = n_segments()
        first, last, every = dist.new_group([0, 1]), dist.new_group([2, 1]), dist.new_group([0, 1, 2])
        assert n_segments() == before
        for group, members in ((first, (0, 1)), (last, (1, 2)), (every, (0, 1, 2))):
            if rank in members:
                assert total(group) == len(members)
                dist.barrier(group=group)
        assert n_segments() == before + (3 if rank == 1 else 2)
        # Memory for messages is taken by the first of them.
        if rank != 2:
            got = torch.zeros(2)
            send = dist.isend(torch.full((2,), float(rank)), 1 - rank, group=first)
            dist.recv(got, 1 - rank, group=first)
            send.wait()
            assert got.tolist() == [1.0 - rank] * 2
        assert n_segments() == before + (4 if rank == 1 else 3 if rank == 0 else 2)


def test_memory_is_taken_by_the_first_call(tmp_path: Path) -> None:
    assert ranks.run(made_when_used, 3, str(tmp_path)) == [None] * 3


def meets_later(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    register()
    store = dist.FileStore(f"{folder}/store", size)
    # The second default group is made through the store of the first; its part has the same name, and another maker.
    for first in (0, 1):
        dist.init_process_group("softs", store=store, rank=rank, world_size=size)
        if rank == first:
            group = dist.new_group([0, 1], use_local_synchronization=True)
            dist.send(torch.full((2,), float(first)), 1 - first, group=group)
            # Only now the other rank makes the group.
            dist.send(torch.zeros(1), 1 - first)
        if rank == 1 - first:
            dist.recv(torch.zeros(1), first)
            group = dist.new_group([0, 1], use_local_synchronization=True)
            got = torch.zeros(2)
            dist.recv(got, first, group=group)
            assert got.tolist() == [float(first)] * 2
        if rank != 2:
            assert total(group) == 2.0
        dist.destroy_process_group()


def test_a_rank_waits_for_no_other_to_make_a_group(tmp_path: Path) -> None:
    assert ranks.run(meets_later, 3, str(tmp_path)) == [None] * 3


def left(say: Callable[[Any], None], rank: int, size: int, folder: str, is_abort: bool) -> str:
    with joined(rank, size, folder):
        group: Any = dist.new_group([1, 2])
        if rank == 2 and is_abort:
            group.abort()
        if rank == 2 and not is_abort:
            dist.destroy_process_group(group)
        dist.barrier()
        told = ""
        if rank == 1:
            with pytest.raises(BackendLost) as raised:
                total(group)
            told = str(raised.value)
            if not is_abort:
                with pytest.raises(BackendLost, match="Rank 1 failed to pass monitoredBarrier: rank 1"):
                    dist.monitored_barrier(group)
        # Rank 2 lives until then.
        dist.barrier()
        return told


@pytest.mark.parametrize("is_abort", [False, True])
def test_a_rank_that_left_before_the_first_call_is_named(tmp_path: Path, is_abort: bool) -> None:
    assert "rank 1 (process" in ranks.run(left, 3, str(tmp_path), is_abort)[1]


def dead(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str | None:
    with joined(rank, size, folder):
        group = dist.new_group([0, 1])
        dist.barrier()
        if rank == 1:
            os._exit(1)
        with pytest.raises(BackendLost) as raised:
            total(group)
        return str(raised.value)


def test_a_rank_that_died_before_the_first_call_is_named(tmp_path: Path) -> None:
    told = ranks.run(dead, 2, str(tmp_path))
    assert "rank 1 (process" in told[0]
    assert "has ended" in told[0]


def full(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    def create_group(*sizes: int) -> None:
        raise SegmentError("cannot take 7 bytes of shared memory, 5 are free")

    with joined(rank, size, folder):
        group = dist.new_group([0, 1])
        if rank == 1:
            there = {name: getattr(_kernels, name) for name in dir(_kernels)}
            segment = SimpleNamespace(create_group=create_group)
            membership._kernels = SimpleNamespace(**there | {"Segment": segment})  # type: ignore[assignment]
        told = ""
        for turn in (1, 0):
            if rank == turn:
                with pytest.raises(SegmentError) as raised:
                    total(group)
                told = str(raised.value)
            dist.barrier()
        return told


def test_a_rank_without_memory_for_the_group_is_named_to_all(tmp_path: Path) -> None:
    told = ranks.run(full, 2, str(tmp_path))
    assert told[1] == "cannot take 7 bytes of shared memory, 5 are free"
    assert told[0] == f"no memory for a group of 2 ranks: rank 1: {told[1]}"


def closed(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        group: Any = dist.new_group([0])
        group.shutdown()
        with pytest.raises(ConfigError, match="the group is closed"):
            dist.barrier(group=group)


def test_a_group_that_was_left_is_not_made(tmp_path: Path) -> None:
    assert ranks.run(closed, 1, str(tmp_path)) == [None]


def beside_gloo(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder, "gloo"):
        group = dist.new_group([0, 1], backend="softs")
        assert total(group) == 2.0
        dist.destroy_process_group(group)


def test_a_group_of_ranks_of_another_backend(tmp_path: Path) -> None:
    assert ranks.run(beside_gloo, 2, str(tmp_path)) == [None, None]
