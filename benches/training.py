"""A small CNN trained on batches in memory and on batches from a loader, alternately."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

# Broker and supplier need cores too.
N_THREADS = 2
N_BATCHES_IN_MEMORY = 8
# Short turns, because the load of the machine changes from one to the next, and there are more of them.
N_STEPS = 10
# The loader's first batches of a turn were made during the other turn: those in its slots, and one copied ahead.
N_STEPS_NOT_COUNTED = 3

Batch = Any


def open_training(batches: Iterator[Batch]) -> Callable[[float], dict[str, Any]]:
    """Copy some batches into memory and warm up; return the function that measures for a time.

    Args:
        batches: Batches from the loader; `x` float32 [batch, 3, height, width], `y` int64 [batch, 1].

    Returns:
        A function of seconds; it returns step_ratio (median ratio of a step from the loader to the steps from memory
        before and after), memory_step_ms, loader_step_ms, wait_ms (its part until the batch was ready; medians of the
        turns' means), turns and seconds.
    """
    torch.set_num_threads(N_THREADS)
    torch.manual_seed(0)
    step = _Step()
    ready = [
        {name: tensor.clone() for name, tensor in _tensors(batch).items()}
        for batch in itertools.islice(batches, N_BATCHES_IN_MEMORY)
    ]
    in_memory = itertools.cycle(ready)
    _turn(step, in_memory)

    def measure(seconds: float) -> dict[str, Any]:
        memory_s: list[float] = []
        loader_s: list[float] = []
        wait_s: list[float] = []
        ratios: list[float] = []
        started = time.perf_counter()
        while time.perf_counter() - started < seconds or not loader_s:
            # Compare with the turns before and after, so that a steady drift cancels out.
            before = memory_s[-1] if memory_s else _turn(step, in_memory)[0]
            took, waited = _turn(step, batches)
            memory_s.append(_turn(step, in_memory)[0])
            ratios.append(2 * took / (before + memory_s[-1]))
            loader_s.append(took)
            wait_s.append(waited)
        return {
            "step_ratio": statistics.median(ratios),
            "memory_step_ms": 1e3 * statistics.median(memory_s),
            "loader_step_ms": 1e3 * statistics.median(loader_s),
            "wait_ms": 1e3 * statistics.median(wait_s),
            "turns": len(loader_s),
            "seconds": time.perf_counter() - started,
        }

    return measure


class _Step:
    """One step of SGD with a fresh batch."""

    def __init__(self) -> None:
        self._model = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-6)

    def __call__(self, batch: Batch) -> None:
        loss = nn.functional.cross_entropy(self._model(batch["x"]), batch["y"].flatten())
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _turn(step: _Step, batches: Iterator[Batch]) -> tuple[float, float]:
    """Return seconds per step, and their part until the batch was ready."""
    for batch in itertools.islice(batches, N_STEPS_NOT_COUNTED):
        step(batch)
    waited = 0.0
    started = before = time.perf_counter()
    for _ in range(N_STEPS):
        batch = next(batches)
        waited += time.perf_counter() - before
        step(batch)
        before = time.perf_counter()
    return (before - started) / N_STEPS, waited / N_STEPS


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: batch[name] for name in ("x", "y")}
