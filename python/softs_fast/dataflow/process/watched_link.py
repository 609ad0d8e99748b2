"""A worker's link to a master on another host: the end of it is known while a step runs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from ... import _core
from ...errors import HelloError, PeerLost
from ..link.messages import End, Message, Refused
from ..link.stream import WorkerStream

__all__ = ["WatchedLink"]


class WatchedLink(WorkerStream):
    """A worker's end with a thread that receives; it is blocked while nothing comes.

    No process can end a worker on another host. So if the link ends, or the master gives this worker up, and what runs
    here does not return within some seconds, `stuck` is called by that thread; so it is when the flow has ended.

    Args:
        native: Native end, which is closed with this one.
        grace_s: Seconds that a running step may take to return.
        stuck: Function that ends this process, or has it begin again.

    Attributes:
        has_ended: Whether the master has said that the flow has ended.
    """

    def __init__(self, native: _core.FlowClient, grace_s: float, stuck: Callable[[], None]) -> None:
        super().__init__(native)
        self._grace_s = grace_s
        self._stuck = stuck
        #: Messages; None: there are no more.
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._why = ""
        self._refusal = ""
        self.has_ended = False
        self._is_closed = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._receive_all, name="softs-flow-link", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> str:
        """Why there is no master any more, as soon as the thread knows; to be asked when it has ended, or the flow has."""
        self._is_over.wait(self._grace_s)
        return self._why

    def send(self, message: Message) -> None:
        """As `WorkerStream.send`.

        Raises:
            PeerLost: the master has ended, or has given this worker up.
        """
        if self._why:
            raise PeerLost(self._why)
        super().send(message)

    def receive(self, timeout_s: float | None) -> list[Message]:
        """As `WorkerStream.receive`.

        Raises:
            PeerLost: the master has ended, or has given this worker up; what came before was returned.
        """
        messages: list[Message] = []
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if end_s is None else max(end_s - time.monotonic(), 0.0)
            try:
                message = self._messages.get(timeout=0.0 if messages else left_s)
            except queue.Empty:
                return messages
            if message is not None:
                messages.append(message)
                continue
            self._messages.put(None)  # for the next call
            if messages:
                return messages
            raise PeerLost(self._why)

    def check(self) -> None:
        """Check that the master takes this worker.

        Raises:
            HelloError: it does not.
        """
        if self._refusal:
            raise HelloError(self._refusal)

    def close(self) -> None:
        """End the connection and the thread; idempotent."""
        self._is_closed.set()
        super().close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _receive_all(self) -> None:
        try:
            while True:
                for message in super().receive(None):
                    if isinstance(message, Refused):
                        self._refusal = message.reason
                        raise PeerLost(f"the master has given this worker up: {message.reason}")
                    self.has_ended = self.has_ended or isinstance(message, End)
                    self._messages.put(message)
        except Exception as error:  # a message that cannot be read ends the link, too
            self._why = str(error)
            self._is_over.set()
            self._messages.put(None)
        if not self._is_closed.wait(self._grace_s):
            self._stuck()
