"""Connections that send a request too slowly, or take an answer too slowly, are closed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from .budget import Budget
from .direct import DirectProtocol
from .quiet import LOG

__all__ = ["GuardedProtocol", "Limits"]


#: Bytes of a body that are taken before the application wants them.
_AHEAD = 8 << 10


class Limits:
    """Seconds that a peer may take; a test makes them shorter.

    Attributes:
        head_s: Seconds for the whole head of a request.
        body_s: Seconds without a byte of the body of a request.
        answer_s: Seconds in which the peer takes no byte of the answer.
    """

    head_s = 10.0
    body_s = 30.0
    answer_s = 120.0


class GuardedProtocol(DirectProtocol):
    """HTTP/1.1 with deadlines. Lengths of heads are bounded by `h11_max_incomplete_event_size`.

    Args:
        config: Configuration of uvicorn.
        server_state: State of uvicorn.
        app_state: State for the scopes of requests.
        budget: Budget of connections that have not proven anything.
    """

    limits: type[Limits] = Limits

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        budget: Budget,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.logger = LOG
        self._budget = budget
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the deadline of the first head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.limits.head_s, self.abort)
        self._budget.arrived(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all deadlines."""
        for timer in (self._head_timer, self._body_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        self._budget.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a head or a body."""
        super().data_received(data)
        is_between = self.cycle is None or self.cycle.response_complete
        if is_between and self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.limits.head_s, self.abort)
        elif not is_between and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if not is_between and len(self.cycle.body) > _AHEAD:
            # Until the application asks for it.
            self.flow.pause_reading()
        self._watch_body(is_between)

    def body_received(self) -> None:
        """Take bytes of a body that are in memory already."""
        self._watch_body(self.cycle.response_complete)

    def on_response_complete(self) -> None:
        """End the deadline of a body that is not wanted any more."""
        super().on_response_complete()
        self._watch_body(is_between=True)

    def pause_writing(self) -> None:
        """Begin the deadline of an answer that the peer does not take."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(self.limits.answer_s, self.abort)

    def resume_writing(self) -> None:
        """End it."""
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _watch_body(self, is_between: bool) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        if not is_between and self.cycle.more_body and not self.transport.is_closing():
            self._body_timer = self.loop.call_later(self.limits.body_s, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """The application may be slow itself: then the peer is not to blame."""
        self._body_timer = None
        if self.flow.read_paused:
            self._watch_body(is_between=False)
        else:
            self.abort()
