"""Calls that were posted by hand."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ConfigError, FlowError
from ..engine.results import CallResult
from .session import Session

__all__ = ["PostedCall", "commit_posted"]


class PostedCall:
    """A call that was posted by hand.

    Attributes:
        number: Number of the call.
        name: Name of its function or hook.
    """

    def __init__(self, session: Session, number: int, name: str) -> None:
        self._session, self._runner = session, session.runner
        self._done: CallResult | None = None
        self._is_cancelled = False
        self._was_flushed = False
        self.number = number
        self.name = name

    def result(self, timeout_s: float | None = None) -> CallResult:
        """Run what has tickets until this call is answered; returns what it has done.

        Args:
            timeout_s: how long to wait for worker processes; None: as long as it takes; 0: what can be done at once.

        Raises:
            FlowError: it failed, was cancelled, no flush has named it, or the flow has gone back to a common save or was
                closed.
            TimeoutError: it has no answer yet; it goes on, and may be asked again.
        """
        if self._is_cancelled:
            raise FlowError(f"call {self.number} of {self.name} was cancelled before it had tickets")
        if self._done is None:
            with self._session.backend.doing.flow():
                self._done = self._session.answer(self._runner, self.number, self.name, timeout_s)
        return self._done

    def cancel(self) -> bool:
        """Take this call back, if it has no tickets yet: `result` raises then, and other calls may have its rows.

        Returns:
            Whether it is cancelled. False: it has begun or may begin at any time, is over, or the flow has gone back to a
            common save or was closed.
        """
        if not self._is_cancelled and self._session.has(self._runner):
            self._is_cancelled = self._runner.master.cancel(self.number)
            if self._is_cancelled:
                del self._runner.posted[self.number]
        return self._is_cancelled


def commit_posted(session: Session, calls: Sequence[PostedCall]) -> None:
    """Give posted calls their places in the order; nothing happens to those that have them.

    Raises:
        ConfigError: one of them was cancelled, has failed already, or is of another session, or of this one before it has
            gone back. Nothing is changed then.
    """
    for call in calls:
        if call._is_cancelled:
            raise ConfigError(f"call {call.number} of {call.name} was cancelled; post it again")
        if call._runner is not session.runner:
            raise ConfigError(
                f"call {call.number} of {call.name} is of another flow, or of this one before it has gone back to a common "
                "save; post it again"
            )
    try:
        session.runner.master.order.flush(call.number for call in calls if not call._was_flushed)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for call in calls:
        call._was_flushed = True
