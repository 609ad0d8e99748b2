"""A call that was posted by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .results import CallResult

if TYPE_CHECKING:
    from .flow import Flow

__all__ = ["PostedCall"]


class PostedCall:
    """A call that was posted by hand.

    Attributes:
        number: of the call.
        name: of its function or hook.
    """

    def __init__(self, flow: Flow, number: int, name: str) -> None:
        self._flow = flow
        self._done: CallResult | None = None
        self.number = number
        self.name = name

    def result(self, timeout_s: float | None = None) -> CallResult:
        """Run what has tickets until this call is answered; returns what it has done.

        Args:
            timeout_s: how long to wait for worker processes; None: as long as it takes.

        Raises:
            FlowError: it failed, or no flush has named it.
            TimeoutError: it has no answer yet; it goes on, and may be asked again.
        """
        if self._done is None:
            self._done = self._flow._result(self, timeout_s)
        return self._done
