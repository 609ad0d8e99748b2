"""Workers in processes of their own: steps go out as messages, values stay where they were made."""

from __future__ import annotations

import functools
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgpack

from ...errors import ConfigError, FlowError
from ..declare.declaration import Declaration, restartable
from ..declare.hooks import Hook
from ..declare.roles import Placement
from ..link.events import Joined, Left
from ..link.messages import (
    Abort,
    ElementsRead,
    End,
    Failure,
    Fetched,
    Free,
    MainTask,
    ReadElements,
    Ready,
    Result,
    State,
)
from ..link.stream import MasterStream
from ..master.holdings import Frees, Holdings
from ..master.master import DRIVER
from ..master.order.deadlines import Seen
from ..master.order.steps import Step
from ..process.objects import Objects
from ..process.orders import message_of
from ..process.part import Part
from ..process.work import Work
from ..store import DataManager
from ..store.ids import state_id
from ..store.segments import bytes_free
from ..store.values import Value
from ..store.weights.shown import Shown
from .backend import Back, Done, Event, Lost, WaitInterrupted
from .departures import Departures, losses_first, may_have_lost_a_peer
from .doing import Doing
from .elements import RemoteElements
from .host_processes import HostProcesses
from .sends import Sends, Sent
from .sightings import Sight, inside_of, look_at, sights_of

__all__ = ["ProcessBackend", "WorkerProcesses"]

#: How long a worker may take to answer what its native thread answers, seconds.
_ASK_S = 10.0
#: How long all workers may take to join after they have begun, seconds.
_JOIN_S = 60.0
#: One wait for messages while a worker is away: it may be given up meanwhile.
_SLICE_S = 0.5
#: One wait otherwise. Messages and signals end it, so it need not be short.
_LONG_SLICE_S = 60.0


class WorkerProcesses(Protocol):
    """The processes of the workers, and the connections to them."""

    def start(self) -> MasterStream:
        """Start all, and wait until each has made its objects.

        Raises:
            FlowError: one of them failed, with its traceback.
        """

    def why(self, worker: int) -> str:
        """Return how the process of a worker that has left has ended."""

    def kill(self, worker: int, reason: str) -> None:
        """End the process of a worker at once, also one that is stopped, or have nothing more to do with it."""

    def restarts(self, worker: int) -> bool:
        """Return whether a worker that has left is started again, or has been."""

    def close(self) -> None:
        """End all; idempotent."""


