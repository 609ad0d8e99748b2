"""HTTP/1.1 of uvicorn with deadlines; long bodies go from the socket into memory and back without a copy on the way.

h11 parses heads. A body of which the length is known, and that the application wants in memory of its own, never passes
through h11: the socket writes where the application says. The same for what is sent. Connections that send a request too
slowly, or take an answer too slowly, are closed.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from .budget import LOG, Budget
from .request import CONNECTION
from .uploads import Part

__all__ = ["Connection"]

#: Seconds for the whole head of a request, without a byte of its body, and in which the peer takes no byte of the answer.
_HEAD_S, _BODY_S, _ANSWER_S = 10.0, 30.0, 120.0
#: Bytes that are taken from a socket at once, so that other peers have their turn.
_MOST = 1 << 20
#: Bytes that are given to the transport at once.
_PIECE = 256 << 10
#: For heads and short bodies: so much arrives, at most, before anything is known of the peer.
_SCRATCH_BYTES = 16 << 10
#: Bytes of a body that are taken before the application wants them.
_AHEAD = 8 << 10
#: One per thread, hence one per event loop: no other call happens between `get_buffer` and `buffer_updated`.
_LOCAL = threading.local()


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection, which the application finds in the state of its scope.

    Lengths of heads are bounded by `h11_max_incomplete_event_size`.

    Args:
        config: Configuration of uvicorn.
        server_state: State of uvicorn.
        app_state: State for the scopes of requests.
        budget: Budget of connections that have not proven anything.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        budget: Budget,
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self})
        self.logger = LOG
        self._budget = budget
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._part: Part | None = None
        #: Of a body that does not pass through h11: bytes that have not arrived.
        self._left = 0
        #: Whether h11 has not seen the end of the body of this request.
        self._is_beside = False
        self._arrived = asyncio.Event()

    # --- For the application ---

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    async def read_into(self, part: Part, n: int) -> bool:
        """Read the body of the present request.

        Args:
            part: Part of an upload, which takes the body.
            n: Bytes of the body, as the head of the request says.

        Returns:
            False if the peer is gone, or the part takes no more.
        """
        # What came with the head.
        early, self.cycle.body = self.cycle.body, bytearray()
        room = part.room()[: len(early)]
        room[:] = memoryview(early)[: len(room)]
        part.arrived(len(room))
        if len(room) < len(early) or len(early) == n:
            return len(room) == n
        if self.cycle.disconnected:
            return False
        if self.cycle.waiting_for_100_continue:
            self.cycle.waiting_for_100_continue = False
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(go_on) or b"")
        self._left = n - len(early)
        self._is_beside, self._part = True, part
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the deadline of the first head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(_HEAD_S, self.abort)
        self._budget.arrived(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes of the peer go."""
        if self._left and self._is_beside:
            room = memoryview(b"") if self._part is None else self._part.room()
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
        if self._part is not None:
            self._part.arrived(nbytes)
        if self._left == 0:
            self.cycle.more_body = False
            self._end()
            if self.cycle.response_complete:
                self._begin_next()
            else:
                # The next request is not for this h11, which waits for the end of a body.
                self.flow.pause_reading()
        self._watch_body(self.cycle.response_complete)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a head or a body."""
        super().data_received(data)
        is_between = self.cycle is None or self.cycle.response_complete
        if is_between and self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(_HEAD_S, self.abort)
        elif not is_between and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if not is_between and len(self.cycle.body) > _AHEAD:
            # Until the application asks for it.
            self.flow.pause_reading()
        self._watch_body(is_between)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that reads, and all deadlines."""
        for timer in (self._head_timer, self._body_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        self._budget.left(self)
        super().connection_lost(exc)
        self._end()

    def on_response_complete(self) -> None:
        """Begin the next request, unless bytes of this one are on their way, and end the deadline of its body."""
        if self._is_beside and self._left == 0:
            self._begin_next()
        self._end()
        super().on_response_complete()
        self._watch_body(is_between=True)

    def pause_writing(self) -> None:
        """Begin the deadline of an answer that the peer does not take."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(_ANSWER_S, self.abort)

    def resume_writing(self) -> None:
        """End it."""
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _begin_next(self) -> None:
        """Have a new h11: the one so far has not seen the end of the request."""
        self._is_beside = False
        self.conn = h11.Connection(h11.SERVER, self.config.h11_max_incomplete_event_size or 16 << 10)

    def _watch_body(self, is_between: bool) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        if not is_between and self.cycle.more_body and not self.transport.is_closing():
            self._body_timer = self.loop.call_later(_BODY_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """The application may be slow itself: then the peer is not to blame."""
        self._body_timer = None
        if self.flow.read_paused:
            self._watch_body(is_between=False)
        else:
            self.abort()

    def _end(self) -> None:
        self._part = None
        self._arrived.set()


def _scratch() -> memoryview:
    if not hasattr(_LOCAL, "scratch"):
        _LOCAL.scratch = memoryview(bytearray(_SCRATCH_BYTES))
    scratch: memoryview = _LOCAL.scratch
    return scratch
