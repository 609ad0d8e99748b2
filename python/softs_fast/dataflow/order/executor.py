"""A worker's side of the order: steps strictly by ticket."""

from __future__ import annotations

from collections import deque
from typing import Literal

from .steps import Abort, Order

__all__ = ["Executor"]


class Executor:
    """Which step a worker runs next. It begins one when the one before has ended, and never out of order."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._last = 0
        self._queue: deque[Order] = deque()
        self._inside: Order | None = None

    @property
    def inside(self) -> Order | None:
        """The step that is running."""
        return self._inside

    @property
    def waiting(self) -> int:
        """How many steps are waiting."""
        return len(self._queue)

    def receive(self, order: Order) -> bool:
        """Take an order; returns False for one of an older master, which is dropped.

        A newer master has an order of its own: what waits of the older one is dropped.

        Raises:
            ValueError: the ticket does not follow those before it, so the connection has lost or mixed messages.
        """
        if order.incarnation < self._incarnation:
            return False
        if order.incarnation > self._incarnation:
            self._incarnation, self._last = order.incarnation, 0
            self._queue.clear()
        if order.ticket <= self._last:
            raise ValueError(f"ticket {order.ticket} arrived after ticket {self._last}")
        self._last = order.ticket
        self._queue.append(order)
        return True

    def enter(self) -> Order | None:
        """Return the step that begins now; None if one is running or none waits."""
        if self._inside is not None or not self._queue:
            return None
        self._inside = self._queue.popleft()
        return self._inside

    def leave(self) -> Order:
        """The step that was running has ended; returns it.

        Raises:
            ValueError: none was running.
        """
        if self._inside is None:
            raise ValueError("no step is running")
        order, self._inside = self._inside, None
        return order

    def abort(self, abort: Abort) -> Literal["inside", "skipped", "gone"]:
        """Take an abort.

        Returns:
            "inside": the step is running, and the caller has it return; "skipped": it will not run, and the caller
            reports that; "gone": it has ended, or is of another master.
        """
        if abort.incarnation != self._incarnation:
            return "gone"
        if self._inside is not None and (self._inside.incarnation, self._inside.ticket) == (
            abort.incarnation,
            abort.ticket,
        ):
            return "inside"
        for order in self._queue:
            if order.ticket == abort.ticket:
                self._queue.remove(order)
                return "skipped"
        return "gone"
