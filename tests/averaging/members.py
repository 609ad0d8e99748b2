"""Models and strategies that the tests of averaging share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ranks
import torch

from softs_fast.averaging import SelectiveAveraging
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
    """A strategy that reports its n-th reduction when it begins, so that it is killed in its middle, or right after it."""

    def __init__(self, strategy: ShmStrategy, nth: int, say: Callable[[Any], None]) -> None:
        self._strategy = strategy
        self._left = nth
        self._say = say

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def all_reduce_gradients(self, gradients: Mapping[str, torch.Tensor], op: str) -> None:
        with self._counted():
            self._strategy.all_reduce_gradients(gradients, op)

    def average_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with self._counted():
            self._strategy.average_tensors(tensors)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._left -= 1
        if self._left == 0:
            self._say(os.getpid())
        yield
        if self._left == 0:
            signal.pause()


def survived(role: Callable[..., Any], folder: Path, delay_s: float) -> Any:
    """Kill rank 1 of three a moment after it has said that it reduces; what both others return."""
    with ranks.start(role, 3, str(folder)) as running:
        victim = running.receive(1)
        time.sleep(delay_s)
        os.kill(victim, signal.SIGKILL)
        told = running.results()
    assert told[1] is None
    assert told[0] == told[2], getattr(told[0], "trace", told[0])
    return told[0]


def settle(engine: SelectiveAveraging) -> None:
    """Wait until all that an engine has begun is complete."""
    board = engine._board
    board.settle()
    while engine._pending is not None and engine._pending.is_fetching and board.fetched() is None:
        time.sleep(0.001)
