"""What a master sends to workers of several nodes: orders wait for values that are on their way to the node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..link.messages import State
from ..master.holdings import Holdings
from ..master.order.steps import Order
from ..process.part import weights_column
from ..process.work import MainWork, MoveWork, Work
from ..store.ids import state_id
from ..store.places import Place

__all__ = ["Sends", "Sent"]


@dataclass
class Sent:
    """A ticket that was sent.

    Attributes:
        order: Order of the step.
        open: Workers that have not reported.
        works: Work that each worker was sent.
        n_gone: Number of departures of workers by then.
    """

    order: Order
    open: set[int] = field(default_factory=set)
    works: dict[int, Work | None] = field(default_factory=dict)
    n_gone: int = 0


#: What says what is to be done, when it is asked: rows may have been dropped by then.
_WorkOf = Callable[[], Work | None]


@dataclass
class Sends:
    """Passes on orders and weights, those of each worker in their order.

    Args:
        deliver: Function that sends an order to a worker.
        tell: Function that sends a worker where weights are.
        held: Tracker of values.
    """

    deliver: Callable[[int, Order, Work | None], None]
    tell: Callable[[int, State], None]
    held: Holdings = field(default_factory=Holdings)
    #: Of each worker the orders that wait, the oldest first.
    _orders: dict[int, deque[tuple[Order, _WorkOf]]] = field(default_factory=dict, init=False)
    _states: list[tuple[int, State]] = field(default_factory=list, init=False)

    def close(self) -> None:
        """Drop all that waits."""
        self._orders.clear()
        self._states.clear()

    def order(self, worker: int, order: Order, work: _WorkOf) -> None:
        """Send an order to a worker, at once or when its values are on its node."""
        waiting = self._orders.setdefault(worker, deque())
        waiting.append((order, work))
        if len(waiting) > 1:
            # Orders come by ticket, and so do claims, also of what waits behind another one.
            self._claim(worker, order, work)
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
        """Drop an order that waits; returns whether it did."""
        waiting = self._orders.get(worker, deque())
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
        self._orders.pop(worker, None)
        self._states = [one for one in self._states if one[0] != worker]
        self.held.lose(worker)
        self._claim_all()
        self._let_all_go()

    # --- What is known ---

    def held_back(self) -> frozenset[int]:
        """Return tickets of orders that wait."""
        return frozenset(order.ticket for orders in self._orders.values() for order, _ in orders)

    # --- Inside ---

    def _claim_all(self) -> None:
        """What some have claimed does not come: the next steps that wait claim it, in the order in which they came.

        Participants of one step come by their numbers: otherwise two of them could wait for each other.
        """
        waiting = [(worker, *one) for worker, orders in self._orders.items() for one in orders]
        for worker, order, work in sorted(waiting, key=lambda one: (one[1].ticket, one[0])):
            self._claim(worker, order, work)

    def _claim(self, worker: int, order: Order, work: _WorkOf) -> None:
        made = work()
        if isinstance(made, MainWork | MoveWork):
            self.held.claim(worker, order.ticket, made.ids, made.columns)

    def _let_all_go(self) -> None:
        for worker in list(self._orders):
            self._let_go(worker)
        states, self._states = self._states, []
        for worker, state in states:
            self.state(worker, state)

    def _let_go(self, worker: int) -> None:
        waiting = self._orders.get(worker)
        while waiting:
            order, work = waiting[0]
            made = work()
            if isinstance(made, MainWork | MoveWork):
                chosen = self.held.choose(worker, order.ticket, made.ids, made.columns)
                if chosen is None:
                    return
                made = replace(made, columns=chosen)
            waiting.popleft()
            self.deliver(worker, order, made)
