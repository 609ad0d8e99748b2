"""A flow under asyncio: it runs in one thread of its own, and the event loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from ...errors import ConfigError, FlowError
from ..engine.results import FlowStep
from .requests import Requests

__all__ = ["AsyncFlow", "StepStopped"]

_Result = TypeVar("_Result")


class StepStopped(FlowError):
    """A step that is awaited no more has stopped between two events; the next one goes on there."""


async def _shielded(future: Future[_Result]) -> _Result:
    """Return what a function returns in another thread; if this is cancelled, the function goes on.

    What it raises then is for the next await of the flow: asyncio must not log it as never retrieved.
    """
    inner = asyncio.wrap_future(future)
    inner.add_done_callback(lambda one: None if one.cancelled() else one.exception())
    return await asyncio.shield(inner)


class FlowThread:
    """One thread, for all that a flow does: `setup`, functions, the source, `close`."""

    def __init__(self) -> None:
        self._ident = 0
        self._executor = ThreadPoolExecutor(1, "softs-flow-steps", self._note)
        self.is_stopping = threading.Event()
        self.is_closing = False
        # What was awaited when the task was cancelled.
        self._left: Future[Any] | None = None
        self._is_awaited = False

    def _note(self) -> None:
        self._ident = threading.get_ident()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._ident

    @contextlib.contextmanager
    def _awaited(self) -> Iterator[None]:
        if self._is_awaited:
            raise ConfigError("another task awaits this flow; one at a time does")
        self._is_awaited = True
        try:
            yield
        finally:
            self._is_awaited = False

    async def run(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what a function returns in the thread. If this is cancelled, it goes on, and `settle` awaits it."""
        with self._awaited():
            future = self._executor.submit(contextvars.copy_context().run, function, *arguments)
            try:
                return await _shielded(future)
            except asyncio.CancelledError:
                self._left = future
                self.is_stopping.set()
                raise

    async def settle(self) -> Any:
        """Return what a function returned that was awaited no more; None if there is none, or it has stopped.

        Raises:
            Exception: what it raised.
            ConfigError: another task awaits it.
        """
        left = self._left
        if left is None:
            return None
        result = None
        with self._awaited():
            try:
                result = await _shielded(left)
            except asyncio.CancelledError:
                raise  # it is awaited the next time
            except StepStopped:
                pass
            except BaseException:
                self._left = None
                raise
            self._left = None
        return result

    async def close(self, function: Callable[[], None]) -> None:
        """Run the last function and end the thread, also if this is cancelled meanwhile.

        Raises:
            Exception: what the function raised.
        """
        self.is_closing = True
        self.is_stopping.set()
        future = asyncio.wrap_future(self._executor.submit(function))
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


class AsyncFlow(Requests):
    """What a flow has for asyncio; `Flow` adds the rest."""

    _asked: int
    _is_beginning: bool
    _thread: FlowThread | None = None
    #: A step that was complete when its task had been cancelled.
    _late: FlowStep | None = None

    @abstractmethod
    def initialize(self) -> Self:
        """Make the objects of all roles."""

    @abstractmethod
    def reset(self) -> None:
        """Drop all rows and the objects of all roles."""

    @abstractmethod
    def _next_step(self) -> FlowStep | None:
        """Run until a step is complete; returns None at the end of the source."""

    async def __aenter__(self) -> Self:
        if self._thread is not None or self._is_open:
            raise ConfigError("the flow is open; it is entered once at a time")
        self._thread = FlowThread()
        try:
            return await self._thread.run(self.initialize)
        except BaseException:
            await self._close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def step(self) -> FlowStep | None:
        """Run until the next step is complete, while the event loop goes on; None at the end of the source.

        If the task is cancelled, the step stops when the function that runs in this process has returned, and goes on
        with the next call. A step that was complete by then is what the next call returns.

        Raises:
            FlowError: as in `steps`.
            ConfigError: the flow is not open by `async with`, or another task awaits it.
        """
        thread = self._entered()
        await self._settle(thread)
        step, self._late = self._late, None
        if step is None:
            step = await thread.run(self._next_step)
        if step is not None:
            self._asked = max(self._asked, step.number)
        return step

    async def steps_async(self, n: int | None = None) -> AsyncIterator[FlowStep]:
        """Yield steps as `steps` does, while the event loop goes on.

        Args:
            n: how many; see `steps`.

        Raises:
            FlowError: as in `steps`.
            ConfigError: as in `step`.
        """
        thread = self._entered()
        await self._settle(thread)
        begin = self._asked if self._saves is not None else self._n_steps - (self._late is not None)
        end = None if n is None else begin + n
        while end is None or self._n_steps - (self._late is not None) < end:
            step = await self.step()
            if step is None:
                break
            yield step
        self._asked = max(self._asked, end or 0)
        await thread.run(self._end_saves)

    async def run(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what a function returns in the thread of the flow, such as `call.result`.

        Args:
            function: Function that is called in that thread.
            arguments: Arguments of the function.

        Raises:
            Exception: what it raised.
            ConfigError: as in `step`.
        """
        thread = self._entered()
        await self._settle(thread)
        return await thread.run(function, *arguments)

    def _entered(self) -> FlowThread:
        if self._thread is None:
            raise ConfigError("the flow is not open for asyncio; use it in an `async with` block")
        return self._thread

    async def _settle(self, thread: FlowThread) -> None:
        left = await thread.settle()
        if isinstance(left, FlowStep):
            self._late = left
        thread.is_stopping.clear()

    async def _close(self) -> None:
        assert self._thread is not None
        try:
            await self._thread.close(self.reset)
        finally:
            self._thread, self._late = None, None

    def _end_saves(self) -> None:
        """Wait for a common save that was begun; not for one of a step that is complete and was not yielded yet."""
        while self._saves is not None and self._saves.is_open:
            self._check_stop()
            if not self._turn(automatic=False, timeout_s=self._slice_s):
                return

    def _check_stop(self) -> None:
        thread = self._thread
        if thread is None or not thread.is_here or not thread.is_stopping.is_set():
            return
        if self._is_beginning and not thread.is_closing:
            return  # workers that are started again are whole before anything stops
        raise StepStopped("the step is awaited no more")

    @property
    def _slice_s(self) -> float | None:
        """How long one wait for worker processes may be: what is awaited no more ends after it."""
        return None if self._thread is None else 0.1
