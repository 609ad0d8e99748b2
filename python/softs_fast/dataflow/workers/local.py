"""All workers in this process: their steps run one after the other, by ticket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from ..declare.declaration import Declaration
from ..declare.hooks import Hook
from ..declare.roles import Placement
from ..link.results import Failure, Result
from ..master.holdings import Frees, Holdings
from ..master.order.deadlines import Seen
from ..master.order.steps import Abort, Step
from ..process.objects import Objects
from ..process.part import Part
from ..process.work import Work
from ..store.own import OwnValues
from ..store.values import Value
from .backend import Done, Event
from .doing import Doing
from .elements import LocalElements
from .sightings import Sight

__all__ = ["LocalBackend"]


class LocalBackend:
    """One object for each role, all here; the place of a value is the value itself.

    Args:
        declaration: Declaration of the flow.
    """

    cuts_rows = False

    def __init__(self, declaration: Declaration) -> None:
        self.doing = Doing()
        self._declaration = declaration
        self._objects = Objects(declaration.roles)
        self._values = OwnValues()
        #: Exception of the step that has failed last.
        self._raised: list[BaseException] = []
        self._part = Part(declaration, self._objects, self._values, raised=self._raised.append)
        self._steps: list[tuple[int, Step, Callable[[], Work | None]]] = []
        self._missing: dict[int, list[int]] = {}
        self._skipped: list[Event] = []
        self.elements = LocalElements(declaration)

    def open(self, held: Holdings) -> list[Hook]:
        """Make the objects, and have them give all shards."""
        self._objects.setup()
        self.elements.open(self._objects)
        return []

    def close(self, *, goes_on: bool = False) -> None:
        """Drop the objects, and steps that have not run."""
        self._steps.clear()
        self._missing.clear()
        self._skipped.clear()
        self.elements.close()
        self._objects.close()

    def put(self, column: str, ids: Sequence[int], values: Sequence[Value]) -> Sequence[Value]:
        """Return the values: they are here."""
        return values

    def values(self, places: Sequence[Any]) -> list[Value]:
        """Copy values."""
        return self._values.get(places)

    def free_bytes(self) -> None:
        """Values are in this process."""

    def free(self, frees: Frees) -> None:
        """Values go with their last place."""

    def send(self, worker: int, step: Step, work: Callable[[], Work | None]) -> None:
        """Keep a step until its ticket is the lowest."""
        if step.ticket not in self._missing:
            self._missing[step.ticket] = []
            heappush(self._steps, (step.ticket, step, work))
        self._missing[step.ticket].append(worker)

    def abort(self, worker: int, abort: Abort) -> None:
        """Skip a step that has not begun."""
        waiting = self._missing.get(abort.ticket, [])
        if worker in waiting:
            waiting.remove(worker)
            failure = Failure(abort.reason, abort.reason)
            self._skipped.append(Done(worker, Result(abort.ticket, failure=failure)))

    def wait(self, timeout_s: float | None) -> list[Event]:
        """Run the step with the lowest ticket, whatever it takes."""
        events, self._skipped = self._skipped, []
        if events or not self._steps:
            return events
        ticket, step, work = heappop(self._steps)
        workers = self._missing.pop(ticket)
        if not workers:
            return self.wait(timeout_s)  # it was aborted
        name = step.work.name if isinstance(step.work, Hook) else step.work
        with self.doing.what(f"runs {name}"):
            self._values.worker, made = workers[0], work()
            result = Result(ticket)
            if made is not None:
                result = self._part.run(made, ticket, lambda role, known: (), lambda shown: None)
        # All workers are the one that has run it.
        others = Result(ticket, failure=result.failure)
        cause = self._raised.pop() if self._raised else None
        return [Done(workers[0], result, cause), *(Done(worker, others) for worker in workers[1:])]

    def look(self, ticket: int, workers: Iterable[int]) -> dict[int, Seen]:
        """There are no processes, and nothing here can end a function."""
        return {}

    def held_back(self) -> frozenset[int]:
        """All steps are there at once."""
        return frozenset()

    def sights(self, timeout_s: float, *, stacks: bool = False) -> dict[int, Sight]:
        """There are no worker processes."""
        return {}

    def inside(self) -> dict[int, dict[str, Any]]:
        """There are no worker processes."""
        return {}

    def end(self, worker: int, reason: str) -> None:
        """There are no processes."""

    def beside(self) -> frozenset[int]:
        """All workers are here."""
        return frozenset(self._declaration.workers)

    def check_hook(self, hook: Hook, owner: Placement | None) -> None:
        """All hooks can run where all objects are."""

    def object_of(self, role: Placement) -> Any:
        """Return the object of a role."""
        return self._objects[role]

    def model_config(self, role: Placement) -> Any:
        """Return what `model_config` of a role says."""
        return self._objects[role].model_config()
