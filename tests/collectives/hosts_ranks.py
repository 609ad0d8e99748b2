"""Ranks of a training on several hosts, which report what they do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from networks import enter

from softs_fast.collectives import LinkStrategy
from softs_fast.collectives.backend import register
from softs_fast.errors import PeerLost

N = 300_000

Say = Callable[[Any], None]


def on_hosts(
    say: Say, rank: int, size: int, pids: list[int], address: str, token: str, act: Callable[..., None]
) -> None:
    """Join on the host of a process of it, and do something."""
    enter(pids[rank])
    os.environ["SOFTS_FAST_TOKEN_FILE"] = token
    register()
    dist.init_process_group(
        "softs",
        init_method=f"softs://{address}:29500",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=100),
    )
    say("joined")
    act(say, rank, size, address)
    # A host that is cut off cannot be told.
    dist.destroy_process_group()


def reduce_until_lost(say: Say, rank: int, size: int, address: str) -> None:
    """Report the number of each call, and the error."""
    number = 0
    try:
        while True:
            whole = torch.full((N,), float(number + rank))
            dist.all_reduce(whole)
            assert (whole == size * number + sum(range(size))).all(), whole
            number += 1
            say(number)
    except PeerLost as error:
        say(str(error))


def leave_after_a_broadcast(say: Say, rank: int, size: int, address: str) -> None:
    """Report the sum of what has come."""
    whole = torch.full((N,), 3.0 if rank == 0 else 0.0)
    dist.broadcast(whole, 0)
    say(int(whole.sum()))


def send_to_a_rank_that_takes_nothing(say: Say, rank: int, size: int, address: str) -> None:
    """Report the error of rank 0."""
    # Without torch.distributed.
    with (
        LinkStrategy(timeout_s=100.0).init(rank, size, f"softs://{address}:29501") as strategy,
        strategy.engine.call("send"),
    ):
        if rank == 1:
            signal.pause()
        try:
            strategy.engine.broadcast(torch.zeros(64 << 20, dtype=torch.uint8), 0)
        except PeerLost as error:
            say(str(error))
            raise
