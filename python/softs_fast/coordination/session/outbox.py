"""What a connection of a worker has to send, in its order; steps that follow each other quickly go as one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

__all__ = ["STEP_S", "Outbox"]

#: Shortest time between two steps that are sent, seconds. Each takes the interpreter from the thread that trains for half a
#: millisecond and more, which is much of a short step; a status on a screen looks the same.
STEP_S = 0.1


class Outbox:
    """Messages that one thread takes, by iterating, and others put in; it ends with None."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[bytes | None] = deque()
        # The last step, until it is sent.
        self._step: bytes | None = None
        self._next_s = 0.0
        self._is_idle = False

    def put(self, message: bytes | None) -> None:
        """Have a message sent at once, after all that were put in before."""
        with self._changed:
            self._post_step()
            self._messages.append(message)
            self._changed.notify()

    def put_step(self, message: bytes) -> None:
        """Have a step sent soon, in place of one that was put in before and not sent yet."""
        with self._changed:
            self._step = message
            # Else it is seen when the time has come: to wake the other thread takes as long as to send.
            if self._is_idle:
                self._changed.notify()

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the messages as they come."""
        return iter(self._take, None)

    def _take(self) -> bytes | None:
        with self._changed:
            while not self._messages:
                rest_s = self._next_s - time.monotonic()
                if rest_s > 0:
                    self._changed.wait(rest_s)
                elif self._step is not None:
                    self._post_step()
                else:
                    self._is_idle = True
                    self._changed.wait()
                    self._is_idle = False
            return self._messages.popleft()

    def _post_step(self) -> None:
        if self._step is not None:
            self._messages.append(self._step)
            self._step, self._next_s = None, time.monotonic() + STEP_S
