"""What is known of a step that was sent to workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..order.steps import Order
from ..worker.work import Work

__all__ = ["Sent"]


@dataclass
class Sent:
    """A ticket that was sent.

    Attributes:
        order: Order of the step.
        open: Workers that have not reported.
        all: Workers that got the order.
        shown_by: Workers that keep weights for others.
        works: Work that each worker was sent.
        n_gone: Number of departures of workers by then.
    """

    order: Order
    open: set[int] = field(default_factory=set)
    all: set[int] = field(default_factory=set)
    shown_by: set[int] = field(default_factory=set)
    works: dict[int, Work | None] = field(default_factory=dict)
    n_gone: int = 0
