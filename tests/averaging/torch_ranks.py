"""Ranks of a gloo group, and a communicator with the methods of mpi4py over it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


@contextmanager
def gloo(rank: int, size: int, folder: str) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def turn(iteration: int, policy: Any) -> Iterator[None]:
    """Ranks run a block one after another, by rank; that of the first iteration at once, as it is a collective call.

    What the policy has begun to fetch is complete when the block ends.
    """
    n_before = dist.get_rank() if iteration else 0
    for _ in range(n_before):
        dist.barrier()
    yield
    engine = policy._engine
    while engine._pending is not None and engine._pending.is_fetching and engine._board.fetched() is None:
        time.sleep(0.001)
    for _ in range(n_before, dist.get_world_size()):
        dist.barrier()


def net(value: float) -> torch.nn.Module:
    """A model with a layer, a scalar and a buffer, all of one value."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model.register_parameter("log_z", torch.nn.Parameter(torch.tensor(0.0)))
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_mean):
            tensor.fill_(value)
    return model


def value_of(model: torch.nn.Module) -> float:
    (value,) = {
        round(weight, 5) for tensor in model.parameters() for weight in tensor.detach().view(-1).tolist()
    }
    return value


class Builder:
    """Makes models, each with another value, and counts them."""

    def __init__(self) -> None:
        self.n_calls = 0

    def __call__(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        self.n_calls += 1
        model = net(1000.0 + self.n_calls)
        return model, torch.optim.Adam(model.parameters())


class GlooCommunicator:
    """What the policies use of a communicator of mpi4py, over gloo."""

    def Get_rank(self) -> int:
        return dist.get_rank()

    def Get_size(self) -> int:
        return dist.get_world_size()

    def Allgather(self, own: bytearray, every: bytearray) -> None:
        tensors = [torch.zeros(len(own), dtype=torch.uint8) for _ in range(self.Get_size())]
        dist.all_gather(tensors, torch.frombuffer(own, dtype=torch.uint8))
        every[:] = torch.cat(tensors).numpy().tobytes()

    def Reduce(self, own: np.ndarray[Any, Any], total: np.ndarray[Any, Any]) -> None:
        tensor = torch.from_numpy(own.copy())
        dist.reduce(tensor, 0)
        if self.Get_rank() == 0:
            total[...] = tensor.numpy()

    def Bcast(self, total: np.ndarray[Any, Any]) -> None:
        dist.broadcast(torch.from_numpy(total), 0)
