"""A job that a test drives by hand: workers are names, time is a number."""

from __future__ import annotations

from itertools import count
from typing import Any, TypeVar

from softs_fast.coordination.job import events
from softs_fast.coordination.job.job import Job
from softs_fast.coordination.job.messages import (
    FromWorker,
    Hello,
    Ready,
    Step,
    Table,
    ToWorker,
    WorkerState,
)
from softs_fast.coordination.job.options import JobOptions

Message = TypeVar("Message")


class DrivenJob:
    """A coordinator, and what it has said to each connection."""

    def __init__(
        self, min_workers: int, max_workers: int | None = None, *, records: Any = (), **options: Any
    ) -> None:
        defaults: dict[str, Any] = {
            "form_timeout_s": 2.0,
            "join_s": 0.5,
            "away_s": 5.0,
            "reconnect_timeout_s": 3.0,
            "rejoin_timeout_s": 60.0,
        }
        self.options = JobOptions("job", min_workers, max_workers or min_workers, **defaults | options)
        self.now_s = 0.0
        self.job = Job(self.options, 77, self.now_s, records)
        self.conns: dict[str, int] = {}
        self.said: dict[int, list[ToWorker]] = {}
        self.closed: set[int] = set()
        self.log: list[str] = []
        self.records: list[events.Record] = []
        self._conns = count(1)

    def tell(self, event: events.Event) -> None:
        for output in self.job.handle(self.now_s, event):
            match output:
                case events.Send(conn, message):
                    self.said.setdefault(conn, []).append(message)
                case events.Close(conn):
                    self.closed.add(conn)
                case events.Persist(record):
                    self.records.append(record)
                case events.Log(text):
                    self.log.append(text)

    def wait(self, seconds: float) -> None:
        """Let time pass, with each tick that the job asks for."""
        end_s = self.now_s + seconds
        while (wake_s := self.job.next_wake_s()) is not None and wake_s <= end_s:
            self.now_s = wake_s
            self.tell(events.Tick())
        self.now_s = end_s
        self.tell(events.Tick())

    def hello(
        self, name: str, incarnation: int = 1, *, identity: str | None = None, **hello: Any
    ) -> list[ToWorker]:
        """Connect; return what was answered."""
        conn = self.conns[name] = next(self._conns)
        message = Hello(hello.pop("job", "job"), name, incarnation, address=f"{name}:1", **hello)
        self.tell(events.Received(conn, message, identity))
        return self.said.get(conn, [])

    def say(self, name: str, message: FromWorker) -> None:
        self.tell(events.Received(self.conns[name], message))

    def ready(
        self, name: str, committed: int = 0, *, epoch: int | None = None, in_doubt: bool = False
    ) -> None:
        """Wait for a table, after an epoch; the last one of which it was told, unless another one is given."""
        told = [one for one in self.said.get(self.conns[name], []) if isinstance(one, Table)]
        epoch = epoch if epoch is not None else told[-1].epoch if told else 0
        state = WorkerState(77 if epoch else 0, epoch, committed, in_doubt)
        self.say(name, Ready(state, state.boot, state.epoch))

    def begin(self, name: str, step: int) -> None:
        self.say(name, Step(self.status.epoch, step))

    def gone(self, name: str) -> None:
        self.tell(events.Gone(self.conns[name]))

    def last(self, name: str, kind: type[Message]) -> Message:
        """Return the last message of a kind to a worker."""
        found = [one for one in self.said[self.conns[name]] if isinstance(one, kind)]
        assert found, f"{name} was told {self.said[self.conns[name]]}"
        return found[-1]

    def heard(self, name: str) -> list[ToWorker]:
        """Return, once, what a worker was told."""
        return self.said.pop(self.conns[name], [])

    @property
    def status(self) -> Any:
        return self.job.status(self.now_s)


def open_job(*names: str, max_workers: int | None = None, **options: Any) -> DrivenJob:
    """Return a job in its first epoch, with these members."""
    driven = DrivenJob(options.pop("min_workers", len(names)), max_workers, **options)
    for name in names:
        driven.hello(name)
        driven.ready(name)
    if driven.status.phase != "open":
        driven.wait(driven.options.form_timeout_s)
    assert driven.status.phase == "open"
    return driven
