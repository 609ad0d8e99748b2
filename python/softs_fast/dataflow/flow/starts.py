"""How a flow begins: from nothing, from the last common save of its journal, or from there again after a loss."""

from __future__ import annotations

from abc import abstractmethod

from ...errors import FlowError
from ..declare.hooks import Hook, Load
from ..engine.ends import Ends
from ..journal.saves import CommonSaves
from ..watch.options import WatchOptions
from ..watch.watch import Watch
from ..workers.backend import Backend
from .aio import AsyncFlow, StepStopped
from .posted import PostedCall

__all__ = ["StartedFlow"]


class StartedFlow(AsyncFlow):
    """What a flow has for its starts; `Flow` adds the rest."""

    _ends: Ends
    _error: FlowError | None
    _name: str
    _options: WatchOptions
    _watch: Watch | None

    @abstractmethod
    def _use(self, backend: Backend) -> None:
        """Have a new master over a backend, and no rows."""

    def _begin(self) -> None:
        """Make the objects of all roles, and have them and the master go on from the last common save, if there is one.

        Raises:
            FlowError: a worker process could not begin, or the save cannot be loaded.
        """
        self._is_beginning = True
        try:
            first = self._backend.open(self._runner.held)
            self._is_open = True
            if self._watch is None:
                self._watch = Watch(self._name, self._options, self._runner, self._backend)
            self._watch.begun()
            self._do(*first)
            if self._saves is not None:
                self._load_save(self._saves)
        finally:
            self._is_beginning = False

    def _may_go_back(self) -> bool:
        """Return whether all workers may be started again."""
        may_go_back = self._saves is not None and self._saves.may_go_back
        return may_go_back and not self._is_beginning and not self._ends.is_repeated

    def _go_back(self, lost: FlowError) -> None:
        """Start all workers again, and go on from the last common save.

        Args:
            lost: names the worker that was lost.

        Raises:
            FlowError: workers were lost again and again.
        """
        assert self._saves is not None
        while True:
            self._saves.count_restart(lost, self._n_steps)
            self._saves.stop_rows()
            self._runner.held.clear()
            self._backend.close(goes_on=True)
            self._saves.drop_begun()
            self._use(self._backend)
            self._error = None
            try:
                self._begin()
                return
            except StepStopped:
                raise  # the flow is closed now
            except FlowError as error:
                self._error = lost = error
                if not self._may_go_back():
                    raise

    def _load_save(self, saves: CommonSaves) -> None:
        steps = saves.load_steps()
        if steps:
            number = self._runner.post_steps("load of a common save", steps)
            PostedCall(self, number, "load of a common save").result()
            self._do(*(Load((role,), folder=folder) for role, folder in self._loaded.items()))
            self._do(*saves.publish_hooks())
        saves.restore()
        self._n_steps = saves.last.step if saves.last is not None else 0

    def _do(self, *hooks: Hook) -> None:
        calls = [self.post(one) for one in hooks]
        self.flush(*calls)
        for call in calls:
            call.result()
