"""What is known of calls and steps that have not ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...errors import FlowError
from ..declare.calls import MFCDef
from ..declare.hooks import Hook
from ..declare.ranks import role_at
from ..declare.roles import Placement
from ..master.master import CallState
from ..master.order.steps import Order
from ..master.rows.table import Taken
from ..process.functions import Failure
from ..process.work import MainWork
from ..workers.backend import Done
from .merging import Reports

__all__ = ["CallTimes", "Observer", "Running", "SentTicket", "failure_of", "owner_of"]


class CallTimes:
    """Seconds of each step of a call by its name; of a step with several workers, those of the slowest one."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[int, float]] = {}

    def add(self, name: str, ticket: int, seconds: float) -> None:
        """A worker's part has ended.

        Args:
            name: Name of the hook, or of the part of a main step.
            ticket: Ticket of the step.
            seconds: Seconds that the worker's part took.
        """
        steps = self._steps.setdefault(name, {})
        steps[ticket] = max(steps.get(ticket, 0.0), seconds)

    def by_name(self) -> dict[str, float]:
        """Return the sum over steps of one name."""
        return {name: sum(steps.values()) for name, steps in self._steps.items()}


@dataclass
class Running:
    """What is known of a call between its steps."""

    state: CallState
    ids: tuple[int, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)
    times: CallTimes = field(default_factory=CallTimes)
    digest: str = ""
    not_finite: dict[str, int] = field(default_factory=dict)
    error: FlowError | None = None
    cause: BaseException | None = None


@dataclass
class SentTicket:
    """A step that was sent.

    Attributes:
        order: Order of the step.
        missing: Workers that have not reported its end.
        ids: Ids of the rows that it reads.
        parts: Part of the work of each worker, for a function on several workers.
        reports: Reports of what workers have done.
        n_disturbed: See `RowTable`; the count when the step was sent.
    """

    order: Order
    missing: set[int]
    ids: tuple[int, ...] = ()
    parts: dict[int, MainWork] | None = None
    reports: Reports = field(default_factory=Reports)
    n_disturbed: int = 0


class Observer(Protocol):
    """What is told of parts of steps that have ended, and of rows that have gone."""

    def note(self, done: Done, order: Order, call: MFCDef | None, taken: Taken | None, n_rows: int) -> None:
        """A worker's part in a step has ended.

        Args:
            done: End of the part.
            order: Order of the step.
            call: Function of the step; None: it is a hook.
            taken: Rows of the call; None: they are not known, or it has none.
            n_rows: Number of rows in the flow.
        """

    def drop(self, ids: Sequence[int]) -> None:
        """Rows have left the flow."""


def failure_of(state: CallState, work: object, failure: Failure, where: str) -> FlowError:
    """Return the error of a call of which a step has failed."""
    what = f"hook {work.name} of {state.call.name}" if isinstance(work, Hook) else state.call.name
    ids = state.taken.ids if state.taken is not None else ()
    some = f" on {len(ids)} rows {list(ids[:8])}{' ...' if len(ids) > 8 else ''}" if ids else ""
    return FlowError(f"{what} failed{where}{some}: {failure.text}")


def owner_of(state: CallState, calls: Mapping[str, MFCDef]) -> Placement | None:
    """Return the role of a call: of a pool the replica that has it; None for hooks, and functions without a role."""
    role = calls[state.function.name].model_name if state.function is not None else None
    return role_at(role, min(state.call.mains)) if role is not None else None
