"""How a flow begins: from nothing, from the last common save of its journal, or from there again after a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import FlowError
from .declare.hooks import Hook, Load
from .journal.saves import CommonSaves
from .posted import PostedCall
from .watch.watch import Watch

if TYPE_CHECKING:
    from .flow import Flow

__all__ = ["begin", "go_back", "may_go_back"]


def begin(flow: Flow) -> None:
    """Make the objects of all roles, and have them and the master go on from the last common save, if there is one.

    Raises:
        FlowError: a worker process could not begin, or the save cannot be loaded.
    """
    flow._is_beginning = True
    try:
        first = flow._backend.open()
        flow._is_open = True
        if flow._watch is None:
            flow._watch = Watch(flow._name, flow._options, flow._runner, flow._backend)
        _do(flow, *first)
        if flow._saves is not None:
            _load(flow, flow._saves)
    finally:
        flow._is_beginning = False


def may_go_back(flow: Flow) -> bool:
    """Return whether all workers may be started again."""
    return flow._saves is not None and flow._saves.may_go_back and not flow._is_beginning


def go_back(flow: Flow, lost: FlowError) -> None:
    """Start all workers again, and go on from the last common save.

    Args:
        flow: that has lost a worker.
        lost: names it.

    Raises:
        FlowError: workers were lost again and again.
    """
    assert flow._saves is not None
    while True:
        flow._saves.count_restart(lost, flow._n_steps)
        flow._saves.stop_rows()
        flow._runner.held.clear()
        flow._backend.close(goes_on=True)
        flow._saves.drop_begun()
        flow._use(flow._backend)
        flow._error = None
        try:
            begin(flow)
            return
        except FlowError as error:
            flow._error = lost = error
            if not may_go_back(flow):
                raise


def _load(flow: Flow, saves: CommonSaves) -> None:
    steps = saves.load_steps()
    if steps:
        number = flow._runner.post_steps("load of a common save", steps)
        PostedCall(flow, number, "load of a common save").result()
        _do(flow, *(Load((role,), folder=folder) for role, folder in flow._loaded.items()))
        _do(flow, *saves.publish_hooks())
    saves.restore()
    flow._n_steps = saves.last.step if saves.last is not None else 0


def _do(flow: Flow, *hooks: Hook) -> None:
    calls = [flow.post(one) for one in hooks]
    flow.flush(*calls)
    for call in calls:
        call.result()
