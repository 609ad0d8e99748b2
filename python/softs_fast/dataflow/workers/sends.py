"""What a master sends to workers of several nodes: steps wait for values that are on their way to the node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ... import records
from ..link.messages import Columns, MainTask, MoveTask, State
from ..master.master import DRIVER
from ..master.order.steps import Step
from ..process.part import weights_column
from ..process.work import Work
from ..store import Copies, Place
from ..store.ids import state_id

__all__ = ["Sends", "Sent"]


@dataclass
class Sent:
    """A step that was sent.

    Attributes:
        step: Step with its ticket.
        open: Workers that have not reported, as far as their messages were taken.
        shown_by: Workers that keep weights for others.
        works: Work that each worker was sent.
        n_gone: Number of departures of workers by then.
    """

    step: Step
    open: set[int] = field(default_factory=set)
    shown_by: set[int] = field(default_factory=set)
    works: dict[int, Work | None] = field(default_factory=dict)
    n_gone: int = 0


#: What says what is to be done, when it is asked: rows may have been dropped by then.
_WorkOf = Callable[[], Work | None]


@dataclass
class Sends:
    """Passes on steps and weights, those of each worker in their order.

    Args:
        deliver: Function that sends a step to a worker.
        tell: Function that sends a worker where weights are.
        driver: Number by which places name the master's store.
    """

    deliver: Callable[[int, Step, Work | None], None]
    tell: Callable[[int, State], None]
    driver: int
    _copies: Copies | None = field(default=None, init=False)
    #: Of each worker the steps that wait, the oldest first.
    _steps: dict[int, deque[tuple[Step, _WorkOf]]] = field(default_factory=dict, init=False)
    _states: list[tuple[int, State]] = field(default_factory=list, init=False)

    def begin(self, nodes: Mapping[int, str]) -> None:
        """Workers are on these nodes, and so is the master, by its number; without a call all are on one."""
        self._copies = Copies(nodes)

    def close(self) -> None:
        """Drop all that waits."""
        self._copies = None
        self._steps.clear()
        self._states.clear()

    @property
    def n_bytes(self) -> int:
        """Bytes that were to go from one node to another, in all."""
        return self._copies.n_bytes if self._copies is not None else 0

    def step(self, worker: int, step: Step, work: _WorkOf) -> None:
        """Send a step to a worker, at once or when its values are on its node."""
        waiting = self._steps.setdefault(worker, deque())
        waiting.append((step, work))
        if len(waiting) > 1:
            # Steps come by ticket, and so do claims, also of what waits behind another one.
            self._claim(worker, step, work)
        self._let_go(worker)

    def state(self, worker: int, state: State) -> None:
        """Tell a worker where weights are; one of each other node gets them from there, the rest of it from that one."""
        if self._copies is not None:
            made, column = state.shown.place, weights_column(state.shown.place)
            chosen = self._copies.choose(worker, state.ticket, (state_id(state.ticket),), {column: (made,)})
            if chosen is None:
                self._states.append((worker, state))
                return
            [near] = chosen[column]
            state = replace(state, near=near if near != made else None)
        self.tell(worker, state)

    def abort(self, worker: int, ticket: int) -> bool:
        """Drop a step that waits; returns whether it did."""
        waiting = self._steps.get(worker, deque())
        for one in [one for one in waiting if one[0].ticket == ticket]:
            waiting.remove(one)
            return True
        return False

    # --- Events ---

    def arrived(
        self, worker: int, ticket: int, column: str, ids: Sequence[int], places: Sequence[Place]
    ) -> None:
        """A worker has got values from another node."""
        if self._copies is not None:
            self._copies.arrived(self._number(worker), ticket, column, ids, places)
            self._let_all_go()

    def ended(self, worker: int, ticket: int) -> None:
        """A worker's part in a step has ended."""
        if self._copies is not None:
            if self._copies.ended(self._number(worker), ticket):
                self._claim_all()
            self._let_all_go()

    def lose(self, worker: int) -> None:
        """A worker has ended."""
        self._steps.pop(worker, None)
        self._states = [one for one in self._states if one[0] != worker]
        if self._copies is not None:
            self._copies.lose(worker)
            self._claim_all()
            self._let_all_go()

    def join(self, worker: int, node: str) -> None:
        """A worker has been started again, perhaps on another node."""
        if self._copies is not None:
            self._copies.join(worker, node)

    def free(self, ids: Iterable[int]) -> dict[int, list[int]]:
        """Rows have gone; returns which workers have copies of which."""
        found = self._copies.free(ids) if self._copies is not None else {}
        return {DRIVER if worker == self.driver else worker: some for worker, some in found.items()}

    # --- What is known ---

    def nodes(self) -> dict[int, int] | None:
        """Return the number of the node of each worker, and of the master; None: all are on one."""
        return self._copies.nodes if self._copies is not None else None

    def held_back(self) -> frozenset[int]:
        """Return tickets of steps that wait."""
        return frozenset(step.ticket for steps in self._steps.values() for step, _ in steps)

    # --- Inside ---

    def _claim_all(self) -> None:
        """What some have claimed does not come: the next steps that wait claim it, in the order in which they came.

        Participants of one step come by their numbers: otherwise two of them could wait for each other.
        """
        waiting = [(worker, *one) for worker, steps in self._steps.items() for one in steps]
        for worker, step, work in sorted(waiting, key=lambda one: (one[1].ticket, one[0])):
            self._claim(worker, step, work)

    def _claim(self, worker: int, step: Step, work: _WorkOf) -> None:
        made = work()
        if self._copies is not None and isinstance(made, MainTask | MoveTask):
            self._copies.claim(self._number(worker), step.ticket, made.ids, made.columns.places)

    def _let_all_go(self) -> None:
        for worker in list(self._steps):
            self._let_go(worker)
        states, self._states = self._states, []
        for worker, state in states:
            self.state(worker, state)

    def _let_go(self, worker: int) -> None:
        waiting = self._steps.get(worker)
        while waiting:
            step, work = waiting[0]
            made = work()
            if self._copies is not None and isinstance(made, MainTask | MoveTask):
                chosen = self._copies.choose(self._number(worker), step.ticket, made.ids, made.columns.places)
                if chosen is None:
                    return
                made = records.replace(made, columns=Columns.of(chosen))
            waiting.popleft()
            self.deliver(worker, step, made)

    def _number(self, worker: int) -> int:
        return self.driver if worker == DRIVER else worker
