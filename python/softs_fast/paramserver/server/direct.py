"""HTTP/1.1 of uvicorn, of which long bodies go from the socket into memory and back, without a copy on the way.

h11 parses heads. A body of which the length is known, and that the application wants in memory of its own, never passes
through h11: the socket writes where the application says. The same for what is sent.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Protocol

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["CONNECTION", "DirectProtocol", "Sink"]

#: The key of the protocol in the state of a scope.
CONNECTION = "softs_fast.connection"

#: Bytes that are taken from a socket at once, so that other peers have their turn.
_MOST = 1 << 20
#: Bytes that are given to the transport at once.
_PIECE = 256 << 10
#: For heads and short bodies: so much arrives, at most, before anything is known of the peer.
_SCRATCH_BYTES = 16 << 10
#: Of each thread, and so of each event loop: between the calls for a buffer and for what is in it there is no other one.
_LOCAL = threading.local()


class Sink(Protocol):
    """Where a body goes."""

    def room(self) -> memoryview:
        """Return where the next bytes go; nothing: no more bytes are wanted."""

    def arrived(self, n: int) -> None:
        """Count bytes that were written to `room`."""


class DirectProtocol(H11Protocol, asyncio.BufferedProtocol):
    """A connection. The application finds it in the state of its scope.

    Args:
        config: Configuration of uvicorn.
        server_state: Server state of uvicorn.
        app_state: State for the scopes of requests.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._sink: Sink | None = None
        #: Of a body that does not pass through h11: bytes that have not arrived.
        self._left = 0
        #: Whether h11 has not seen the end of the body of this request.
        self._is_beside = False
        self._arrived = asyncio.Event()

    # --- For the application ---

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    async def read_into(self, sink: Sink, n: int) -> bool:
        """Read the body of the present request.

        Args:
            sink: Sink that takes the body.
            n: Bytes of the body, as the head of the request says.

        Returns:
            False if the peer is gone, or the sink wants no more.
        """
        # What came with the head.
        early, self.cycle.body = self.cycle.body, bytearray()
        room = sink.room()[: len(early)]
        room[:] = memoryview(early)[: len(room)]
        sink.arrived(len(room))
        if len(room) < len(early) or len(early) == n:
            return len(room) == n
        if self.cycle.disconnected:
            return False
        if self.cycle.waiting_for_100_continue:
            self.cycle.waiting_for_100_continue = False
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(go_on) or b"")
        self._left = n - len(early)
        self._is_beside, self._sink = True, sink
        self._arrived.clear()
        self.flow.resume_reading()
        await self._arrived.wait()
        return self._left == 0

    async def write_from(self, data: memoryview) -> None:
        """Send a part of the body of an answer, of which the head was sent."""
        for at in range(0, len(data), _PIECE):
            if self.flow.write_paused and not self.cycle.disconnected:
                await self.flow.drain()
            if self.cycle.disconnected:
                return
            piece = data[at : at + _PIECE]
            self.conn.send_with_data_passthrough(h11.Data(data=piece))  # type: ignore[arg-type]
            self.transport.write(piece)

    # --- For the transport ---

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes of the peer go."""
        if self._left and self._is_beside:
            room = memoryview(b"") if self._sink is None else self._sink.room()
            if len(room):
                return room[: min(self._left, _MOST)]
            # What is not wanted any more is read and dropped.
            self._end()
            return _scratch()[: self._left]
        return _scratch()

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were written to the buffer."""
        if not (self._left and self._is_beside):
            self.data_received(bytes(_scratch()[:nbytes]))
            return
        self._left -= nbytes
        if self._sink is not None:
            self._sink.arrived(nbytes)
        if self._left == 0:
            self.cycle.more_body = False
            self._end()
            if self.cycle.response_complete:
                self._begin_next()
            else:
                # The next request is not for this h11, which waits for the end of a body.
                self.flow.pause_reading()
        self.body_received()

    def body_received(self) -> None:
        """Bytes of a body have arrived that did not pass through h11."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that reads."""
        super().connection_lost(exc)
        self._end()

    def on_response_complete(self) -> None:
        """Begin the next request, unless bytes of this one are on their way."""
        if self._is_beside and self._left == 0:
            self._begin_next()
        self._end()
        super().on_response_complete()

    def _begin_next(self) -> None:
        """Have a new h11: the one so far has not seen the end of the request."""
        self._is_beside = False
        self.conn = h11.Connection(h11.SERVER, self.config.h11_max_incomplete_event_size or 16 << 10)

    def _end(self) -> None:
        self._sink = None
        self._arrived.set()


def _scratch() -> memoryview:
    if not hasattr(_LOCAL, "scratch"):
        _LOCAL.scratch = memoryview(bytearray(_SCRATCH_BYTES))
    scratch: memoryview = _LOCAL.scratch
    return scratch
