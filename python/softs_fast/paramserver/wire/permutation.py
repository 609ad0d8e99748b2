"""The order of samples in an epoch, the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ["order", "shard"]


def order(seed: int, epoch: int, n: int) -> list[int]:
    """Return the numbers 0 to n - 1 in the order of an epoch.

    Sorted by numbers of Python's generator: of it, only the sequence of `random()` is promised to stay the same.

    Args:
        seed: Seed of the run.
        epoch: Epoch, from 0.
        n: Samples.
    """
    generator = random.Random(f"{seed} {epoch}")
    keys = [generator.random() for _ in range(n)]
    return sorted(range(n), key=keys.__getitem__)


def shard(positions: Sequence[int], rank: int, world_size: int) -> Sequence[int]:
    """Return every `world_size`-th position from the rank on."""
    return positions[rank % world_size :: world_size]
