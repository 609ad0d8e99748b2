"""The steps of a call, what its main part works on, and what its `data_transfer` steps bring to which node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..declare.calls import MFCDef
from ..declare.hooks import Hook, transfers
from ..declare.plan import FunctionPlan
from ..declare.ranks import ranks_of, role_at
from ..declare.roles import Placement
from ..declare.transfer import DataTransfer, columns_of
from ..link.columns import Columns
from ..link.tasks import MainTask, MoveTask
from ..master.holdings import Holdings
from ..master.master import DRIVER
from ..master.order.steps import CallState, Kind, Step
from ..master.rows.table import RowTable, Taken
from ..process.work import Work
from .cutting import lengths_of, slices_of
from .results import CallResult

__all__ = ["RowMoves", "described", "participants", "steps_of"]


def participants(hook: Hook, owner: Placement | None) -> frozenset[int]:
    """Return the workers of all roles that take part in a hook."""
    roles = {*hook.roles, *(source for source, _ in transfers(hook, owner))}
    if owner is not None:
        roles.add(owner)
    return frozenset(worker for role in roles for worker in role.on) or frozenset({DRIVER})


def steps_of(call: MFCDef, function: FunctionPlan, taken: Taken, *, brings: bool) -> tuple[Step, ...]:
    """Return the steps of a call: what brings its rows, hooks before, its main part, hooks after.

    Args:
        call: the function.
        function: the same, on the workers of this call.
        taken: its rows.
        brings: Whether there are several nodes, so that rows have to be brought.
    """
    owner = role_at(call.model_name, function.workers[0]) if call.model_name is not None else None
    own = frozenset(function.workers) or frozenset({DRIVER})

    def hooks(kind: Kind, declared: Sequence[Hook]) -> list[Step]:
        due = [one for one in declared if taken.number % one.every == 0 and not isinstance(one, DataTransfer)]
        return [Step(kind, participants(one, owner), one, 0.1) for one in due]

    transfers_before = [one for one in call.pre_hooks if isinstance(one, DataTransfer)] if brings else []
    brought = [Step(Kind.MOVE, own, one, 0.1) for one in transfers_before]
    main = Step(Kind.MAIN, own, function.name)
    # Hooks before a training call that could not read its rows have ended, and may change weights.
    before = () if call.trains and taken.is_repeat else call.pre_hooks
    return (*brought, *hooks(Kind.PRE, before), main, *hooks(Kind.POST, call.post_hooks))


class RowMoves:
    """What workers are told to bring to their nodes before and after calls.

    Args:
        calls: Functions, by name.
        group: Number of rows that stay together.
        held: Places of values.
    """

    def __init__(self, calls: Mapping[str, MFCDef], group: int, held: Holdings) -> None:
        self._calls, self._group, self._held = calls, group, held
        #: By ticket of a step after a call what each worker brings.
        self._parts: dict[int, dict[int, MoveTask]] = {}
        #: Transfers after calls, which have no answer yet.
        self._following: set[int] = set()

    @staticmethod
    def ids_of(step: Step, state: CallState | None) -> tuple[int, ...]:
        """Return the rows that a step reads."""
        work, taken = step.work, state.taken if state is not None else None
        if isinstance(work, DataTransfer) and work.ids:
            return work.ids
        is_reading = not isinstance(work, Hook) or isinstance(work, DataTransfer)
        return taken.ids if is_reading and taken is not None else ()

    def inputs(
        self, step: Step, state: CallState, describe: Callable[[], Work | None]
    ) -> Callable[[], Work | None]:
        """Return what says which inputs of its main part a worker brings to its node before it.

        Args:
            step: Step that brings the inputs.
            state: State of the call.
            describe: Function that returns the work of its main part.
        """
        names = self._names(step.work, state, is_before=True)

        def bring() -> Work | None:
            work = describe()
            if not isinstance(work, MainTask):
                return None
            columns = Columns.of({name: work.columns.places[name] for name in names})
            return MoveTask(step.ticket, step.call, work.ids, columns)

        return bring

    def outputs(self, worker: int, step: Step) -> Callable[[], Work | None]:
        """Return what says which rows a worker brings to its node after a call of others."""
        hook = step.work
        assert isinstance(hook, DataTransfer)

        def bring() -> Work | None:
            if step.ticket not in self._parts:
                self._parts[step.ticket] = self._parts_of(step, hook)
            return self._parts[step.ticket].get(worker)

        return bring

    def ended(self, ticket: int) -> None:
        """A step has ended."""
        self._parts.pop(ticket, None)

    def follow(self, state: CallState, result: CallResult) -> Iterator[Step]:
        """Yield the steps that bring rows of a call to other roles, now that it has its answer.

        They are calls of their own: a worker that waited for the main part in a step of the same call would be idle.
        """
        if state.function is None or not result.ids or not self._held.has_nodes:
            return
        for one in self._calls[state.function.name].post_hooks:
            if isinstance(one, DataTransfer):
                hook = replace(one, columns=self._names(one, state, is_before=False), ids=result.ids)
                yield Step(Kind.POST, frozenset(one.roles[0].on), hook, 0.1)

    def begun(self, transfer: int) -> None:
        """A transfer after a call was posted."""
        self._following.add(transfer)

    def followed(self, number: int) -> bool:
        """A call has its answer: return whether it is a transfer after another one.

        If it failed, what was not brought is read by the function that needs it.
        """
        is_transfer = number in self._following
        self._following.discard(number)
        return is_transfer

    def _names(self, hook: object, state: CallState, *, is_before: bool) -> tuple[str, ...]:
        assert isinstance(hook, DataTransfer)
        assert state.function is not None
        call = self._calls[state.function.name]
        return columns_of(hook, tuple(call.input_keys), tuple(call.output_keys), is_before=is_before)

    def _parts_of(self, step: Step, hook: DataTransfer) -> dict[int, MoveTask]:
        """Return what each worker of a role brings, by the slices of a call that reads these columns."""
        ids = [row_id for row_id in hook.ids if set(hook.columns) <= set(self._held.columns(row_id))]
        if not ids:
            return {}
        columns = {name: self._held.places(ids, name) for name in hook.columns}
        ranks = ranks_of(hook.roles[0])
        tokens = lengths_of(list(columns.values())) if len(ranks) > 1 else None
        number = {row_id: i for i, row_id in enumerate(ids)}
        parts: dict[int, MoveTask] = {}
        for rank, own in zip(ranks, slices_of(ids, columns, ranks, self._group, tokens), strict=True):
            if own:
                some = {name: [places[number[one]] for one in own] for name, places in columns.items()}
                task = MoveTask(step.ticket, step.call, tuple(own), Columns.of(some))
                parts |= dict.fromkeys(rank, task)
        return parts


def described(
    step: Step, call: MFCDef, taken: Taken, rows: RowTable, held: Holdings
) -> Callable[[], MainTask | None]:
    """Return what says what is to be done; None: another function has dropped all rows.

    Args:
        step: Step with its ticket.
        call: Function of the call.
        taken: Rows of the call.
        rows: Table of all rows.
        held: Places of their values.
    """
    # Places of the first time, by column and row. An order that waits for other values may lose them meanwhile, with
    # the worker that had them: then the worker that gets it cannot read them, and the call runs again.
    known: dict[str, dict[int, Any]] = {}

    def describe() -> MainTask | None:
        ids = tuple(row_id for row_id in taken.ids if row_id in rows)
        if not ids:
            return None
        if not known:
            places = {key: held.places(ids, key) for key in call.input_keys}
            known.update((key, dict(zip(ids, some, strict=True))) for key, some in places.items())
        return MainTask(
            *(step.ticket, step.call, call.name, ids),
            Columns.of({key: [known[key][row_id] for row_id in ids] for key in call.input_keys}),
            # What a call that fails has written there does not stay.
            tuple(dict(rows.tags(row_id)) for row_id in ids),
            taken.step,
            taken.use,
            taken.ends_step,
            taken.age,
        )

    return describe
