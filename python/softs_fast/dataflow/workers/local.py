"""All workers in this process: their steps run one after the other, by ticket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from torch import Tensor

from ...user_code import is_ctrl_c
from ..declare.declaration import Declaration
from ..declare.hooks import Hook, LoadRows
from ..declare.roles import Placement
from ..master.holdings import Frees, Holdings
from ..master.order.deadlines import Seen
from ..master.order.steps import Abort, Order
from ..process.devices import device_work
from ..process.functions import Batch, Failure, Outcome, call_function
from ..process.objects import Objects
from ..process.saved_rows import load_rows
from ..process.work import HookWork, MainWork, Work
from ..store.values import Value, n_bytes_of
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
        self._functions = {one.name: one for one in declaration.calls}
        self._objects = Objects(declaration.roles)
        self._orders: list[tuple[int, Order, Callable[[], Work | None]]] = []
        self._missing: dict[int, list[int]] = {}
        self._skipped: list[Event] = []
        self.elements = LocalElements(declaration)

    def open(self, held: Holdings) -> list[Hook]:
        """Make the objects, and have them give all shards."""
        self._objects.setup()
        self.elements.open(self._objects)
        return []

    def close(self, *, goes_on: bool = False) -> None:
        """Drop the objects, and orders that have not run."""
        self._orders.clear()
        self._missing.clear()
        self._skipped.clear()
        self.elements.close()
        self._objects.close()

    def put(self, column: str, ids: Sequence[int], values: Sequence[Value]) -> Sequence[Value]:
        """Return the values: they are here."""
        return values

    def values(self, places: Sequence[Any]) -> list[Value]:
        """Copy values: what is changed in a copy is not seen by others, as with workers in other processes."""
        return [_copy(value) for value in places]

    def free_bytes(self) -> None:
        """Values are in this process."""

    def free(self, frees: Frees) -> None:
        """Values go with their last place."""

    def send(self, worker: int, order: Order, work: Callable[[], Work | None]) -> None:
        """Keep an order until its ticket is the lowest."""
        if order.ticket not in self._missing:
            self._missing[order.ticket] = []
            heappush(self._orders, (order.ticket, order, work))
        self._missing[order.ticket].append(worker)

    def abort(self, worker: int, abort: Abort) -> None:
        """Skip a step that has not begun."""
        waiting = self._missing.get(abort.ticket, [])
        if worker in waiting:
            waiting.remove(worker)
            outcome = Outcome(failure=Failure(abort.reason, abort.reason))
            self._skipped.append(Done(worker, abort.incarnation, abort.ticket, outcome))

    def wait(self, timeout_s: float | None) -> list[Event]:
        """Run the step with the lowest ticket, whatever it takes."""
        events, self._skipped = self._skipped, []
        if events or not self._orders:
            return events
        ticket, order, work = heappop(self._orders)
        workers = self._missing.pop(ticket)
        if not workers:
            return self.wait(timeout_s)  # it was aborted
        name = order.step.work.name if isinstance(order.step.work, Hook) else order.step.work
        with self.doing.what(f"runs {name}"):
            outcome, n_bytes = self._run(work, workers[0])
        first = Done(workers[0], order.incarnation, ticket, outcome, n_bytes)
        # All workers are the one that has run it.
        return [
            first,
            *(
                Done(worker, order.incarnation, ticket, Outcome(failure=outcome.failure))
                for worker in workers[1:]
            ),
        ]

    def look(self, ticket: int, workers: Iterable[int]) -> dict[int, Seen]:
        """There are no processes, and nothing here can end a function."""
        return {}

    def held_back(self) -> frozenset[int]:
        """All orders are there at once."""
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

    def _run(self, describe: Callable[[], Work | None], worker: int) -> tuple[Outcome, int]:
        work = describe()
        outcome, n_bytes, began = Outcome(), 0, time.monotonic()
        try:
            if isinstance(work, MainWork):
                columns = {name: self.values(places) for name, places in work.columns.items()}
                batch = Batch(work.ids, columns, work.tags, work.step, work.use, work.ends_step, work.age)
                declared = self._declaration
                outcome = call_function(
                    self._functions[work.function],
                    self._objects,
                    batch,
                    worker=worker,
                    group=declared.group,
                    digests=declared.digests,
                )
                n_bytes = sum(n_bytes_of(value) for values in outcome.columns.values() for value in values)
            elif isinstance(work, HookWork) and isinstance(work.hook, LoadRows):
                outcome = load_rows(work.hook, lambda column, ids, values: values)
            elif isinstance(work, HookWork):  # rows need not be moved: they are here
                with device_work():
                    outcome.numbers = self._objects.run(work.hook, work.owner, work.step)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            outcome = Outcome(failure=Failure.of(error))
        outcome.began_s, outcome.seconds = began, time.monotonic() - began
        return outcome, n_bytes


def _copy(value: Value) -> Value:
    if isinstance(value, Tensor):
        return value.clone()
    return [one.clone() for one in value] if isinstance(value, list) else value
