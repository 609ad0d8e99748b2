"""Metrics of operations, for strategies that are built on other engines."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from softs_fast import _kernels
from softs_fast.collectives.strategy import OpMetrics

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Lap:
    """One operation that is being timed.

    Attributes:
        waiting_s: time spent waiting for other ranks, seconds, as far as known.
    """

    waiting_s: float = 0.0


@dataclass
class Progress:
    """Calls that a rank has made since its group was formed.

    Attributes:
        completed: those that have ended without an exception.
        errors: the others, by the name of the operation.
    """

    completed: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def counts_errors(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of methods that counts exceptions in the `_progress` of their object.

    Args:
        name: Name of the operation.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def counting(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except BaseException:
                owner: Any = args[0]
                owner._progress.errors[name] += 1
                raise

        return counting

    return decorate


class Meter:
    """Sums of operations by name."""

    def __init__(self) -> None:
        self._sums: dict[str, OpMetrics] = {}

    @contextmanager
    def lap(self, name: str, n_bytes: int) -> Iterator[Lap]:
        """Time one operation on `n_bytes` of tensors."""
        lap = Lap()
        start = time.perf_counter()
        has_failed = True
        try:
            yield lap
            has_failed = False
        finally:
            so_far = self._sums.get(name, OpMetrics())
            self._sums[name] = OpMetrics(
                so_far.n_calls + 1,
                so_far.bytes + n_bytes,
                so_far.seconds + time.perf_counter() - start,
                so_far.waiting_s + lap.waiting_s,
                so_far.errors + has_failed,
            )

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """The sums so far."""
        return dict(self._sums)


def waited_s(group: _kernels.Group) -> float:
    """Return the seconds that the host has waited for other ranks."""
    return sum(waiting for _, _, _, waiting in group.metrics())
