"""A model of an engine in virtual time: a call ends at some members, and fails or hangs at others, if one is lost meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulated_job import Process, World

Callback = Callable[[list[Any] | None], None]


def apply(weights: Any, step: int, gradients: Any) -> Any:
    return hash((weights, step, gradients))


@dataclass
class Link:
    """A connection: in order, both ways; what is on its way is lost when it is cut."""

    conn: int
    process: Process
    is_cut: bool = False
    up_s: float = 0.0
    down_s: float = 0.0


@dataclass
class Call:
    """A collective call: what each member has brought, and what waits for its end."""

    brought: dict[int, Any] = field(default_factory=dict)
    waiting: dict[int, Callback] = field(default_factory=dict)
    result: list[Any] | None = None


class Engine:
    """Of one epoch. A call is complete when all members have joined it; each learns that for itself."""

    def __init__(self, world: World, size: int) -> None:
        self._world, self._size = world, size
        self._calls: dict[int, Call] = {}
        self._here = set(range(size))

    def join(self, rank: int, number: int, value: Any, done: Callback) -> None:
        call = self._calls.setdefault(number, Call())
        call.brought[rank], call.waiting[rank] = value, done
        if len(call.brought) == self._size:
            call.result = [call.brought[one] for one in range(self._size)]
            for one in list(call.waiting):
                self._world.later(self._world.delay(0.02), lambda one=one: self._end(call, one, call.result))
        elif len(self._here) < self._size:
            self._perhaps_fail(call, rank)

    def leave(self, rank: int) -> None:
        """A member is dead, or has dropped its engine: no call of it ends any more, others fail or hang."""
        self._here.discard(rank)
        for call in self._calls.values():
            call.waiting.pop(rank, None)
            for one in list(call.waiting):
                self._perhaps_fail(call, one)

    def _perhaps_fail(self, call: Call, rank: int) -> None:
        if self._world.random.random() < 0.5:
            self._world.later(self._world.delay(0.1), lambda: self._end(call, rank, None))

    @staticmethod
    def _end(call: Call, rank: int, result: list[Any] | None) -> None:
        done = call.waiting.pop(rank, None)
        if done is not None:
            done(result)
