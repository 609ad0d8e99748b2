"""Ranks in one process and virtual time, each with an engine."""

from __future__ import annotations

from typing import Any

import torch
from memory_board import MemoryBoard, World

from softs_fast.averaging import Event, Rules, Schedule, SelectiveAveraging

# A check in each step, of what is there.
NOW = Schedule(publish_every=1, max_wait_steps=0)
RULES = Rules(every=1, replace_worst=0.01, strategy="best_only")


def net(value: float) -> torch.nn.Module:
    """A model with a weight, a scalar, batch norm and tied weights, all of one value."""
    model = torch.nn.Module()
    model.one = torch.nn.Linear(3, 3)
    model.two = torch.nn.Linear(3, 3, bias=False)
    model.two.weight = model.one.weight
    model.norm = torch.nn.BatchNorm1d(3)
    model.log_z = torch.nn.Parameter(torch.tensor(0.0))
    with torch.no_grad():
        for tensor in (*model.parameters(), model.norm.running_mean):
            tensor.fill_(value)
        model.norm.num_batches_tracked.fill_(int(value))
    return model


class Team:
    """Ranks in one process that make their steps in turn, the last one first."""

    def __init__(self, n: int, rules: Rules = RULES, schedule: Schedule = NOW, **arguments: Any) -> None:
        self.world = World()
        self.models = [net(float(rank)) for rank in range(n)]
        self.optimizers = [torch.optim.Adam(model.parameters()) for model in self.models]
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for weight in model.parameters():
                weight.grad = torch.zeros_like(weight)
            optimizer.step()
        self.ranks = [
            SelectiveAveraging(
                model,
                optimizer,
                rules,
                meet=MemoryBoard(self.world, rank),
                schedule=schedule,
                clock=self.world.clock,
                **arguments,
            )
            for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True))
        ]

    def meet(self) -> None:
        """Let all ranks join, so that each knows the others at its first check with metrics."""
        self.step(*[None] * len(self.ranks))

    def step(self, *metrics: float | None) -> list[Event | None]:
        self.world.now_s += 1.0
        # Backwards, so that rank 0, the worst one in most tests, sees the reports of the others in the same step.
        events = [rank.step(metric) for rank, metric in zip(self.ranks[::-1], metrics[::-1], strict=True)]
        return events[::-1]

    def value(self, rank: int) -> float:
        (value,) = {round(float(weight.detach().mean()), 5) for weight in self.models[rank].parameters()}
        return value
