"""A flow under asyncio: it runs in one thread of its own, and the event loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ...errors import ConfigError
from ..engine.results import FlowStep
from .session import Session, StepStopped

__all__ = ["FlowThread"]

_Result = TypeVar("_Result")


async def _shielded(future: Future[_Result]) -> _Result:
    """Return what a function returns in another thread; if this is cancelled, the function goes on.

    What it raises then is for the next await of the flow: asyncio must not log it as never retrieved.
    """
    inner = asyncio.wrap_future(future)
    inner.add_done_callback(lambda one: None if one.cancelled() else one.exception())
    return await asyncio.shield(inner)


class FlowThread:
    """One thread, for all that a session does: `setup`, functions, the source, `close`.

    Args:
        session: Session that is not open yet.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        session.is_stopping = self._stops
        self._ident = 0
        self._executor = ThreadPoolExecutor(1, "softs-flow-steps", self._note)
        self._is_stopping = threading.Event()
        self._is_closing = False
        # What was awaited when the task was cancelled.
        self._left: Future[Any] | None = None
        self._is_awaited = False

    async def run(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what a function returns in the thread. If this is cancelled, it goes on, and the next one awaits it.

        Raises:
            Exception: what it raised, or what was awaited no more has raised since then.
            ConfigError: another task awaits the flow.
        """
        await self._settle()
        return await self._run(function, *arguments)

    async def step(self, end: int | None = None) -> FlowStep | None:
        """Return what `Session.next_step` does; a step that was awaited no more goes on, or is returned now."""
        step = await self.run(self._session.next_step, end)
        if step is not None:
            self._session.returned(step.number)
        return step

    async def steps(self, n: int | None) -> AsyncIterator[FlowStep]:
        """Yield so many steps; see `Session.end_of`."""
        await self._settle()
        end = self._session.end_of(n)
        while (step := await self.step(end)) is not None:
            yield step
        await self._run(self._session.finish, end)

    async def close(self) -> None:
        """Close the session and end the thread, also if this is cancelled meanwhile.

        Raises:
            Exception: what a role raised that was closed.
        """
        self._is_closing = True
        self._is_stopping.set()
        future = asyncio.wrap_future(self._executor.submit(self._session.close))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
        self._executor.shutdown()
        future.result()
        if cancelled is not None:
            raise cancelled

    def _note(self) -> None:
        self._ident = threading.get_ident()

    def _stops(self, is_beginning: bool) -> bool:
        """Return whether what runs here is awaited no more; False in another thread.

        Args:
            is_beginning: Whether workers are started; they are whole before anything stops, unless all ends.
        """
        is_over = self._is_stopping.is_set() and (self._is_closing or not is_beginning)
        return is_over and threading.get_ident() == self._ident

    @contextlib.contextmanager
    def _awaited(self) -> Iterator[None]:
        if self._is_awaited:
            raise ConfigError("another task awaits this flow; one at a time does")
        self._is_awaited = True
        try:
            yield
        finally:
            self._is_awaited = False

    async def _run(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        with self._awaited():
            future = self._executor.submit(contextvars.copy_context().run, function, *arguments)
            try:
                return await _shielded(future)
            except asyncio.CancelledError:
                self._left = future
                self._is_stopping.set()
                raise

    async def _settle(self) -> None:
        """Await what was awaited no more; a step that is complete since then is the next one of the session.

        Raises:
            Exception: what it raised.
            ConfigError: another task awaits it.
        """
        left = self._left
        if left is not None:
            with self._awaited(), contextlib.suppress(StepStopped):
                try:
                    result = await _shielded(left)
                except asyncio.CancelledError:
                    raise  # it is awaited the next time
                except BaseException:
                    self._left = None
                    raise
                self._left = None
                if isinstance(result, FlowStep):
                    self._session.late = result
        self._is_stopping.clear()
