"""Ranks of a group of torch.distributed with the backend "softs"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from softs_fast.collectives.backend import register


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


def for_ever(call: Callable[[], object]) -> None:
    """Repeat a call."""
    while True:
        call()
