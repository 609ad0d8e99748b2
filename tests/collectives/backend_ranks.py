"""Ranks of a group of torch.distributed with the backend "softs"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from softs_fast.collectives.backend import hosts, register
from softs_fast.collectives.nodes import Topology


@contextmanager
def joined(rank: int, size: int, folder: str, backend: str = "softs") -> Iterator[None]:
    """Join the default group of ranks that meet in a folder, and destroy it at the end."""
    # Here, since the tests may run from a tree that is not installed.
    register()
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store-{backend.partition(':')[0]}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=40.0),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def pretend_hosts(sizes: list[int]) -> None:
    """Have the groups that this process makes from now on take its ranks for those of hosts with so many of them each."""
    hosts_of = [number for number, n_ranks in enumerate(sizes) for _ in range(n_ranks)]

    def discover(place: Any, rank: int, timeout_s: float, **_: object) -> Topology:
        """Of the default group, or of a part of it."""
        own = hosts_of[dist.get_rank()] if dist.is_initialized() else hosts_of[rank]
        said = place.exchange(str(own).encode(), timeout_s)
        nodes = tuple(
            tuple(other for other, text in enumerate(said) if text == host) for host in dict.fromkeys(said)
        )
        return Topology(rank, nodes, next(number for number, node in enumerate(nodes) if rank in node))

    hosts.discover = discover  # type: ignore[assignment]


def for_ever(call: Callable[[], object]) -> None:
    """Repeat a call."""
    while True:
        call()
