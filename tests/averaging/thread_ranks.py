"""Ranks that are threads of one process: a strategy that costs no processes, and compares nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from side_by_side import in_threads
from waiting import WATCHDOG_S

R = TypeVar("R")


class ThreadStrategy:
    """What averagers use of a strategy."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.size = len(slots)
        self._slots = slots
        self._barrier = barrier

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        output.copy_(torch.cat(self._exchange(tensor.clone())))

    def all_reduce_gradients(self, gradients: Mapping[str, torch.Tensor], op: str) -> None:
        every = self._exchange({name: tensor.clone() for name, tensor in gradients.items()})
        for name, tensor in gradients.items():
            stacked = torch.stack([one[name] for one in every])
            tensor.copy_(stacked.mean(0) if op == "mean" else stacked.max(0).values)

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        tensor.copy_(self._exchange(tensor.clone())[root])

    def _exchange(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(WATCHDOG_S)
        every = list(self._slots)
        self._barrier.wait(WATCHDOG_S)
        return every


def group_of(size: int) -> list[Any]:
    """Return the strategies of ranks that are threads."""
    slots: list[Any] = [None] * size
    barrier = threading.Barrier(size)
    return [ThreadStrategy(rank, slots, barrier) for rank in range(size)]


def run_threads(function: Callable[[Any], R], size: int = 2) -> list[R]:
    """Return what a function of a strategy returns on each rank, or raise what it raises."""
    return in_threads(function, group_of(size))
