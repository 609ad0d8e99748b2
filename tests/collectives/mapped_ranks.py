"""Ranks of the backend "softs" that reduce within backward passes, as DistributedDataParallel does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from softs_fast.collectives.backend import door

#: Calls with a tensor until all ranks have mapped it: it is seen three times, then moved.
CALLS_BEFORE = 3


def in_backward(call: Callable[[], object]) -> None:
    """Make a call within a backward pass."""

    def hook(_: torch.Tensor) -> None:
        call()

    with torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True)
        leaf.register_hook(hook)
        leaf.sum().backward()


def reduce(tensor: torch.Tensor, rank: int, size: int, n_calls: int = 1) -> None:
    """Have a tensor be reduced within backward passes, and check the sums."""
    for number in range(n_calls):
        tensor.fill_(rank + number)
        in_backward(lambda: dist.all_reduce(tensor))
        assert (tensor == sum(other + number for other in range(size))).all()


def n_in_place() -> int:
    """Return how many calls of the group of this process were in place."""
    (backend,) = door._open
    return backend._membership.group().n_in_place()


def shared_files() -> list[str]:
    """Return the files of the mappings of this process that are memory of tensors, one for each mapping."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if "/memfd:softs-tensor" in line or "/torch_" in line]


def descriptors() -> list[str]:
    """Return what the descriptors of this process are open for, without numbers."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}").partition(":")[0])
        except FileNotFoundError:  # that of the listing
            continue
    return sorted(found)
