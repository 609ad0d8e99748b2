"""Messages between two ranks of several hosts: one connection for each ordered pair, made with its first message."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from softs_fast import _core
from softs_fast.collectives.backend.host_calls import memory_at
from softs_fast.collectives.link_engine import LEAVE_S, Offer
from softs_fast.collectives.rendezvous import KeyValueStore
from softs_fast.errors import PeerLost, SoftsError
from softs_fast.process import check_process

#: Before a message: its tag and its number of bytes.
_HEADER = struct.Struct("<qq")
_POLL_INTERVAL_S = 0.002
_LONGEST_POLL_S = 0.05
# A message may come at any time.
_NEVER_S = 1e9


@dataclass(eq=False)
class _Post:
    """A message that is waited for, or to be sent.

    Attributes:
        memory: Memory of the message.
        tag: Tag of it.
        until: When it is too late, by the monotonic clock.
        future: What becomes of it.
        is_taken: Whether it is being sent or received, so that its memory is in use.
    """

    memory: Any
    tag: int
    until: float
    future: Future[None] = field(default_factory=Future)
    is_taken: bool = False


class RingOutcome:
    """What becomes of a message; see `_kernels.Outcome`."""

    def __init__(self, lane: _Lane, post: _Post) -> None:
        self._lane = lane
        self._post = post

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the message has been moved, or is too late; wait so long for that, and without a bound if None."""
        end = None if seconds is None else time.monotonic() + seconds
        while not self._post.future.done():
            now = time.monotonic()
            if now >= self._post.until:
                # One that is being moved is not late.
                self._lane.withdraw(self._post)
            if end is not None and now >= end:
                return self._post.future.done()
            late = _LONGEST_POLL_S if self._post.is_taken else max(self._post.until - now, _POLL_INTERVAL_S)
            wait([self._post.future], late if end is None else min(late, end - now))
        return True

    def differences(self) -> list[bytes]:
        """Return nothing; raise what became of the message."""
        self._post.future.result()
        return []


class HostRings:
    """Sends and receives bytes; the methods are those of `_kernels.PointToPoint`.

    Args:
        store: Store in which the ranks meet.
        name: Name of the group in it.
        rank: This process's number.
        listen: Function that returns a mesh of this rank that is not joined.
        timeout_s: Seconds within which two ranks that know each other connect.
        ended: Function that returns the ranks that have ended, or left the group.
    """

    def __init__(
        self,
        store: KeyValueStore,
        name: str,
        rank: int,
        listen: Callable[[], _core.Mesh],
        timeout_s: float,
        ended: Callable[[], list[int]],
    ) -> None:
        self._store = store
        self._name = name
        self._rank = rank
        self._listen = listen
        self._timeout_s = timeout_s
        self._ended_ranks = ended
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._is_closed = False

    def send(self, rank: int, address: int, n_bytes: int, tag: int, timeout_s: float) -> RingOutcome:
        """Send bytes to a rank; the call ends when their memory is free."""
        return self._post(self._rank, rank, address, n_bytes, tag, timeout_s)

    def receive(self, rank: int, address: int, n_bytes: int, tag: int, timeout_s: float) -> RingOutcome:
        """Receive bytes from a rank."""
        return self._post(rank, self._rank, address, n_bytes, tag, timeout_s)

    def close(self) -> None:
        """End what is pending."""
        with self._lock:
            self._is_closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()

    abandon = close

    def _post(
        self, source: int, target: int, address: int, n_bytes: int, tag: int, timeout_s: float
    ) -> RingOutcome:
        # A fork has neither the threads nor a connection to the store.
        check_process(self._pid, "this group")
        with self._lock:
            if self._is_closed:
                raise PeerLost("the group is closed")
            lane = self._lanes.get((source, target))
            if lane is None:
                kind = _Sender if source == self._rank else _Receiver
                other = target if source == self._rank else source

                def check() -> None:
                    if other in self._ended_ranks():
                        raise PeerLost(f"rank {other} has ended, or left the group")

                key = f"{self._name}.{source}.{target}"
                lane = kind(self._store, key, self._listen, self._timeout_s, check)
                self._lanes[source, target] = lane
        post = _Post(memory_at(address, n_bytes), tag, time.monotonic() + timeout_s)
        lane.add(post)
        return RingOutcome(lane, post)


