"""The requests of a flow by hand: fetch, post, flush, ask, and what they need beside."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError, FlowError
from ...process import check_process
from ..declare.calls import TRAIN, MFCDef
from ..declare.declaration import Declaration
from ..declare.hooks import Hook, Load, Offload
from ..declare.plan import FlowPlan
from ..declare.roles import Placement, RoleFunction
from ..declare.transfer import DataTransfer
from ..engine.admission import Admission, Sources
from ..engine.explain import explain
from ..engine.row_moves import participants
from ..engine.runner import Runner
from ..journal.saves import CommonSaves
from ..master.order.steps import Kind, Step
from ..process.state.checkpoints import last_checkpoint
from ..store.values import Value
from ..workers.backend import Backend
from .posted import PostedCall, commit_posted

__all__ = ["Requests"]

#: How long all workers together may take to say where they are, seconds.
_STACKS_S = 5.0


class Requests(ABC):
    """What a flow can be asked by hand; `Flow` adds its life and its steps.

    Attributes:
        plan: Plan of the flow, as it has been decided.
        declaration: Declaration of the flow.
    """

    plan: FlowPlan
    declaration: Declaration
    _admission: Admission
    _backend: Backend
    _calls: Mapping[str, MFCDef]
    _is_open: bool
    _loaded: dict[Placement, Path]
    _n_steps: int
    _pid: int
    _runner: Runner
    _saves: CommonSaves | None
    _sources: Sources

    @abstractmethod
    def _turn(self, *, automatic: bool, timeout_s: float | None = None) -> bool:
        """Do one thing; returns False if there is nothing to do."""

    @abstractmethod
    def _check_stop(self) -> None:
        """Raise if the flow is awaited no more."""

    @property
    @abstractmethod
    def _slice_s(self) -> float | None:
        """How long one wait for worker processes may be."""

    def fetch(self, n_rows: int, *, partition: str = TRAIN) -> tuple[int, ...]:
        """Take rows from the source; returns their ids, fewer at the end of the source.

        Functions take them like others when `steps` runs; before that, `post` can name them.

        Raises:
            ConfigError: it is no whole number of groups, the partition has no source, or there are no slots.
            FlowError: an element cannot be read.
        """
        self._check_open()
        self._admission.check_fetch(n_rows, partition)
        with self._backend.doing.flow():
            while not self._admission.has(n_rows // self.plan.group, partition):
                self._check_stop()
                if not self._turn(automatic=False, timeout_s=self._slice_s):
                    raise FlowError(f"elements of partition {partition!r} do not arrive:\n{self.explain()}")
        return self._admission.fetch(n_rows, partition)

    def post(self, what: RoleFunction | Hook | str, ids: Iterable[int] = ()) -> PostedCall:
        """Post a blocking request: it waits until a flush names it.

        Args:
            what: a function of the flow, by role and method or by its name, or a hook.
            ids: rows of the function, whole groups that have its inputs.

        Raises:
            ConfigError: there is no such function, the rows are not ready for it, or a hook has no role.
        """
        self._check_open()
        master, now_s = self._runner.master, time.monotonic()
        if isinstance(what, DataTransfer):
            raise ConfigError("data_transfer is posted without rows; declare it before or after a call")
        if isinstance(what, Hook):
            if not what.roles:
                raise ConfigError(f"hook {what.name} is posted without a role")
            hooks = [what]
            if isinstance(what, (Load, Offload)):  # each replica of a pool has its part
                hooks = [replace(what, roles=(role,)) for role in what.roles[0].replicas] or hooks
            roles = [role for one in hooks for role in one.roles]
            unknown = [role.name for role in roles if role not in self.declaration.roles]
            if unknown:
                raise ConfigError(
                    f"hook {what.name} has roles that are not in the flow: {', '.join(unknown)}"
                )
            self._backend.check_hook(what, None)
            gone = self._runner.recovery.gone
            present = [(participants(one, None) - gone, one) for one in hooks]
            steps = tuple(Step(Kind.MAIN, workers, one) for workers, one in present if workers)
            number, name = master.post_steps(what.name, steps, now_s), what.name
        else:
            name = what.name if isinstance(what, RoleFunction) else what
            if self._saves is not None and name in self._calls and self._calls[name].trains:
                raise ConfigError(
                    f"{name} trains, and is posted by hand: a flow with a journal trains in steps alone"
                )
            try:
                number = master.post(name, ids, now_s)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        self._runner.posted[number] = None
        return PostedCall(self, number, name)

    def flush(self, *calls: PostedCall) -> None:
        """Commit posted calls: they get their places in the order. Those that were flushed before keep theirs.

        Raises:
            ConfigError: one of them was cancelled, or is no call of this flow; nothing is flushed then.
        """
        self._check_open()
        commit_posted(self._runner, calls)

    def ask(self, what: str, *, role: Placement | None = None) -> Any:
        """Send a non-blocking request.

        Args:
            what: Name of the request: "spec" returns columns of the source, how many elements it has if it is a
                sequence, or all shards of a dataset are (None otherwise), rows per step, and the bound of the age;
                "stats" rows, bytes, steps, drops, restarts of workers, rows that were made again, rows that
                functions went without ("left_out"), and NaN and infinities as `FlowStep.not_finite` has them. The
                last three count from the moment when the flow was opened or has gone back; "inside" what each worker
                process is inside of, also while it computes; "stacks" where the Python code of each is that is
                inside of something, the innermost frame first; "model_config" what the role's `model_config`
                returns.
            role: Role of the request "model_config".

        Raises:
            ConfigError: there is no such request, or a role is missing.
        """
        match what:
            case "spec":
                return _spec_of(self.plan, self._n_elements())
            case "stats":
                return _stats_of(self._runner, self._n_steps)
            case "inside":
                self._check_open()
                return self._backend.inside()
            case "stacks":
                self._check_open()
                found = self._backend.sights(_STACKS_S, stacks=True)
                return {worker: one.stack for worker, one in found.items() if one.stack}
            case "model_config" if role is not None:
                self._check_open()
                return self._backend.model_config(self._one_of(role))
        raise ConfigError(
            f'ask {what!r}: need "spec", "stats", "inside", "stacks", or "model_config" with a role'
        )

    def values(self, ids: Iterable[int], column: str) -> list[Value]:
        """Return a column of rows.

        Raises:
            ConfigError: a row is not in the flow, or does not have the column.
        """
        wanted, held = list(ids), self._runner.held
        for row_id in wanted:
            if column not in held.columns(row_id):
                raise ConfigError(f"row {row_id} has no column {column!r}; it has {held.columns(row_id)}")
        return self._backend.values(held.places(wanted, column))

    def clear_data_cache(self, ids: Iterable[int]) -> int:
        """Drop rows with their groups; returns how many groups. The source refills their slots.

        Raises:
            ConfigError: a training function has used them.
        """
        try:
            n = self._runner.master.rows.drop(ids, "cleared")
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._runner.free()
        return n

    def load(self, role: Placement, folder: str | Path) -> int:
        """Load what the hook `save` wrote last for a role; returns the number of its step.

        Raises:
            ConfigError: there is no checkpoint.
        """
        self._check_open()
        last_checkpoint(role.name, Path(folder))
        call = self.post(Load((role,), folder=Path(folder)))
        self.flush(call)
        step = int(call.result().numbers["step"])
        if self._saves is not None and role.frozen and not self._saves.is_kept(role):
            self._loaded[role] = Path(folder)
        return step

    def role(self, role: Placement) -> Any:
        """Return the object of a role, for evaluation and debugging.

        Raises:
            ConfigError: it is in a worker process.
        """
        self._check_open()
        return self._backend.object_of(self._one_of(role))

    def explain(self) -> str:
        """Return what each function waits for, since when, and which workers are inside which tickets."""
        now_s = time.monotonic()
        return explain(self._runner.master, now_s) + self._runner.datasets.explain(now_s)

    def _one_of(self, role: Placement) -> Placement:
        """Return a role; of a pool a replica that is there."""
        living = [one for one in role.replicas if one.on[0] in self._runner.master.order.alive]
        return (living or role.replicas or (role,))[0]

    def _n_elements(self) -> dict[str, int | None]:
        datasets = list(self.declaration.datasets)
        found: dict[str, int | None] = {}
        for name in self.plan.partitions:
            if name not in datasets:
                found[name] = self._sources.n_elements(name)
            else:
                found[name] = (
                    self._backend.elements.n_elements(datasets.index(name)) if self._is_open else None
                )
        return found

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError("the flow is not open; use it in a `with` block, or call initialize()")
        check_process(self._pid, "the flow")


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
