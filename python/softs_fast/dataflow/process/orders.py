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
from ..link.tasks import HookForm, HookTask, MainTask, MoveTask, Task
from ..master.order.steps import Step
from .work import HookWork, Work

__all__ = ["form_of", "message_of", "work_of"]

_KINDS: dict[str, type[Hook]] = {
    one.__name__: one
    for one in (Evaluate, Load, LoadRows, LoadState, Offload, ParamRealloc, Publish, Save, SaveState)
}


def message_of(declaration: Declaration, step: Step, work: Work) -> Task:
    """Return the message that tells a worker to run a step.

    Args:
        declaration: Declaration of the flow.
        step: Step with its ticket.
        work: Work of the worker: a function with rows, a hook, or a move of rows.
    """
    if not isinstance(work, HookWork):
        return work
    number = declaration.hooks.index(work.hook) if work.hook in declaration.hooks else -1
    owner = declaration.roles.index(work.owner) if work.owner is not None else -1
    form = form_of(declaration, work.hook) if number < 0 else None
    return HookTask(step.ticket, step.call, number, form, owner, work.step)


def work_of(declaration: Declaration, message: Task) -> Work:
    """Return what a message tells to do.

    Raises:
        WireError: the flow declares no such function, role or hook.
    """
    if isinstance(message, MainTask):
        calls = [one for one in declaration.calls if one.name == message.function]
        if not calls:
            raise WireError(f"function {message.function!r} is not declared")
        if message.columns.names != tuple(calls[0].input_keys) or not message.ids:
            raise WireError(
                f"{message.function} is called with columns {', '.join(message.columns.names)} of "
                f"{len(message.ids)} rows; it reads {', '.join(calls[0].input_keys)}"
            )
        return message
    if isinstance(message, MoveTask):
        known = {key for one in declaration.calls for key in (*one.input_keys, *one.output_keys)}
        unknown = sorted(set(message.columns.names) - known)
        if unknown:
            raise WireError(f"rows are brought with {', '.join(unknown)}, which no function has")
        return message
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
