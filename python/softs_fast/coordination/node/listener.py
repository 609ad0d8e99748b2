"""How a session tells a worker's machine what happens to its connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Condition

from ...errors import SoftsError
from ..job.messages import Hello, ToWorker
from ..job.participant import Action, Participant, Say

_log = logging.getLogger(__name__)


class Listener:
    """Passes on what a session says; all calls come from its thread.

    Args:
        changed: Condition that is held while the machine is used.
        machine: State machine of the worker.
        do: Function that does what the machine wants; called with the lock.
        receive: Function that takes a message; called with the lock.
        fail: Function that notes that there will be no connection any more; called with the lock.
        logger: Logger of what happens; None for the logger of this module.
    """

    def __init__(
        self,
        changed: Condition,
        machine: Participant,
        do: Callable[[list[Action]], None],
        receive: Callable[[ToWorker], None],
        fail: Callable[[SoftsError], None],
        logger: logging.Logger | None = None,
    ) -> None:
        self._logger = logger or _log
        self._changed = changed
        self._machine = machine
        self._do = do
        self._receive = receive
        self._fail = fail

    def hello(self) -> Hello:
        """Return the first message of a connection."""
        with self._changed:
            [said] = self._machine.connected()
            assert isinstance(said, Say)
            assert isinstance(said.message, Hello)
            return said.message

    def received(self, message: ToWorker) -> None:
        """Take a message."""
        with self._changed:
            self._receive(message)

    def lost(self, text: str, is_warning: bool) -> None:
        """Note that there is no connection."""
        level = logging.WARNING if is_warning else logging.INFO
        self._logger.log(level, "no connection to the coordinator: %s", text)
        with self._changed:
            self._do(self._machine.disconnected())

    def ended(self, error: SoftsError) -> None:
        """Note that there will be none."""
        with self._changed:
            self._fail(error)
            self._changed.notify_all()
