"""The requests of a flow by hand: fetch, post, flush, ask, and what they need beside."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import ConfigError, FlowError
from ..declare.calls import TRAIN
from ..declare.hooks import Hook, Load
from ..declare.plan import FlowPlan
from ..declare.roles import Placement, RoleFunction
from ..declare.transfer import DataTransfer
from ..engine.runner import Runner
from ..process.state.checkpoints import last_checkpoint
from ..store.values import Value
from .posted import PostedCall, commit_posted
from .session import Session

__all__ = ["Requests"]

#: How long all workers together may take to say where they are, seconds.
_STACKS_S = 5.0


class Requests:
    """What a session can be asked by hand; `Flow` says what each request does.

    Args:
        session: Session of the flow.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def fetch(self, n_rows: int, partition: str) -> tuple[int, ...]:
        """Take rows from the source."""
        session = self._session
        session.check_open()
        session.admission.check_fetch(n_rows, partition)
        n_groups = n_rows // session.settings.plan.group
        with session.backend.doing.flow():
            while not session.admission.has(n_groups, partition):
                if not session.turn(automatic=False):
                    raise FlowError(
                        f"elements of partition {partition!r} do not arrive:\n{session.explain()}"
                    )
        return session.admission.fetch(n_rows, partition)

    def post(self, what: RoleFunction | Hook | str, ids: Iterable[int]) -> PostedCall:
        """Post a call, which waits for a flush."""
        session = self._session
        session.check_open()
        if isinstance(what, DataTransfer):
            raise ConfigError("data_transfer is posted without rows; declare it before or after a call")
        if isinstance(what, Hook):
            return PostedCall(session, session.post_hook(what), what.name)
        name = what.name if isinstance(what, RoleFunction) else what
        if session.settings.saves is not None and name in session.calls and session.calls[name].trains:
            raise ConfigError(
                f"{name} trains, and is posted by hand: a flow with a journal trains in steps alone"
            )
        try:
            number = session.runner.master.post(name, ids, time.monotonic())
        except ValueError as error:
            raise ConfigError(str(error)) from None
        session.runner.posted[number] = None
        return PostedCall(session, number, name)

    def flush(self, *calls: PostedCall) -> None:
        """Commit posted calls."""
        self._session.check_open()
        commit_posted(self._session, calls)

    def ask(self, what: str, role: Placement | None) -> Any:
        """Answer a non-blocking request."""
        session = self._session
        match what:
            case "spec":
                return _spec_of(session.settings.plan, self._n_elements())
            case "stats":
                return _stats_of(session.runner, session.n_steps)
            case "inside":
                session.check_open()
                return session.backend.inside()
            case "stacks":
                session.check_open()
                found = session.backend.sights(_STACKS_S, stacks=True)
                return {worker: one.stack for worker, one in found.items() if one.stack}
            case "model_config" if role is not None:
                session.check_open()
                return session.backend.model_config(self._one_of(role))
        raise ConfigError(
            f'ask {what!r}: need "spec", "stats", "inside", "stacks", or "model_config" with a role'
        )

    def values(self, ids: Iterable[int], column: str) -> list[Value]:
        """Return a column of rows."""
        wanted, held = list(ids), self._session.runner.held
        for row_id in wanted:
            if column not in held.columns(row_id):
                raise ConfigError(f"row {row_id} has no column {column!r}; it has {held.columns(row_id)}")
        return self._session.backend.values(held.places(wanted, column))

    def clear_data_cache(self, ids: Iterable[int]) -> int:
        """Drop rows with their groups."""
        runner = self._session.runner
        try:
            n = runner.master.rows.drop(ids, "cleared")
        except ValueError as error:
            raise ConfigError(str(error)) from None
        runner.free()
        return n

    def load(self, role: Placement, folder: str | Path) -> int:
        """Load a checkpoint of a role."""
        self._session.check_open()
        last_checkpoint(role.name, Path(folder))
        call = self.post(Load((role,), folder=Path(folder)), ())
        self.flush(call)
        step = int(call.result().numbers["step"])
        if self._session.settings.saves is not None:
            self._session.settings.saves.note_loaded(role, Path(folder))
        return step

    def role(self, role: Placement) -> Any:
        """Return the object of a role."""
        self._session.check_open()
        return self._session.backend.object_of(self._one_of(role))

    def _one_of(self, role: Placement) -> Placement:
        """Return a role; of a pool a replica that is there."""
        living = [one for one in role.replicas if one.on[0] in self._session.runner.master.order.alive]
        return (living or role.replicas or (role,))[0]

    def _n_elements(self) -> dict[str, int | None]:
        session = self._session
        datasets, sources = list(session.settings.declaration.datasets), session.settings.sources
        found: dict[str, int | None] = {}
        for name in session.settings.plan.partitions:
            if name not in datasets:
                found[name] = sources.n_elements(name)
            else:
                elements = session.backend.elements
                found[name] = elements.n_elements(datasets.index(name)) if session.is_open else None
        return found


def _spec_of(plan: FlowPlan, n_elements: Mapping[str, int | None]) -> dict[str, dict[str, Any]]:
    """Return by partition columns and elements of the source, rows per step, slots in rows, and the bound of the age."""
    return {
        name: {
            "columns": plan.source[name],
            "elements": n_elements[name],
            "rows_per_step": plan.group * partition.groups_per_step,
            "slots": plan.group * partition.slots,
            "age_bound": partition.age_bound,
        }
        for name, partition in plan.partitions.items()
    }


def _stats_of(runner: Runner, n_steps: int) -> dict[str, Any]:
    """Return rows, bytes, steps, drops by reason, restarts, rows made again or left out, and counts of what was not finite."""
    rows = runner.master.rows
    return {
        "rows": len(rows),
        "bytes": rows.n_bytes,
        "steps": n_steps,
        "dropped": dict(rows.counts[TRAIN].dropped),
        "restarts": runner.recovery.n_restarts,
        "made_again": rows.n_made_again,
        "not_finite": dict(runner.not_finite.counts),
        "left_out": rows.n_left_out,
    }