class _Lane:
    """One direction between two ranks, with a thread."""

    #: Number at the connection of the two.
    number: int

    def __init__(
        self,
        store: KeyValueStore,
        key: str,
        listen: Callable[[], _core.Mesh],
        timeout_s: float,
        check: Callable[[], None],
    ) -> None:
        self._store = store
        self._key = key
        self._listen = listen
        self._timeout_s = timeout_s
        #: Raises PeerLost if the other rank has ended.
        self._check = check
        self._changed = threading.Condition()
        self._posts: deque[_Post] = deque()
        self._ended: Exception | None = None
        self._mesh: _core.Mesh | None = None
        self._thread: threading.Thread | None = None

    def add(self, post: _Post) -> None:
        """Move a message after those before it."""
        with self._changed:
            if self._ended is not None:
                post.future.set_exception(self._ended)
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="softs-messages", daemon=True)
                self._thread.start()
            self._posts.append(post)
            self._changed.notify()

    def withdraw(self, post: _Post) -> None:
        """Give up a message that is too late, unless it is being moved."""
        with self._changed:
            if post.is_taken or post.future.done():
                return
            with suppress(ValueError):
                self._posts.remove(post)
            post.future.set_exception(PeerLost("the message was not taken in time: Timed out"))

    def close(self) -> None:
        """End what is pending, and the thread."""
        if self._mesh is not None:
            # What was sent, and is on its way.
            self._mesh.drain(LEAVE_S)
        self._end(PeerLost("the group is closed"))
        if self._thread is not None and self._thread is not threading.current_thread():
            # A store of which the server is stopped answers never.
            self._thread.join(LEAVE_S)

    def _end(self, error: Exception) -> None:
        with self._changed:
            self._ended = self._ended or error
            # With the lock: those that are too late are withdrawn with it.
            for post in self._posts:
                post.future.set_exception(self._ended)
            self._posts.clear()
            self._changed.notify()
            mesh = self._mesh
        if mesh is not None:
            mesh.shut_down()

    def _run(self) -> None:
        try:
            mesh = self._connect()
            while self._ended is None:
                self._move(mesh)
        except Exception as error:  # whatever it is, those that wait must learn it
            self._end(error if isinstance(error, SoftsError) else PeerLost(repr(error)))

    def _connect(self) -> _core.Mesh:
        mesh = self._listen()
        own, other = Offer(mesh.endpoint, mesh.key, True), 1 - self.number
        self._store.set(f"{self._key}.{self.number}", own.text())
        interval_s = _POLL_INTERVAL_S
        while True:
            said = self._store.get(f"{self._key}.{other}")
            if self._ended is not None:
                raise self._ended
            self._check()
            if said is not None:
                break
            time.sleep(interval_s)
            interval_s = min(2 * interval_s, _LONGEST_POLL_S)
        offers = [own, Offer.parse(said)]
        if self.number == 1:
            offers.reverse()
        with self._changed:
            self._mesh = mesh
        mesh.join(self.number, [(offer.endpoint, offer.key) for offer in offers], self._timeout_s)
        return mesh

    def _move(self, mesh: _core.Mesh) -> None:
        """Move the next message."""
        raise NotImplementedError

    def _wait_for_posts(self) -> bool:
        """Return whether a message is there, once one is or the lane has ended; to be called with the lock."""
        while not self._posts and self._ended is None:
            self._changed.wait()
        return self._ended is None


class _Sender(_Lane):
    number = 0

    def _move(self, mesh: _core.Mesh) -> None:
        with self._changed:
            if not self._wait_for_posts():
                return
            post = self._posts.popleft()
            post.is_taken = True
        header = _HEADER.pack(post.tag, len(post.memory))
        try:
            mesh.exchange([(1, header), (1, post.memory)], [], max(post.until - time.monotonic(), 0.0))
        except Exception as error:
            post.future.set_exception(error)
            raise
        post.future.set_result(None)


class _Receiver(_Lane):
    number = 1

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Messages that came before they were waited for, by tag.
        self._early: dict[int, deque[bytearray]] = {}

    def add(self, post: _Post) -> None:
        """Receive a message after those of its tag before it; it may be here."""
        with self._changed:
            early = self._early.get(post.tag)
            if early:
                post.is_taken = True
                _store(early.popleft(), post)
                return
            super().add(post)

    def _move(self, mesh: _core.Mesh) -> None:
        with self._changed:
            if not self._wait_for_posts():
                return
        header = bytearray(_HEADER.size)
        mesh.exchange([], [(0, header)], _NEVER_S)
        tag, n_bytes = _HEADER.unpack(header)
        post = self._post_of(tag)
        fits = post is not None and len(post.memory) == n_bytes
        body = post.memory if post is not None and fits else bytearray(n_bytes)
        try:
            mesh.exchange([], [(0, body)], self._timeout_s)
        except Exception as error:
            if post is not None:
                post.future.set_exception(error)
            raise
        if post is not None and fits:
            post.future.set_result(None)
            return
        with self._changed:
            # It may have been asked for meanwhile.
            post = post or self._post_of(tag)
            if post is None:
                self._early.setdefault(tag, deque()).append(body)
            else:
                _store(body, post)

    def _post_of(self, tag: int) -> _Post | None:
        """Take the first post that waits for a tag."""
        with self._changed:
            post = next((one for one in self._posts if one.tag == tag), None)
            if post is not None:
                self._posts.remove(post)
                post.is_taken = True
            return post


def _store(message: bytearray, post: _Post) -> None:
    """Store a message that has come, if it has the bytes that are waited for."""
    if len(message) != len(post.memory):
        post.future.set_exception(
            PeerLost(f"a message of {len(message)} bytes came where {len(post.memory)} were waited for")
        )
        return
    post.memory[:] = message
    post.future.set_result(None)
