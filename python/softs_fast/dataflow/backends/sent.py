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
        order: of the step.
        open: workers that have not reported.
        all: workers that got it.
        shown_by: workers that keep weights for others.
        works: what each worker was told.
        n_gone: how many workers had left by then.
    """

    order: Order
    open: set[int] = field(default_factory=set)
    all: set[int] = field(default_factory=set)
    shown_by: set[int] = field(default_factory=set)
    works: dict[int, Work | None] = field(default_factory=dict)
    n_gone: int = 0
