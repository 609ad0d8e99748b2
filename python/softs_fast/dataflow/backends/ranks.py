"""All workers in this process, each with objects of its own: what worker processes do, one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

from ...errors import ConfigError, FlowError
from ..declare.declaration import Declaration
from ..declare.hooks import Hook
from ..declare.roles import Placement
from ..ids import state_id
from ..lockstep.groups import LockstepGroups, Meetings
from ..lockstep.objects import LockstepObjects
from ..lockstep.threads import Ended, LockstepThreads
from ..master import DRIVER
from ..moves import DataManager
from ..objects import Objects
from ..order.steps import Abort, Order
from ..values import Value
from ..watch.doing import Doing
from ..weights.shown import Shown
from ..worker.functions import Failure, Outcome
from ..worker.orders import message_of, work_of
from ..worker.part import Part
from ..worker.process import check_same
from ..worker.work import MainWork, Work
from .backend import Done, Event
from .elements import LockstepElements
from .one_process import OneProcess

__all__ = ["RankBackend"]


@dataclass(frozen=True)
class _Worker:
    """What a worker process would have.

    Attributes:
        declaration: of the flow that it has built.
        store: of its rows.
        objects: of its roles.
        part: runs its part of steps.
    """

    declaration: Declaration
    store: DataManager
    objects: Objects
    part: Part


class RankBackend(OneProcess):
    """Runs steps by ticket; the workers of one step in lockstep, each in a thread of its own.

    Args:
        declaration: of the flow.
        build: returns the declaration of a flow that is made anew; called once for each worker, as if in its process.

    Raises:
        ConfigError: see `Declaration.check_processes`; or ranks of a role are no replicas.
    """

    cuts_rows = True

    def __init__(self, declaration: Declaration, build: Callable[[], Declaration]) -> None:
        declaration.check_processes()
        for role in declaration.roles:
            others = [dim for dim, size in role.layout.dims if dim != "dp" and size > 1]
            if others:
                raise ConfigError(
                    f"role {role.name!r} has layout {str(role.layout)!r}, and {', '.join(others)} needs process groups of "
                    "torch, which one process does not have; leave out workers=1, or give it a layout of dp alone"
                )
        self.doing = Doing()
        self._declaration = declaration
        self._build = build
        self._threads: LockstepThreads | None = None
        self._workers: dict[int, _Worker] = {}
        self._store: DataManager | None = None
        self._orders: list[tuple[int, Order]] = []
        self._missing: dict[int, dict[int, Callable[[], Work | None]]] = {}
        self._skipped: list[Event] = []
        self.elements = LockstepElements(declaration, self._in_thread)
        #: Weights that workers show in the step of now, by the worker that they are for.
        self._shown: dict[int, list[Shown]] = defaultdict(list)

    def open(self) -> list[Hook]:
        """Make the objects of all workers; returns the hooks by which roles get the weights of roles of other workers.

        Raises:
            FlowError: a role could not be made.
        """
        numbers = self._declaration.workers
        self._store = DataManager(max(numbers) + 1)
        self._part = Part(self._declaration, Objects((), DRIVER), self._store)
        self._threads = LockstepThreads(numbers)
        meetings = Meetings(self._threads)
        try:
            self._all(lambda worker: self._begin(worker, meetings))
            self._all(self._setup)
        except BaseException:
            self.close()
            raise
        return list(self._declaration.first_publishing())

    def _all(self, action: Callable[[int], None]) -> None:
        assert self._threads is not None
        ended = self._threads.run(
            {worker: lambda worker=worker: action(worker) for worker in self._declaration.workers}  # type: ignore[misc]
        )
        failed = [
            (one.was_stuck, worker, one.error) for worker, one in ended.items() if one.error is not None
        ]
        for _, worker, error in sorted(failed, key=lambda one: one[:2]):
            raise FlowError(
                f"the workers of the flow could not begin: worker {worker}: {Failure.of(error).text}"
            ) from error

    def _begin(self, worker: int, meetings: Meetings) -> None:
        declaration = self._build()
        check_same(worker, self._declaration.lines(), declaration.lines())
        store = DataManager(worker)
        objects = LockstepObjects(declaration.roles, worker, LockstepGroups(meetings, worker))
        self._workers[worker] = _Worker(declaration, store, objects, Part(declaration, objects, store))

    def _setup(self, worker: int) -> None:
        one = self._workers[worker]
        one.objects.setup()
        self.elements.setup(worker, one.declaration, one.store, one.objects)

    def close(self, *, goes_on: bool = False) -> None:
        """Drop all objects and rows, and end the threads."""
        threads, self._threads = self._threads, None
        store, self._store = self._store, None
        workers, self._workers = self._workers, {}
        self.elements.close()
        try:
            if threads is not None and not threads.is_interrupted:
                closing = {number: one.objects.close for number, one in workers.items()}
                for one in threads.run(closing).values():
                    if one.error is not None:
                        raise one.error
        finally:
            if threads is not None:
                threads.close()
            for each in workers.values():
                each.store.close()
            if store is not None:
                store.close()
            self._orders.clear()
            self._missing.clear()
            self._skipped.clear()
            self.elements.close()
            self._shown.clear()

    def put(self, column: str, ids: Sequence[int], values: Sequence[Value]) -> Sequence[Any]:
        """Keep values of rows."""
        assert self._store is not None
        return self._store.put(column, ids, values)

    def values(self, places: Sequence[Any]) -> list[Value]:
        """Copy values from the stores that hold them."""
        assert self._store is not None
        return self._store.get(places)

    def free(self, worker: int, ids: Iterable[int]) -> None:
        """Drop rows of a worker."""
        ids = list(ids)
        if worker in self._workers:
            self._workers[worker].store.free(ids)
            self._workers[worker].part.kept.free(ids)
        elif worker == DRIVER and self._store is not None:
            self._store.free(ids)

    def send(self, worker: int, order: Order, work: Callable[[], Work | None]) -> None:
        """Keep an order until its ticket is the lowest."""
        if order.ticket not in self._missing:
            self._missing[order.ticket] = {}
            heappush(self._orders, (order.ticket, order))
        self._missing[order.ticket][worker] = work

    def abort(self, worker: int, abort: Abort) -> None:
        """Skip a step that has not begun."""
        if self._missing.get(abort.ticket, {}).pop(worker, None) is not None:
            outcome = Outcome(failure=Failure(abort.reason, abort.reason))
            self._skipped.append(Done(worker, abort.incarnation, abort.ticket, outcome))

    def wait(self, timeout_s: float | None) -> list[Event]:
        """Run the step with the lowest ticket, whatever it takes."""
        events, self._skipped = self._skipped, []
        if events or not self._orders:
            return events
        ticket, order = heappop(self._orders)
        works = {worker: work() for worker, work in sorted(self._missing.pop(ticket).items())}
        if not works:
            return self.wait(timeout_s)  # it was aborted
        name = order.step.work.name if isinstance(order.step.work, Hook) else order.step.work
        with self.doing.what(f"runs {name}"):
            if DRIVER in works:
                found = {DRIVER: Ended(self._run(self._part, works[DRIVER], ticket, DRIVER))}
            else:
                found = self._in_lockstep(order, works)
        # A worker that has waited for one that failed says less of it, or that another one could not read.
        ended = sorted(found.items(), key=lambda one: (one[1].was_stuck, one[1].value[0].unread))
        return [Done(worker, order.incarnation, ticket, *one.value) for worker, one in ended]

    def _in_lockstep(self, order: Order, works: dict[int, Work | None]) -> dict[int, Ended]:
        assert self._threads is not None
        parts = {}
        for worker, work in works.items():
            one = self._workers[worker]
            own = self._as_sent(one.declaration, order, work) if work is not None else None
            parts[worker] = lambda part=one.part, own=own, worker=worker: self._run(
                part, own, order.ticket, worker
            )
        try:
            found = self._threads.run(parts, lambda value: value[0].failure is not None)
        finally:
            self._shown.clear()
            for worker in works:
                self.free(worker, [state_id(order.ticket)])
        for ended in found.values():
            if ended.error is not None:
                raise ended.error  # such as SystemExit of a function
        return found

    def _as_sent(self, declaration: Declaration, order: Order, work: Work) -> Work:
        """Return what a worker would read of the message of an order: in terms of its own flow, with tags of its own."""
        if isinstance(work, MainWork):
            work = replace(work, tags=[dict(tags) for tags in work.tags])
        return work_of(declaration, message_of(self._declaration, order, work))

    def _run(self, part: Part, work: Work | None, ticket: int, worker: int) -> tuple[Outcome, int]:
        if work is None:
            return Outcome(), 0
        outcome, n_bytes = part.run(
            work,
            ticket,
            lambda role, known: self._await_state(worker, role, known),
            lambda shown: self._show(worker, ticket, shown),
        )
        return outcome, n_bytes

    def _show(self, worker: int, ticket: int, shown: Shown) -> None:
        assert self._threads is not None
        for other in self._workers:
            if other != worker:
                self._shown[other].append(shown)
                self._threads.wake(other)

    def _await_state(self, worker: int, role: int, known: int) -> list[Shown]:
        assert self._threads is not None
        while True:
            found = [one for one in self._shown[worker] if one.role == role]
            if len(found) > known:
                return found
            self._threads.wait(worker, "the weights of another worker")

    def beside(self) -> frozenset[int]:
        """All workers are here."""
        return frozenset(self._declaration.workers)

    def nodes(self) -> dict[int, int]:
        """All is in one process, and so on one node."""
        workers = self._declaration.workers
        return dict.fromkeys((*workers, max(workers) + 1), 0)

    def holders(self, column: str, ids: Sequence[int], places: Sequence[Any]) -> list[tuple[int, ...]]:
        """Return the worker that has each value."""
        return [(place.worker,) for place in places]

    def check_hook(self, hook: Hook, owner: Placement | None) -> None:
        """Check that worker processes could run a hook; see `Declaration.check_hook`."""
        self._declaration.check_hook(hook, owner)

    def object_of(self, role: Placement) -> Any:
        """Return the object of a role; that of its first worker, if there are several."""
        return self._of(role, lambda one: one)

    def model_config(self, role: Placement) -> Any:
        """Return what `model_config` of a role says, on its first worker."""
        return self._of(role, lambda one: one.model_config())

    def _of(self, role: Placement, action: Callable[[Any], Any]) -> Any:
        worker, number = role.on[0], self._declaration.roles.index(role)
        own = self._workers[worker]
        return self._in_thread(worker, lambda: action(own.objects[own.declaration.roles[number]]))

    def _in_thread(self, worker: int, action: Callable[[], Any]) -> Any:
        assert self._threads is not None
        ended = self._threads.run({worker: action})[worker]
        if ended.error is not None:
            raise ended.error
        return ended.value
