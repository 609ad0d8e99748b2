"""Messages on their way between the thread that trains and those of gRPC: bounded, and over for all at once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import PeerLost, SoftsError

__all__ = ["Mailboxes"]


class _Box:
    """What came from a peer, and what goes to it."""

    def __init__(self, lock: threading.Lock) -> None:
        self.came: deque[Any] = deque()
        self.has_come = threading.Condition(lock)
        self.going: deque[bytes] = deque()
        self.has_gone = threading.Condition(lock)
        #: Why nothing comes after what is there; empty while something may.
        self.finished = ""
        self.is_closing = False


class Mailboxes:
    """A box for each peer. All methods may be called by any thread.

    Args:
        peers: their ranks.
        most: messages that wait in a box; `put` and `send` wait for room. What comes is not bounded if 0.
        most_going: the same for those that go.
    """

    def __init__(self, peers: Iterable[int], most: int, most_going: int) -> None:
        self._lock = threading.Lock()
        self._boxes = {peer: _Box(self._lock) for peer in peers}
        self._most = most
        self._most_going = most_going
        self._error: SoftsError | None = None
        # Held while a tensor is written.
        self._writing = threading.Lock()

    @property
    def error(self) -> SoftsError | None:
        """Why the group is over; None while it is not."""
        return self._error

    def put(self, peer: int, message: object) -> None:
        """Add a message that has come; it is dropped if the group is over."""
        with self._lock:
            box = self._boxes[peer]
            while self._most and len(box.came) >= self._most and self._error is None:
                box.has_come.wait()
            if self._error is None:
                box.came.append(message)
                box.has_come.notify_all()

    def finish(self, peer: int, reason: str) -> None:
        """Note that nothing comes from a peer after what is there."""
        with self._lock:
            box = self._boxes[peer]
            box.finished = box.finished or reason
            box.has_come.notify_all()

    def take(self, peer: int, until_s: float) -> Any:
        """Return the next message of a peer.

        Raises:
            TimeoutError: none came until then.
            SoftsError: the group is over, or the peer has left.
        """
        with self._lock:
            box = self._boxes[peer]
            while not box.came:
                self._raise_if_over()
                if box.finished:
                    raise PeerLost(box.finished)
                if not box.has_come.wait(until_s - time.monotonic()) and time.monotonic() >= until_s:
                    raise TimeoutError
            self._raise_if_over()
            message = box.came.popleft()
            box.has_come.notify_all()
            return message

    def send(self, peer: int, data: bytes, until_s: float) -> None:
        """Add a message for a peer.

        Raises:
            TimeoutError: there was no room until then.
            SoftsError: the group is over, or the peer has left.
        """
        with self._lock:
            box = self._boxes[peer]
            self._raise_if_over()
            if box.finished and not box.came:
                raise PeerLost(box.finished)
            while len(box.going) >= self._most_going and self._error is None:
                if not box.has_gone.wait(until_s - time.monotonic()) and time.monotonic() >= until_s:
                    raise TimeoutError
            self._raise_if_over()
            box.going.append(data)
            box.has_gone.notify_all()

    def outgoing(self, peer: int) -> Iterator[bytes]:
        """Iterate over what goes to a peer, until `close_box` or `end`."""
        box = self._boxes[peer]
        while True:
            with self._lock:
                while not box.going and not box.is_closing:
                    box.has_gone.wait()
                if not box.going:
                    return
                data = box.going.popleft()
                box.has_gone.notify_all()
            yield data

    def close_box(self, peer: int) -> None:
        """End what goes to a peer, after what is there."""
        with self._lock:
            self._boxes[peer].is_closing = True
            self._boxes[peer].has_gone.notify_all()

    def end(self, error: SoftsError, last_words: Callable[[], bytes] | None = None) -> bool:
        """End the group: all calls raise the error, and no tensor is written after this has returned. Idempotent.

        Args:
            error: Error that all calls raise from now on.
            last_words: Function that makes the last message to each peer, after those that wait.

        Returns:
            Whether it was not over before.
        """
        with self._writing, self._lock:
            is_first = self._error is None
            self._error = self._error or error
            said = [last_words()] if is_first and last_words is not None else []
            for box in self._boxes.values():
                if is_first:
                    box.came.clear()
                    box.going.extend(said)
                box.is_closing = True
                box.has_come.notify_all()
                box.has_gone.notify_all()
        return is_first

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write to a tensor inside, which `end` waits for.

        Raises:
            SoftsError: the group is over.
        """
        with self._writing:
            if self._error is not None:
                raise type(self._error)(str(self._error))
            yield

    def _raise_if_over(self) -> None:
        # A new one: an exception that is raised keeps the frames through which it goes.
        if self._error is not None:
            raise type(self._error)(str(self._error))
