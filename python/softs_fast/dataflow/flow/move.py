"""Moves of rows by hand: a plan first, then the transfer."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ...errors import ConfigError
from ..declare.roles import Placement
from ..declare.transfer import DataTransfer, names_of
from ..engine.moving import plan_of_move
from ..master.master import DRIVER
from ..master.order.steps import Kind, Step
from ..store import RedistributionPlan
from .posted import OpenFlow, PostedCall

__all__ = ["PostedMove", "post_move"]


class PostedMove(PostedCall):
    """A move of rows that was posted by hand.

    Attributes:
        number: Number of the call.
        name: Name of the call, "data_transfer".
        plan: Plan by which the rows get there, from where they were when the move was posted.
    """

    def __init__(self, flow: OpenFlow, number: int, plan: RedistributionPlan) -> None:
        super().__init__(flow, number, "data_transfer")
        self.plan = plan

    def explain(self) -> str:
        """Return the numbers of the plan: slices, bytes and pulls between nodes, reads inside nodes."""
        return self.plan.explain()


def post_move(flow: OpenFlow, ids: Iterable[int], columns: str, to: Placement) -> PostedMove:
    """Plan a move, and park it until a flush names it.

    Args:
        flow: Flow that is open.
        ids: Ids of the rows, whole groups.
        columns: Names of the columns, such as "seq, logp".
        to: Role that will read them.

    Raises:
        ConfigError: the role is not in the flow, `columns` are no names, or rows are not there, have no such column, or
            are not whole groups.
    """
    wanted, names, group = tuple(ids), names_of(columns), flow.plan.group
    if to not in flow.declaration.roles:
        raise ConfigError(f"a move to role {to.name!r}, which is not in the flow")
    if not wanted:
        raise ConfigError(f"a move of {', '.join(names)} has no rows")
    held = flow._runner.held
    for row_id in wanted:
        missing = [name for name in names if name not in held.columns(row_id)]
        if missing:
            has = ", ".join(held.columns(row_id)) or "none, or is not in the flow"
            raise ConfigError(f"row {row_id} has no column {missing[0]!r} to be moved; it has {has}")
    is_whole = len(wanted) % group == 0 and all(
        wanted[first : first + group] == tuple(range(wanted[first], wanted[first] + group))
        and wanted[first] % group == 0
        for first in range(0, len(wanted), group)
    )
    if not is_whole or len(set(wanted)) != len(wanted):
        raise ConfigError(f"{len(wanted)} ids are not those of whole groups of {group} rows, each once")
    backend = flow._backend
    places = {name: held.places(wanted, name) for name in names}
    plan = plan_of_move(backend, to, group, wanted, places)
    has_nodes = len(set(backend.nodes().values())) > 1
    # On one node nothing has to be done: workers read rows where they are.
    workers = frozenset(to.on) if has_nodes else frozenset({DRIVER})
    step = Step(Kind.MAIN, workers, DataTransfer((to,), columns=names, ids=wanted), 0.1)
    number = flow._runner.master.post_steps("data_transfer", (step,), time.monotonic())
    flow._runner.posted[number] = None
    return PostedMove(flow, number, plan)
