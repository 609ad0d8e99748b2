"""A run that a test drives event by event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.events import Action, Version
from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.rounds.run import Run
from softs_fast.paramserver.rounds.snapshot import Snapshot
from softs_fast.paramserver.wire.answers import Code

_Kind = TypeVar("_Kind")


class DrivenRun:
    """A machine, its time, and all that it wanted."""

    def __init__(self, snapshot: Snapshot | None = None, /, **options: Any) -> None:
        given = {"world_size": 2, "rounds": 100} | options
        self.now_s = 0.0
        self.run = Run(RunOptions(**given), 0.0, snapshot)
        self.actions: list[Action] = []
        self._content = 0

    def tell(self, event: events.Event, after_s: float = 0.0) -> Any:
        """Tell an event; its first action."""
        self.now_s += after_s
        self.actions = list(self.run.handle(self.now_s, event))
        return self.actions[0] if self.actions else None

    def join(self, *workers: str) -> None:
        """Make active members."""
        for worker in workers:
            assert isinstance(self.tell(events.Join(worker, worker)), events.Welcome)
            self.tell(events.Seen(worker))

    def push(
        self, worker: str, base: Version | None = None, samples: int = 1, data: int | None = None
    ) -> Any:
        self._content += 1
        version = base or self.run.version
        return self.tell(events.Push(worker, version, samples, 0.5, self._content, data))

    def wait(self, seconds: float, *alive: str) -> list[Action]:
        """Let time pass, with the ticks that the machine wants and a heartbeat of some workers each second."""
        end_s = self.now_s + seconds
        found: list[Action] = []
        next_beat_s = self.now_s + 1.0
        while self.now_s < end_s:
            wake_s = self.run.next_wake_s()
            at_s = min(end_s, next_beat_s, end_s if wake_s is None else max(self.now_s, wake_s))
            if at_s == next_beat_s:
                next_beat_s += 1.0
                for worker in alive:
                    self.tell(events.Seen(worker), at_s - self.now_s)
                    found += self.actions
            if at_s == wake_s:
                self.tell(events.Tick(), at_s - self.now_s)
                found += self.actions
            self.now_s = at_s
        self.actions = found
        return found

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        """The actions of a kind, of the last event."""
        return [one for one in self.actions if isinstance(one, kind)]

    def one(self, kind: type[_Kind]) -> _Kind:
        (found,) = self.all(kind)
        return found

    def round(self, *workers: str, then: Callable[[], None] | None = None) -> None:
        """Have all push, and the step done."""
        for worker in workers:
            self.push(worker)
        assert self.all(events.Apply)
        if then is not None:
            then()
        self.tell(events.Applied())

    @property
    def phase(self) -> str:
        return self.run.status(self.now_s).state

    @property
    def text(self) -> str:
        return self.run.status(self.now_s).waiting_for.rpartition(", for ")[0]


def is_refused(answer: object, code: Code) -> bool:
    return isinstance(answer, events.Refused) and answer.code is code


def joined(*workers: str, **options: Any) -> DrivenRun:
    """Return a run that workers have joined; without another `world_size`, it is of so many."""
    run = DrivenRun(**{"world_size": len(workers), **options})
    run.join(*workers)
    return run
