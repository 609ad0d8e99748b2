"""Models and strategies that the tests of averaging share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from softs_fast.collectives import Schedule, ShmStrategy

SCHEDULE = Schedule(1 << 15, 1 << 16)
# Long enough that a rank that ends by it, and not because the kernel reported a death, fails its test by the watchdog.
NEVER_S = 300.0


def join(rank: int, size: int, folder: str) -> ShmStrategy:
    return ShmStrategy(timeout_s=NEVER_S, staging_bytes=1 << 16, schedule=SCHEDULE).init(rank, size, folder)


def line(*values: float) -> torch.nn.Module:
    """A model with one weight per value."""
    model = torch.nn.Module()
    for number, value in enumerate(values):
        model.register_parameter(f"w{number}", torch.nn.Parameter(torch.tensor([value])))
    return model


def values_of(model: torch.nn.Module) -> list[float]:
    return [float(weight.detach()[0]) for weight in model.parameters()]


def descend(model: torch.nn.Module, *gradients: float) -> None:
    """A training step with constant gradients and a learning rate of 1."""
    with torch.no_grad():
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight -= gradient


class SaysWhenItReduces:
    """A strategy that reports its n-th reduction when it begins, so that it is killed in its middle."""

    def __init__(self, strategy: ShmStrategy, nth: int, say: Callable[[Any], None]) -> None:
        self._strategy = strategy
        self._left = nth
        self._say = say

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def all_reduce_gradients(self, gradients: Mapping[str, torch.Tensor], op: str) -> None:
        self._count()
        self._strategy.all_reduce_gradients(gradients, op)

    def average_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._count()
        self._strategy.average_tensors(tensors)

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._say(os.getpid())
