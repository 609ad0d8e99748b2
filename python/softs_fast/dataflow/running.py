"""What is known of calls and steps that have not ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import FlowError
from .declare.calls import MFCDef
from .declare.hooks import Hook
from .declare.ranks import role_at
from .declare.roles import Placement
from .master import CallState
from .order.steps import Order
from .parallel.merging import Reports
from .times import CallTimes
from .worker.functions import Failure
from .worker.work import MainWork

__all__ = ["Running", "SentTicket", "failure_of", "owner_of"]


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
