"""What a master sends to workers of several nodes: steps wait for values that are on their way to the node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ... import records
from ..link.messages import Columns, MainTask, MoveTask, State
from ..master.holdings import Holdings
from ..master.order.steps import Step
from ..process.part import weights_column
from ..process.work import Work
from ..store.ids import state_id
from ..store.places import Place

__all__ = ["Sends", "Sent"]


@dataclass
class Sent:
    """A step that was sent.

    Attributes:
        step: Step with its ticket.
        open: Workers that have not reported.
        works: Work that each worker was sent.
        n_gone: Number of departures of workers by then.
    """

    step: Step
    open: set[int] = field(default_factory=set)
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
        held: Tracker of values.
    """

    deliver: Callable[[int, Step, Work | None], None]
    tell: Callable[[int, State], None]
    held: Holdings = field(default_factory=Holdings)
    #: Of each worker the steps that wait, the oldest first.
    _steps: dict[int, deque[tuple[Step, _WorkOf]]] = field(default_factory=dict, init=False)
    _states: list[tuple[int, State]] = field(default_factory=list, init=False)

    def close(self) -> None:
        """Drop all that waits."""
        self._steps.clear()
        self._states.clear()

    def step(self, worker: int, step: Step, work: _WorkOf) -> None:
        """Send a step to a worker, at once or when its values are on its node."""
        waiting = self._steps.setdefault(worker, deque())
        waiting.append((step, work))
        if len(waiting) > 1:
            # Steps come by ticket, and so do claims, also of what waits behind another one.
            self._claim(worker, step, work)
        self._let_go(worker)

    def shown(self, worker: int, state: State) -> None:
        """A worker shows weights, until its step has ended."""
        ids = (state_id(state.ticket),)
        if ids[0] not in self.held:
            self.held.admit(ids)
        self.held.put(ids, {weights_column(state.shown.place): (state.shown.place,)}, worker)

    def state(self, worker: int, state: State) -> None:
        """Tell a worker where weights are; one of each other node gets them from there, the rest of it from that one."""
        made, column = state.shown.place, weights_column(state.shown.place)
        chosen = self.held.choose(worker, state.ticket, (state_id(state.ticket),), {column: (made,)})
        if chosen is None:
            self._states.append((worker, state))
            return
        [near] = chosen[column]
        self.tell(worker, replace(state, near=near if near != made else None))

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
        self.held.arrived(worker, ticket, column, ids, places)
        self._let_all_go()

    def ended(self, worker: int, ticket: int) -> None:
        """A worker's part in a step has ended."""
        if self.held.ended(worker, ticket):
            self._claim_all()
        self._let_all_go()

    def lose(self, worker: int) -> None:
        """A worker has ended. What is lost for good is for the flow to find, when it gets to know."""
        self._steps.pop(worker, None)
        self._states = [one for one in self._states if one[0] != worker]
        self.held.lose(worker)
        self._claim_all()
        self._let_all_go()

    # --- What is known ---

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
        if isinstance(made, MainTask | MoveTask):
            self.held.claim(worker, step.ticket, made.ids, made.columns.places)

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
            if isinstance(made, MainTask | MoveTask):
                chosen = self.held.choose(worker, step.ticket, made.ids, made.columns.places)
                if chosen is None:
                    return
                made = records.replace(made, columns=Columns.of(chosen))
            waiting.popleft()
            self.deliver(worker, step, made)
