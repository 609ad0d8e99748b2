"""The stream of one worker: what is sent to it, bounded, and what it sends."""

from __future__ import annotations

import asyncio
from typing import Any

from ...errors import PeerLost, WireError
from ..job.messages import FromWorker, Hello, ToWorker
from ..wire.formats import FROM_WORKER
from .driver import Driver

__all__ = ["WorkerStream"]

#: Messages that wait for a worker that does not read; the next one ends its connection.
_MOST_WAITING = 64
#: A connection must say what it is within so many seconds, and may take as long to read its last messages.
_PATIENCE_S = 10.0


class WorkerStream:
    """A connection of a worker, from its first message to its end.

    Args:
        driver: Driver of the job.
        context: Context of the call, as gRPC gives it.
        identity: Identity that the connection has proven; None if it proves none.
    """

    def __init__(self, driver: Driver, context: Any, identity: str | None) -> None:
        self._driver = driver
        self._context = context
        self._identity = identity
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        #: Its result is why the worker is given up.
        self._given_up: asyncio.Future[str] = self._loop.create_future()

    def send(self, message: ToWorker, data: bytes) -> None:
        """Send a message; never waits."""
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put_nowait(data)
        else:
            self._give_up(f"the worker has not read {_MOST_WAITING} messages")

    def finish(self) -> None:
        """End the stream after what was sent on it."""
        self._waiting.put_nowait(None)
        self._loop.call_later(_PATIENCE_S, self._give_up, "the worker has not read its last messages")

    async def serve(self) -> None:
        """Serve the stream until one side ends it.

        Raises:
            WireError: the worker sent what no message may be.
            PeerLost: it did not read, or said nothing; it may connect again.
        """
        number = self._driver.connect(self)
        reader = asyncio.ensure_future(self._read(number))
        writer = asyncio.ensure_future(self._write())
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, self._given_up}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            self._driver.gone(number)
            self._write_no_more()
            failures = await asyncio.gather(reader, writer, return_exceptions=True)
        if self._given_up.done():
            raise PeerLost(self._given_up.result())
        for failure in failures:
            if isinstance(failure, Exception):
                raise failure

    def _write_no_more(self) -> None:
        """Have the writer end after the write that is under way.

        gRPC can end a call with a status only when no write is under way, and one that is cancelled still is. It ends
        when the worker reads on, or with its connection.
        """
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)

    def _give_up(self, reason: str) -> None:
        if not self._given_up.done():
            self._given_up.set_result(reason)

    async def _read(self, number: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                message = await self._next()
        except TimeoutError:
            raise PeerLost(f"no Hello came within {_PATIENCE_S:g} s") from None
        if not isinstance(message, Hello):
            first = "the end of the stream" if message is None else type(message).__name__
            raise WireError(f"the first message of a worker is Hello, not {first}")
        while message is not None:
            self._driver.receive(number, message, self._identity)
            message = await self._next()
            if isinstance(message, Hello):
                raise WireError("a worker says Hello once on a connection")

    async def _next(self) -> FromWorker | None:
        """Return the next message; None at the end of the stream."""
        data = await self._context.read()
        return FROM_WORKER.decode(data) if isinstance(data, bytes) else None

    async def _write(self) -> None:
        while (data := await self._waiting.get()) is not None:
            await self._context.write(data)
