"""Steps as messages: both sides number functions, roles and hooks as the flow declares them."""

from __future__ import annotations

from pathlib import Path

from ...errors import WireError
from ..declare.declaration import Declaration
from ..declare.hooks import (
    Evaluate,
    Hook,
    Load,
    LoadRows,
    LoadState,
    Offload,
    ParamRealloc,
    Publish,
    Save,
    SaveState,
)
from ..link.messages import Columns, HookForm, RunHook, RunMain, RunMove
from ..master.order.steps import Step
from .work import HookWork, MainWork, MoveWork, Work

__all__ = ["Messages", "form_of", "message_of", "work_of"]

_KINDS: dict[str, type[Hook]] = {
    one.__name__: one
    for one in (Evaluate, Load, LoadRows, LoadState, Offload, ParamRealloc, Publish, Save, SaveState)
}


class Messages:
    """Makes the messages of steps; all workers of a hook get the same object, which is encoded once.

    Args:
        declaration: Declaration of the flow.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        #: The hook that was sent last: its ticket, what it is, and its message.
        self._hook: tuple[int, HookWork, RunMain | RunHook | RunMove] | None = None

    def of(self, step: Step, work: Work) -> RunMain | RunHook | RunMove:
        """Return the message of a step; see `message_of`."""
        if not isinstance(work, HookWork):
            return message_of(self._declaration, step, work)
        if self._hook is None or self._hook[:2] != (step.ticket, work):
            self._hook = (step.ticket, work, message_of(self._declaration, step, work))
        return self._hook[2]


def message_of(declaration: Declaration, step: Step, work: Work) -> RunMain | RunHook | RunMove:
    """Return the message that tells a worker to run a step.

    Args:
        declaration: Declaration of the flow.
        step: Step with its ticket.
        work: Work of the worker: a function with rows, a hook, or a move of rows.
    """
    head = (step.incarnation, step.ticket, step.call)
    if isinstance(work, MainWork):
        names = [one.name for one in declaration.calls]
        return RunMain(
            *head,
            names.index(work.function),
            work.ids,
            Columns.of(work.columns.values()),
            tuple(work.tags),
            work.step,
            work.use,
            work.ends_step,
            work.age,
            work.part,
        )
    if isinstance(work, MoveWork):
        return RunMove(*head, work.ids, tuple(work.columns), Columns.of(work.columns.values()))
    number = declaration.hooks.index(work.hook) if work.hook in declaration.hooks else -1
    owner = declaration.roles.index(work.owner) if work.owner is not None else -1
    form = form_of(declaration, work.hook) if number < 0 else None
    return RunHook(*head, number, form, owner, work.step)


def work_of(declaration: Declaration, message: RunMain | RunHook | RunMove) -> Work:
    """Return what a message tells to do.

    Raises:
        WireError: the flow declares no such function, role or hook.
    """
    if isinstance(message, RunMain):
        _check("function", message.function, len(declaration.calls))
        call = declaration.calls[message.function]
        if len(message.columns) != len(call.input_keys) or not message.ids:
            raise WireError(
                f"{call.name} is called with {len(message.columns)} columns of {len(message.ids)} rows; "
                f"it reads {len(call.input_keys)}"
            )
        return MainWork(
            call.name,
            message.ids,
            {key: list(column) for key, column in zip(call.input_keys, message.columns, strict=True)},
            list(message.tags),
            message.step,
            message.use,
            message.ends_step,
            message.age,
            message.part,
        )
    if isinstance(message, RunMove):
        return _move_of(declaration, message)
    owner = None
    if message.owner >= 0:
        _check("role", message.owner, len(declaration.roles))
        owner = declaration.roles[message.owner]
    if message.form is not None:
        return HookWork(_hook_of(declaration, message.form), owner, message.step)
    _check("hook", message.hook, len(declaration.hooks))
    return HookWork(declaration.hooks[message.hook], owner, message.step)


def form_of(declaration: Declaration, hook: Hook) -> HookForm | None:
    """Return the form of a hook that the flow has not declared; None for functions of the user's, which have none."""
    if type(hook).__name__ not in _KINDS:
        return None
    if isinstance(hook, LoadRows):
        return HookForm(LoadRows.__name__, (), 1.0, str(hook.path), hook.column, hook.pieces, hook.groups)
    roles = tuple(declaration.roles.index(role) for role in hook.roles)
    eta = hook.eta if isinstance(hook, ParamRealloc) else 1.0
    folder = str(hook.folder) if isinstance(hook, Save | Load | SaveState | LoadState) else ""
    return HookForm(type(hook).__name__, roles, eta, folder, "", (), ())


def _move_of(declaration: Declaration, message: RunMove) -> MoveWork:
    known = {key for one in declaration.calls for key in (*one.input_keys, *one.output_keys)}
    unknown = sorted(set(message.names) - known)
    if unknown or len(set(message.names)) != len(message.names):
        what = f"{', '.join(unknown)}, which no function has" if unknown else "a column twice"
        raise WireError(f"rows are brought with {what}")
    columns = {name: list(places) for name, places in zip(message.names, message.columns, strict=True)}
    return MoveWork(message.ids, columns)


def _hook_of(declaration: Declaration, form: HookForm) -> Hook:
    kind = _KINDS.get(form.kind)
    if kind is None:
        raise WireError(f"there is no hook {form.kind!r}; there are {', '.join(_KINDS)}")
    if kind is LoadRows:
        return LoadRows(path=Path(form.folder), column=form.column, pieces=form.pieces, groups=form.groups)
    needed = 2 if kind is ParamRealloc else 1
    if len(form.roles) < needed:
        raise WireError(f"hook {form.kind} has {len(form.roles)} roles; it needs {needed}")
    for number in form.roles:
        _check("role", number, len(declaration.roles))
    roles = tuple(declaration.roles[number] for number in form.roles)
    if kind is ParamRealloc:
        return ParamRealloc(roles, eta=form.eta)
    if kind is Save:
        return Save(roles, folder=Path(form.folder))
    if kind is Load:
        return Load(roles, folder=Path(form.folder))
    if kind is SaveState:
        return SaveState(roles, folder=Path(form.folder))
    if kind is LoadState:
        return LoadState(roles, folder=Path(form.folder))
    return kind(roles)


def _check(what: str, number: int, n: int) -> None:
    if not 0 <= number < n:
        raise WireError(f"{what} {number} is not declared; the flow has {n}")