class ProcessBackend:
    """Sends steps to worker processes. Functions without a role run in this process.

    Args:
        declaration: Declaration of the flow; it is checked that each worker can be a process.
        processes: Processes of the workers, not started yet.
        hosts: The same, where workers are not all on this host; None: they are.

    Raises:
        ConfigError: see `Declaration.check_processes`.
    """

    cuts_rows = True

    def __init__(
        self, declaration: Declaration, processes: WorkerProcesses, hosts: HostProcesses | None = None
    ) -> None:
        declaration.check_processes()
        self.doing = Doing()
        self._hosts = hosts
        self._sends = Sends(self._deliver, self._tell)
        self._declaration = declaration
        self._processes = processes
        self._has_begun = False
        self._link: MasterStream | None = None
        self._store: DataManager | None = None
        self._pids: dict[int, int] = {}
        self._departures = Departures()
        self._left, self._away = self._departures.left, self._departures.away
        #: Workers with processes on this host.
        self._here: set[int] = set()
        self._restartable = restartable(declaration)
        self._own: deque[tuple[Step, Work | None]] = deque()
        self._sent: dict[int, Sent] = {}
        #: Exception of the function without a role that has failed last.
        self._raised: list[BaseException] = []
        self._events: list[Event] = []
        self.elements = RemoteElements(declaration, self._request, self._ask)

    def open(self, held: Holdings) -> list[Hook]:
        """Start the workers; returns the hooks by which roles get the weights of roles of other workers.

        Args:
            held: See `Backend.open`.

        Raises:
            FlowError: a worker failed before it had made its objects.
        """
        links = self._hosts.links() if self._hosts is not None else None
        # This process comes after all workers: by this number places name it.
        self._store = DataManager(max(self._declaration.workers) + 1, links=links)
        self._sends.held = held
        arrived = functools.partial(self._sends.arrived, DRIVER)
        self._part = Part(self._declaration, Objects((), DRIVER), self._store, arrived, self._raised.append)
        try:
            self._link = self._processes.start()
            self._join(self._link)
            if self._hosts is not None:
                nodes, here = self._hosts.nodes(), self._store.node
                held.begin({**nodes, DRIVER: here})
                # Hosts may have equal names.
                self._here = {worker for worker, node in nodes.items() if node == here}
        except BaseException:
            self.close(goes_on=self._has_begun)
            raise
        self._has_begun = True
        return list(self._declaration.first_publishing())

    def _join(self, link: MasterStream) -> None:
        end_s = time.monotonic() + _JOIN_S
        while set(self._pids) != set(self._declaration.workers):
            for event in link.receive(_SLICE_S):
                if isinstance(event, Joined):
                    self._pids[event.worker] = event.pid
                    if event.host == socket.gethostname():
                        self._here.add(event.worker)
                elif isinstance(event, Left):
                    raise FlowError(
                        f"worker {event.worker} is lost: {self._why(event)}; not all workers had joined"
                    )
            if time.monotonic() > end_s:
                missing = sorted(set(self._declaration.workers) - set(self._pids))
                raise FlowError(f"workers {missing} have not joined after {_JOIN_S:g} s")

    def close(self, *, goes_on: bool = False) -> None:
        """End the workers. Those on other hosts begin anew by themselves if the flow goes on."""
        link, self._link = self._link, None
        store, self._store = self._store, None
        try:
            if link is not None and not (goes_on and self._hosts is not None):
                for worker in set(self._pids) - self._left | self._away:
                    link.send(worker, End())
            self._processes.close()
        finally:
            if link is not None:
                link.close()
            if store is not None:
                store.close()
        self._pids, self._here = {}, set()
        self._departures.clear()
        self._own.clear()
        self._sent.clear()
        self._sends.close()
        self._events.clear()
        self.elements.close()

    def put(self, column: str, ids: Sequence[int], values: Sequence[Value]) -> Sequence[Any]:
        """Keep values of rows in this process."""
        assert self._store is not None
        return self._store.put(column, ids, values)

    def values(self, places: Sequence[Any]) -> list[Value]:
        """Copy values from the processes that hold them."""
        assert self._store is not None
        return self._store.get(places)

    def free(self, frees: Frees) -> None:
        """Have workers drop rows."""
        for worker, ids in frees.items():
            if worker == DRIVER:
                if self._store is not None:
                    self._store.free(ids)
            elif self._link is not None and worker not in self._left:
                self._link.send(worker, Free(tuple(ids)))

    def free_bytes(self) -> int:
        """Return what /dev/shm has free on the host with the least."""
        return min(bytes_free(), self._hosts.free_bytes()) if self._hosts is not None else bytes_free()

    def send(self, worker: int, step: Step, work: Callable[[], Work | None]) -> None:
        """Send a step."""
        if self._has_left(worker):
            return
        sent = self._sent.setdefault(step.ticket, Sent(step, n_gone=self._departures.n_gone))
        sent.open.add(worker)
        self._sends.step(worker, step, work)

    def _deliver(self, worker: int, step: Step, made: Work | None) -> None:
        assert self._link is not None
        self._sent[step.ticket].works[worker] = made
        if worker == DRIVER:
            self._own.append((step, made))
        elif made is None:
            self._end(worker, Result(step.ticket))
        elif worker not in self._left:
            self._link.send(worker, message_of(self._declaration, step, made))

    def abort(self, worker: int, abort: Abort) -> None:
        """Have a worker skip a step."""
        if self._sends.abort(worker, abort.ticket):
            self._end(worker, _aborted(abort))
        elif worker == DRIVER:
            waiting = [one for one in self._own if one[0].ticket == abort.ticket]
            if waiting:
                self._own.remove(waiting[0])
                self._end(worker, _aborted(abort))
        elif self._link is not None and worker not in self._left:
            self._link.send(worker, abort)

    def wait(self, timeout_s: float | None) -> list[Event]:
        """Return what has ended; a function without a role runs here when there is nothing else."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._receive(0.0)
        if not self._events and self._own:
            self._run(*self._own.popleft())
        while not self._events and (self._sent or self._away or self.elements):
            if self._own:  # its values have arrived
                self._run(*self._own.popleft())
                continue
            self._check_away()
            if self._events:
                break
            left_s = _SLICE_S if self._away else _LONG_SLICE_S
            if end_s is not None:
                left_s = min(left_s, end_s - time.monotonic())
            if left_s <= 0:
                break
            self._receive(left_s)
        if self._departures.ending or any(map(self._may_have_lost_a_peer, self._events)):
            self._departures.await_known(self._receive, self._store.node if self._store is not None else None)
        events, self._events = self._events, []
        return losses_first(events)

    def _check_away(self) -> None:
        """Note which workers are not started again any more."""
        for worker in [worker for worker in self._away if not self._processes.restarts(worker)]:
            self._away.discard(worker)
            self._events.append(Lost(worker, self._why(Left(worker, "it is not started again"))))

    def _may_have_lost_a_peer(self, event: Event) -> bool:
        return may_have_lost_a_peer(
            event, is_shared=isinstance(event, Done) and event.result.ticket in self._sent
        )

    def look(self, ticket: int, workers: Iterable[int]) -> dict[int, Seen]:
        """Ask workers that have not ended a step, and look at their processes."""
        assert self._link is not None
        found = {
            worker: look_at(self._link, worker, self._pids[worker] if worker in self._here else None)
            for worker in sorted(set(workers) & set(self._pids) - self._left)
        }
        self._receive(0.0)  # what they had sent before they answered
        sent = self._sent.get(ticket)
        return {worker: one for worker, one in found.items() if sent is not None and worker in sent.open}

    def held_back(self) -> frozenset[int]:
        """Return tickets of steps that wait for values."""
        return self._sends.held_back()

    def sights(self, timeout_s: float, *, stacks: bool = False) -> dict[int, Sight]:
        """Return what each worker process is inside of; any thread may ask."""
        link, left = self._link, set(self._left)
        pids = {worker: pid for worker, pid in list(self._pids.items()) if worker not in left}
        return {} if link is None else sights_of(link, pids, self._here, timeout_s, stacks=stacks)

    def end(self, worker: int, reason: str) -> None:
        """End the process of a worker. It has left at once: a process may take long to end."""
        if worker not in self._left:
            self._processes.kill(worker, reason)
            self._leave(Left(worker, reason), is_known=True)

    def beside(self) -> frozenset[int]:
        """Return the workers of this host."""
        return frozenset(self._here - self._left)

    def check_hook(self, hook: Hook, owner: Placement | None) -> None:
        """Check that the workers know a hook; see `Declaration.check_hook`."""
        self._declaration.check_hook(hook, owner)

    def object_of(self, role: Placement) -> Any:
        """Objects are in the processes of their workers.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"the object of role {role.name!r} is in the process of worker {role.on[0]}; use a hook, or run the flow in "
            "one process"
        )

    def model_config(self, role: Placement) -> Any:
        """Return what `model_config` said after `setup`.

        Raises:
            FlowError: it failed, its value is none that a message can have, or the worker does not answer.
        """
        answer = msgpack.unpackb(self._ask(role.on[0], f"model_config {role.name}"), strict_map_key=False)
        if "error" in answer:
            raise FlowError(f"model_config of role {role.name!r}: {answer['error']}")
        return answer["value"]

    def inside(self) -> dict[int, dict[str, Any]]:
        """Return what each worker is inside of: ticket, name, and for how long; without a name if it waits.

        Raises:
            FlowError: a worker does not answer.
        """
        found = {}
        for worker in sorted(set(self._pids) - self._left):
            assert self._link is not None
            found[worker] = inside_of(self._link, worker, _ASK_S) | {"pid": self._pids[worker]}
        return found

    def _ask(self, worker: int, what: str) -> bytes:
        assert self._link is not None
        return self._link.ask(worker, what, _ASK_S).value

    def _receive(self, timeout_s: float) -> None:
        assert self._link is not None
        try:
            events = self._link.receive(timeout_s)
        except KeyboardInterrupt:
            raise WaitInterrupted from None
        for event in events:
            if isinstance(event, Left):
                self._leave(event)
            elif isinstance(event, Joined):
                self._pids[event.worker] = event.pid
            elif isinstance(event.message, Result):
                self._take(event.worker, event.message)
            elif isinstance(event.message, ElementsRead):
                self._events += self.elements.answered(event.worker, event.message)
            elif isinstance(event.message, State):
                self._relay(event.worker, event.message)
            elif isinstance(event.message, Fetched):
                self._fetched(event.worker, event.message)
            elif isinstance(event.message, Ready) and event.worker in self._left & self._restartable:
                self._departures.join(event.worker)
                self._note_node(event.worker, event.message.node)
                self._events.append(Back(event.worker))

    def _note_node(self, worker: int, node: str) -> None:
        self._sends.held.join(worker, node)
        if self._hosts is not None and self._store is not None:
            self._here -= {worker}
            self._here |= {worker} if node == self._store.node else set()

    def _fetched(self, worker: int, message: Fetched) -> None:
        sent = self._sent.get(message.ticket)
        if sent is not None and worker in sent.open:
            for column, places in message.columns.places.items():
                self._sends.arrived(worker, message.ticket, column, message.ids, places)

    def _take(self, worker: int, message: Result) -> None:
        sent = self._sent.get(message.ticket)
        if sent is None or worker not in sent.open:
            return
        self._end(worker, message)

    def _relay(self, worker: int, message: State) -> None:
        """Tell the other participants of a hook what a worker shows of the weights of its source."""
        sent = self._sent.get(message.ticket)
        if sent is None or worker not in sent.open:
            return
        self._sends.shown(worker, message)
        for other in sorted(sent.open - self._left - {worker, DRIVER}):
            self._sends.state(other, message)

    def _has_left(self, worker: int) -> bool:
        """Return whether `wait` has yet to return that a worker has left; another process may have its number by now.

        What the flow has for that worker meanwhile has no answer: it ends when it gets to know.
        """
        return worker in self._left or any(
            isinstance(one, Lost) and one.worker == worker for one in self._events
        )

    def _tell(self, worker: int, state: State) -> None:
        if self._link is not None and worker not in self._left:
            self._link.send(worker, state)

    def _request(self, worker: int, message: ReadElements) -> bool:
        """Have a worker read elements; returns False if it has left."""
        if self._link is None or self._has_left(worker):
            return False
        self._link.send(worker, message)
        return True

    def _end(self, worker: int, result: Result) -> None:
        self._events.append(Done(worker, result, self._raised.pop() if self._raised else None))
        sent = self._sent[result.ticket]
        work = sent.works.get(worker)
        if result.unread and isinstance(work, MainTask):
            self._departures.note_ending(work, sent.n_gone, list(self._pids))
        self._part_ended(worker, result.ticket)

    def _part_ended(self, worker: int, ticket: int) -> None:
        sent = self._sent[ticket]
        sent.open.discard(worker)
        if not sent.open:
            del self._sent[ticket]
            self.free(self._sends.held.drop([state_id(ticket)]))
        self._sends.ended(worker, ticket)

    def _leave(self, event: Left, *, is_known: bool = False) -> None:
        if event.worker in self._left:
            return
        self._departures.leave(event.worker)
        self._sends.lose(event.worker)
        self.elements.lose(event.worker)
        for ticket in [ticket for ticket, sent in self._sent.items() if event.worker in sent.open]:
            self._part_ended(event.worker, ticket)
        why = self._why(event)  # when the process has ended
        if is_known:
            why = f"process {self._pids[event.worker]}: {event.reason}"
        returns = event.worker in self._restartable and self._processes.restarts(event.worker)
        if returns:
            self._away.add(event.worker)
        self._events.append(Lost(event.worker, why, returns))

    def _why(self, event: Left) -> str:
        return f"process {self._pids.get(event.worker, '?')}: {self._processes.why(event.worker) or event.reason}"

    def _run(self, step: Step, work: Work | None) -> None:
        """Run a function without a role."""
        result = Result(step.ticket)
        if work is not None:
            with self.doing.what(f"runs {step.work}, a function without a role,"):
                result = self._part.run(work, step.ticket, _no_state, lambda shown: None)
        self._end(DRIVER, result)


def _aborted(abort: Abort) -> Result:
    """Return the result of a step that is skipped."""
    return Result(abort.ticket, failure=Failure(abort.reason, abort.reason))


def _no_state(role: int, known: int) -> list[Shown]:
    raise FlowError("a function without a role waits for weights")
