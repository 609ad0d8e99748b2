"""The engines of an epoch: members find out which of them share memory, and fall back to connections together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from side_by_side import in_threads
from torch.distributed import HashStore

from softs_fast import _kernels
from softs_fast.collectives import EngineStrategy, HierarchicalStrategy, ShmStrategy, Strategy
from softs_fast.coordination.job.messages import Member, Table
from softs_fast.coordination.node import engines, memory_engine
from softs_fast.coordination.node.exchange import EpochExchange
from softs_fast.errors import PeerLost, SegmentError, WireError


class Keys(HashStore):
    """A store of threads, as members of an epoch have one; values are bytes."""

    own_host = "127.0.0.1"
    credentials = None

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Callable[[str], object]] = []

    def when_over(self, tell: Callable[[str], object]) -> None:
        self.told.append(tell)


def table_of(size: int) -> Table:
    members = tuple(Member(rank, rank, f"w{rank}", 1, "") for rank in range(size))
    return Table(1, 1, members, 0, "back", (), 0)


def summed(size: int, host_of: Callable[[int], str]) -> list[tuple[type[Strategy], float]]:
    """Return the strategy of each member, and the sum of the ranks that it finds."""
    keys: Any = Keys()

    def run(rank: int) -> tuple[type[Strategy], float]:
        with memory_engine(table_of(size), rank, keys, host=host_of(rank)) as strategy:
            tensor = torch.tensor([float(rank)])
            strategy.all_reduce(tensor)
            strategy.barrier()
            return type(strategy), float(tensor)

    return in_threads(run, range(size))


@pytest.mark.parametrize(
    ("hosts", "kind"),
    [
        ("aaa", ShmStrategy),
        ("abc", EngineStrategy),
        ("aab", HierarchicalStrategy),
        ("baba", HierarchicalStrategy),
    ],
)
def test_members_that_share_memory_decide_the_engine(hosts: str, kind: type[Strategy]) -> None:
    assert summed(len(hosts), lambda rank: hosts[rank]) == [(kind, sum(range(len(hosts))))] * len(hosts)


def test_without_shared_memory_there_are_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise SegmentError("no room in /dev/shm")

    monkeypatch.setattr(_kernels.Segment, "create", full)
    assert summed(3, lambda rank: "") == [(EngineStrategy, 3.0)] * 3


def test_if_one_host_has_no_room_for_its_group_all_use_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host b has memory for a probe, and not for a group."""
    create = _kernels.Segment.create_group

    def full(size: int, staging_bytes: int) -> Any:
        if size == 2:
            raise SegmentError("no room in /dev/shm")
        return create(size, staging_bytes)

    monkeypatch.setattr(_kernels.Segment, "create_group", full)
    assert summed(5, lambda rank: "aaabb"[rank]) == [(EngineStrategy, 10.0)] * 5


def test_hosts_larger_than_a_group_use_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_MOST_IN_MEMORY", 2)
    assert summed(3, lambda rank: "") == [(EngineStrategy, 3.0)] * 3


def test_messages_of_all_members_in_several_pieces() -> None:
    keys: Any = Keys()
    messages = [bytes([rank]) * (4096 - rank) for rank in range(20)]

    def run(rank: int) -> tuple[list[bytes], list[bytes]]:
        place = EpochExchange(keys, rank, len(messages))
        return place.exchange(messages[rank], 30.0), place.exchange(b"", 30.0)

    assert in_threads(run, range(len(messages))) == [(messages, [b""] * len(messages))] * len(messages)


def test_malformed_exchanges_are_refused() -> None:
    keys: Any = Keys()
    with pytest.raises(WireError, match="4097 bytes"):
        EpochExchange(keys, 0, 1).exchange(bytes(4097), 1.0)
    for number, packed in enumerate([b"\xff\xff\xff\xff", (5000).to_bytes(4, "little")]):
        liar: Any = Keys()
        liar.set("exchange.1.0", packed)
        with pytest.raises(WireError, match="tells of a message"):
            EpochExchange(liar, 1, 2).exchange(b"", 1.0)
        assert number < 2


def test_a_fence_ends_all_levels_of_an_engine() -> None:
    """What the engine registers ends calls in which another rank never takes part."""
    keys: Any = Keys()
    size = 4
    members = in_threads(
        lambda rank: memory_engine(table_of(size), rank, keys, host="aabb"[rank]), range(size)
    )
    waiting = threading.Barrier(size)

    def run(rank: int) -> None:
        waiting.wait(30)
        if rank == size - 1:
            for tell in keys.told:
                tell("the epoch is over")
            return
        with pytest.raises(PeerLost):
            members[rank].all_reduce(torch.ones(100))

    in_threads(run, range(size))
    for member in members:
        member.close()


def test_time_outs_are_those_of_the_caller() -> None:
    keys: Any = Keys()
    with pytest.raises(RuntimeError):
        EpochExchange(keys, 1, 2).exchange(b"", timedelta(milliseconds=50).total_seconds())
