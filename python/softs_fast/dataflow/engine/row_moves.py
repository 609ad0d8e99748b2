"""The steps of a call, what its main part works on, and what its `data_transfer` steps bring to which worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import FlowError
from ..declare.calls import MFCDef
from ..declare.hooks import Hook, transfers
from ..declare.plan import FunctionPlan
from ..declare.ranks import role_at
from ..declare.roles import Placement
from ..declare.transfer import DataTransfer, columns_of
from ..master.master import DRIVER, CallState
from ..master.order.steps import Kind, Order, Step
from ..master.rows.table import RowTable, Taken
from ..process.work import MainWork, MoveWork, Work
from ..store.ids import kept_id
from ..workers.backend import Backend
from .held import HeldRows
from .moving import parts_of_move, plan_of_move
from .results import CallResult
from .running import CallTimes

__all__ = ["RowMoves", "described", "participants", "steps_of"]


def participants(hook: Hook, owner: Placement | None) -> frozenset[int]:
    """Return the workers of all roles that take part in a hook."""
    roles = {*hook.roles, *(source for source, _ in transfers(hook, owner))}
    if owner is not None:
        roles.add(owner)
    return frozenset(worker for role in roles for worker in role.on) or frozenset({DRIVER})


def steps_of(call: MFCDef, function: FunctionPlan, taken: Taken) -> tuple[Step, ...]:
    """Return the steps of a call: what brings its rows, hooks before, its main part, hooks after.

    Args:
        call: the function.
        function: the same, on the workers of this call.
        taken: its rows.
    """
    owner = role_at(call.model_name, function.workers[0]) if call.model_name is not None else None
    own = frozenset(function.workers) or frozenset({DRIVER})

    def hooks(kind: Kind, declared: Sequence[Hook]) -> list[Step]:
        due = [one for one in declared if taken.number % one.every == 0 and not isinstance(one, DataTransfer)]
        return [Step(kind, participants(one, owner), one, 0.1) for one in due]

    brought = [Step(Kind.MOVE, own, one, 0.1) for one in call.pre_hooks if isinstance(one, DataTransfer)]
    main = Step(Kind.MAIN, own, function.name)
    # Hooks before a training call that could not read its rows have ended, and may change weights.
    before = () if call.trains and taken.is_repeat else call.pre_hooks
    return (*brought, *hooks(Kind.PRE, before), main, *hooks(Kind.POST, call.post_hooks))


class RowMoves:
    """What workers are told to bring, and what they keep until the main part of a call takes it.

    Args:
        calls: Functions, by name.
        group: Number of rows that stay together.
        rows: Table of the rows of the flow.
        held: Places of values.
        backend: Backend that runs the steps.
    """

    def __init__(
        self, calls: Mapping[str, MFCDef], group: int, rows: RowTable, held: HeldRows, backend: Backend
    ) -> None:
        self._calls, self._group = calls, group
        self._rows, self._held, self._backend = rows, held, backend
        self._parts: dict[int, dict[int, MoveWork]] = {}
        #: By call the workers that keep values for it.
        self._keeping: dict[int, set[int]] = {}
        #: By transfer the call that it comes after.
        self._following: dict[int, CallResult] = {}

    @staticmethod
    def ids_of(order: Order, state: CallState | None) -> tuple[int, ...]:
        """Return the rows that a step reads."""
        work, taken = order.step.work, state.taken if state is not None else None
        if isinstance(work, DataTransfer) and work.ids:
            return work.ids
        is_reading = not isinstance(work, Hook) or isinstance(work, DataTransfer)
        return taken.ids if is_reading and taken is not None else ()

    def kept(
        self, worker: int, order: Order, state: CallState, describe: Callable[[], Work | None]
    ) -> Callable[[], Work | None]:
        """Return what says which inputs of its main part a worker gets before it.

        Args:
            worker: Number of the worker.
            order: Order of the step that brings the inputs.
            state: State of the call.
            describe: Function that returns the work of its main part.
        """
        hook = order.step.work
        assert isinstance(hook, DataTransfer)
        assert state.function is not None
        call = self._calls[state.function.name]
        names = columns_of(hook, tuple(call.input_keys), tuple(call.output_keys), is_before=True)
        self._keeping.setdefault(order.call, set()).add(worker)

        def bring() -> Work | None:
            work = describe()
            if not isinstance(work, MainWork):
                return None
            return MoveWork(work.ids, {name: work.columns[name] for name in names}, keep_for=order.call)

        return bring

    def brought(self, worker: int, order: Order) -> Callable[[], Work | None]:
        """Return what says which rows a worker gets after a call of others, or by hand."""
        hook = order.step.work
        assert isinstance(hook, DataTransfer)

        def bring() -> Work | None:
            parts = self._parts.get(order.ticket)
            if parts is None:
                ids = self._whole(hook.ids, hook.columns)
                columns = {name: self._held.places(ids, name) for name in hook.columns}
                parts = {}
                if ids and worker != DRIVER:
                    plan = plan_of_move(self._backend, hook.roles[0], self._group, ids, columns)
                    parts = parts_of_move(plan, hook.roles[0], ids, columns)
                self._parts[order.ticket] = parts
            part = parts.get(worker)
            return None if part is None else replace(part, is_needed=order.step.kind is Kind.MAIN)

        return bring

    def check(self, order: Order) -> None:
        """Check that the rows of a move by hand had their columns.

        Raises:
            FlowError: a process that held some has ended.
        """
        hook = order.step.work
        if not isinstance(hook, DataTransfer) or order.step.kind is not Kind.MAIN:
            return
        there = [row_id for row_id in hook.ids if row_id in self._rows]
        lacking = [row_id for row_id in there if set(hook.columns) - set(self._held.columns(row_id))]
        if lacking:
            raise FlowError(
                f"{len(lacking)} of {len(hook.ids)} rows {lacking[:8]} have lost {', '.join(hook.columns)} since the move "
                "was posted, with the process that held them; they are made again if a function needs them"
            )

    def took(self, worker: int, order: Order, *, has_run: bool) -> None:
        """A worker's part in a step has ended.

        Args:
            worker: Number of the worker.
            order: Order of the step.
            has_run: Whether it was told to a worker, and not skipped.
        """
        keeping = self._keeping.get(order.call)
        if keeping is not None and order.step.kind is Kind.MAIN and has_run:
            keeping.discard(worker)
        elif order.step.kind is Kind.MOVE and keeping is None:
            self._backend.free(worker, [kept_id(order.call)])  # the call has failed meanwhile

    def ended(self, ticket: int) -> None:
        """A step has ended."""
        self._parts.pop(ticket, None)

    def answered(self, call: int) -> None:
        """A call has its answer: what is kept for it goes."""
        for worker in self._keeping.pop(call, ()):
            self._backend.free(worker, [kept_id(call)])

    def follow(self, state: CallState, result: CallResult) -> Iterator[Step]:
        """Yield the steps that bring rows of a call to other roles, now that it has its answer.

        They are calls of their own: a worker that waited for the main part in a step of the same call would be idle.
        On one node there are none.
        """
        if state.function is None or not result.ids:
            return
        call = self._calls[state.function.name]
        hooks = [one for one in call.post_hooks if isinstance(one, DataTransfer)]
        if not hooks or len(set(self._backend.nodes().values())) < 2:
            return
        for one in hooks:
            names = columns_of(one, tuple(call.input_keys), tuple(call.output_keys), is_before=False)
            hook = replace(one, columns=names, ids=result.ids)
            yield Step(Kind.POST, frozenset(one.roles[0].on), hook, 0.1)

    def begun(self, transfer: int, result: CallResult) -> None:
        """A transfer after a call was posted."""
        self._following[transfer] = result

    def followed(self, transfer: int, times: CallTimes | None) -> bool:
        """A call has its answer: if it is a transfer after another one, its time belongs to that one.

        Args:
            transfer: number of the call.
            times: how long it took; None: it has not begun.

        Returns:
            Whether it is one. If it failed, what was not brought is read by the function that needs it.
        """
        result = self._following.pop(transfer, None)
        if result is None:
            return False
        for name, seconds in (times.by_name() if times is not None else {}).items():
            result.seconds[name] = result.seconds.get(name, 0.0) + seconds
        return True

    def _whole(self, ids: Iterable[int], names: Sequence[str]) -> list[int]:
        """Return the rows of groups that are whole and have all columns."""
        ids = list(ids)
        without = {row_id // self._group for row_id in ids if set(names) - set(self._held.columns(row_id))}
        return [row_id for row_id in ids if row_id // self._group not in without]


def described(
    call: MFCDef, number: int, taken: Taken, rows: RowTable, held: HeldRows
) -> Callable[[], MainWork | None]:
    """Return what says what is to be done; None: another function has dropped all rows.

    Args:
        call: Function of the call.
        number: Number of the call.
        taken: Rows of the call.
        rows: Table of all rows.
        held: Places of their values.
    """
    # Places of the first time, by column and row. An order that waits for other values may lose them meanwhile, with
    # the worker that had them: then the worker that gets it cannot read them, and the call runs again.
    known: dict[str, dict[int, Any]] = {}

    def describe() -> MainWork | None:
        ids = tuple(row_id for row_id in taken.ids if row_id in rows)
        if not ids:
            return None
        if not known:
            places = {key: held.places(ids, key) for key in call.input_keys}
            known.update((key, dict(zip(ids, some, strict=True))) for key, some in places.items())
        return MainWork(
            call.name,
            ids,
            {key: [known[key][row_id] for row_id in ids] for key in call.input_keys},
            # What a call that fails has written there does not stay.
            [dict(rows.tags(row_id)) for row_id in ids],
            taken.step,
            taken.use,
            taken.ends_step,
            taken.age,
            call=number,
        )

    return describe
