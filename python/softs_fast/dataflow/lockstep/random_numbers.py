"""The generators of random numbers of a process, one state for each worker that shares it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

__all__ = ["ProcessGenerators"]


@dataclass
class ProcessGenerators:
    """The global generators of torch, numpy and Python, which go on for one worker at a time.

    A worker begins as a new process does: with seeds of the operating system, which no other worker has.
    """

    _owner: int | None = field(default=None, init=False)
    _states: dict[int | None, tuple[Any, ...]] = field(default_factory=dict, init=False)

    def switch(self, worker: int | None) -> None:
        """Have the generators go on as a worker has left them; None: as the rest of this process has."""
        if worker != self._owner:
            self._states[self._owner] = _state()
            self._owner, state = worker, self._states.get(worker)
            _restore(state if state is not None else _fresh())

    def clear(self) -> None:
        """Have them go on as the rest of this process has left them, and drop the states of all workers."""
        self.switch(None)
        self._states.clear()


def _state() -> tuple[Any, ...]:
    is_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if is_cuda else []
    return torch.get_rng_state(), np.random.get_state(), random.getstate(), cuda


def _fresh() -> tuple[Any, ...]:
    cpu = torch.Generator()
    cpu.seed()
    return cpu.get_state(), np.random.RandomState().get_state(), random.Random().getstate(), []


def _restore(state: tuple[Any, ...]) -> None:
    cpu, of_numpy, of_python, cuda = state
    torch.set_rng_state(cpu)
    np.random.set_state(of_numpy)
    random.setstate(of_python)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)
