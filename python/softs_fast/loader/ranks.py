"""Which ranks of a training share a stream: each takes every n-th sample."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch.distributed

from ..errors import ConfigError
from .arguments import whole_number

__all__ = ["Ranks", "checked_ranks", "place_of_process", "ranks_of_process", "set_ranks_of_worker"]


class Ranks(NamedTuple):
    """One of the processes that share a stream: it takes the samples rank, rank + world_size, ..."""

    rank: int
    world_size: int


def checked_ranks(rank: int | None, world_size: int | None) -> Ranks | None:
    """Return the ranks that a user gave; None if they were left out.

    Raises:
        ConfigError: only one was given, they are no whole numbers, or there is no such rank.
    """
    if rank is None and world_size is None:
        return None
    try:
        ranks = Ranks(whole_number("rank", rank, 0), whole_number("world_size", world_size, 1))
    except ConfigError:
        ranks = None
    if ranks is None or ranks.rank >= ranks.world_size:
        raise ConfigError(
            f"rank and world_size must be whole numbers with 0 <= rank < world_size, or both be left out; got "
            f"rank={rank!r} and world_size={world_size!r}"
        )
    return ranks


def set_ranks_of_worker(ranks: Ranks | None) -> None:
    """Note the place of this process in a job without torch.distributed; it may change. None drops it."""
    global _of_worker
    _of_worker = ranks


def place_of_process() -> object:
    """Return what gives this process its ranks, the same object until that changes; None if nothing does."""
    world = torch.distributed.group.WORLD if torch.distributed.is_available() else None
    return _of_worker if world is None else world


def ranks_of_process() -> Ranks:
    """Return what torch.distributed says, else the place in a job; without both this process is the only one.

    Raises:
        ConfigError: A strategy has other ranks, and nothing says whether they share the stream.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
    if _of_worker is not None:
        return _of_worker
    # Not imported here: a process that has imported no strategies has none.
    collectives = sys.modules.get("softs_fast.collectives")
    strategy = None if collectives is None else collectives.strategy_of_process()
    if strategy is not None:
        raise ConfigError(
            f"this process is rank {strategy.rank} of {strategy.size} of a {type(strategy).__name__}, which may be a part of "
            "the ranks that train, so the samples of this rank are unknown: give the loader rank= and world_size= (rank=0 "
            "and world_size=1 if this process takes all samples)"
        )
    return Ranks(0, 1)


_of_worker: Ranks | None = None
