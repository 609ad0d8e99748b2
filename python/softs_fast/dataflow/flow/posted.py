"""Calls that were posted by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from ...errors import ConfigError, FlowError
from ..declare.declaration import Declaration
from ..declare.plan import FlowPlan
from ..engine.results import CallResult
from ..engine.runner import Runner
from ..workers.backend import Backend

__all__ = ["OpenFlow", "PostedCall", "commit_posted"]


class OpenFlow(Protocol):
    """What calls by hand need of their flow."""

    plan: FlowPlan
    declaration: Declaration
    _backend: Backend
    _runner: Runner

    @property
    def _slice_s(self) -> float | None:
        """How long one wait for worker processes may be."""

    def _check_stop(self) -> None:
        """Raise if the flow is awaited no more."""

    def explain(self) -> str:
        """Return what each function waits for."""

    def _turn(self, *, automatic: bool, timeout_s: float | None = None) -> bool:
        """Do one thing; returns False if there is nothing to do."""


class PostedCall:
    """A call that was posted by hand.

    Attributes:
        number: Number of the call.
        name: Name of its function or hook.
    """

    def __init__(self, flow: OpenFlow, number: int, name: str) -> None:
        self._flow = flow
        self._runner = flow._runner
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
            FlowError: it failed, was cancelled, no flush has named it, or the flow has gone back to a common save.
            TimeoutError: it has no answer yet; it goes on, and may be asked again.
        """
        if self._is_cancelled:
            raise FlowError(f"call {self.number} of {self.name} was cancelled before it had tickets")
        if self._done is None:
            with self._flow._backend.doing.flow():
                self._done = self._result(timeout_s)
        return self._done

    def cancel(self) -> bool:
        """Take this call back, if it has no tickets yet: `result` raises then, and other calls may have its rows.

        Returns:
            Whether it is cancelled. False: it has begun or may begin at any time, is over, or the flow has gone back to a
            common save.
        """
        if self._is_cancelled:
            return True
        runner = self._runner
        if runner is self._flow._runner and runner.master.cancel(self.number):
            self._is_cancelled = True
            del runner.posted[self.number]
        return self._is_cancelled

    def _result(self, timeout_s: float | None) -> CallResult:
        runner, flow = self._runner, self._flow
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        has_turned = False
        while True:
            if runner is not flow._runner:
                raise FlowError(
                    f"call {self.number} of {self.name} has no answer: the flow has gone back to a common save, or was opened again"
                )
            if self.number in runner.errors:
                error, cause = runner.errors[self.number]
                raise error from cause
            result = runner.posted[self.number]
            if result is not None:
                del runner.posted[self.number]
                return result
            flow._check_stop()
            left_s = None if end_s is None else max(end_s - time.monotonic(), 0.0)
            if left_s == 0 and has_turned:
                raise TimeoutError(
                    f"call {self.number} of {self.name} has no answer after {timeout_s:g} s\n{flow.explain()}"
                )
            waits = [one for one in (left_s, flow._slice_s) if one is not None]
            try:
                acted, has_turned = flow._turn(automatic=False, timeout_s=min(waits, default=None)), True
            except FlowError:
                if self.number in runner.errors:
                    continue  # its own answer says more
                raise
            if not acted:
                raise FlowError(
                    f"call {self.number} of {self.name} has no result; has a flush named it?\n{flow.explain()}"
                )


def commit_posted(runner: Runner, calls: Sequence[PostedCall]) -> None:
    """Give posted calls their places in the order; nothing happens to those that have them.

    Args:
        runner: Runner of the flow.
        calls: Calls that were posted in that flow.

    Raises:
        ConfigError: one of them was cancelled, has failed already, or is of another flow, or of this one before it has gone
            back. Nothing is changed then.
    """
    for call in calls:
        if call._is_cancelled:
            raise ConfigError(f"call {call.number} of {call.name} was cancelled; post it again")
        if call._runner is not runner:
            raise ConfigError(
                f"call {call.number} of {call.name} is of another flow, or of this one before it has gone back to a common "
                "save; post it again"
            )
    try:
        runner.master.order.flush(call.number for call in calls if not call._was_flushed)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for call in calls:
        call._was_flushed = True
