"""The native parts of a group of the backend, each made when it is first needed."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch.distributed as dist

from softs_fast import _kernels
from softs_fast.collectives.backend.messages import Messages
from softs_fast.collectives.backend.work import Completer, error_of
from softs_fast.collectives.probe import Schedule, choose_schedule
from softs_fast.collectives.rendezvous import KeyValueStore
from softs_fast.errors import ConfigError, PeerLost, SegmentError
from softs_fast.process import check_process

_POLL_INTERVAL_S = 0.002
# Before the text of an error, in the place of an offer.
_FAILED = b"failed "
# Before the number of a rank that has left a group that no rank had used.
_LEFT = b"left "


def staging_bytes(size: int) -> int:
    """Return the bytes of shared memory for each rank, twice: less for many ranks, of which all stay in the caches."""
    return 1 << 20 if size <= 8 else 1 << 18


class Source(Protocol):
    """Where the parts of a group come from."""

    def join(self) -> _kernels.Group:
        """Return the group, joined."""

    def share(self) -> _kernels.Region:
        """Return its memory for messages from one rank to another."""

    def must_leave(self) -> bool:
        """Return whether other ranks may wait for this one; if not, those that do later are told that it has left."""


#: Schedules of this process by number of ranks: measuring one takes 50 ms.
_schedules: dict[int, Schedule] = {}


class Met:
    """A group of which all ranks have met: a collective call of all of them.

    Args:
        group: The group, joined.

    Raises:
        PeerLost: a rank was lost.
        SegmentError: no shared memory.
    """

    def __init__(self, group: _kernels.Group) -> None:
        self.schedule = _agreed_schedule(group)
        group.set_schedule(*self.schedule)
        memory = group.share(_kernels.PointToPoint.part_bytes(group.size))
        assert memory is not None, "the size is the same on all ranks"
        self._group, self._memory = group, memory

    def join(self) -> _kernels.Group:
        """Return the group, joined."""
        return self._group

    def share(self) -> _kernels.Region:
        """Return its memory for messages from one rank to another."""
        return self._memory

    def must_leave(self) -> bool:
        """Return True."""
        return True


def _agreed_schedule(group: _kernels.Group) -> Schedule:
    """Return the schedule of a group; it is measured where a rank has none of this size yet."""
    known = _schedules.get(group.size)
    said = group.exchange(b"" if known is None else repr(tuple(known)).encode())
    if known is None or any(text != said[0] for text in said):
        known = choose_schedule(group, staging_bytes(group.size))
        _schedules[group.size] = known
    return known


class World:
    """The default group: its ranks know the processes of each other. A collective call of all of them.

    Args:
        met: The group.
    """

    def __init__(self, met: Met) -> None:
        group = met.join()
        self.processes = group.processes()
        self.schedule: Schedule = met.schedule
        #: Tells this group from others that its processes make with the same store.
        self.name = group.exchange(secrets.token_hex(8).encode())[0].decode()


class Subgroup:
    """Some ranks of the default group. The first of them that makes a call makes the memory, and waits for no other.

    So a group that is not used takes no memory, and making it needs no communication.

    Args:
        world: The default group.
        members: Ranks of the default group, in the order of their numbers here.
        rank: This process's number.
        store: A store of this group alone, but for groups with other default groups.
        timeout_s: How long to wait for the rank that makes the memory, seconds.
    """

    def __init__(
        self,
        world: World,
        members: list[int],
        rank: int,
        store: KeyValueStore,
        timeout_s: float,
    ) -> None:
        self._processes = [world.processes[member] for member in members]
        self._schedule = world.schedule
        self._rank = rank
        self._store = store
        self._key = f"softs.{world.name}"
        self._timeout_s = timeout_s

    def join(self) -> _kernels.Group:
        """Return the group, joined."""
        size = len(self._processes)
        staged = staging_bytes(size)
        segment = self._meet(
            "group",
            lambda: _kernels.Segment.create_group(size, staged),
            lambda offer: _kernels.Segment.open_group(offer, size, staged),
        )
        group = _kernels.Group(self._rank, self._processes, segment, staged, self._timeout_s)
        # That of the default group, which all ranks have: measuring one is a call of all ranks.
        group.set_schedule(*self._schedule)
        return group

    def share(self) -> _kernels.Region:
        """Return its memory for messages from one rank to another."""
        size = len(self._processes)
        part = _kernels.PointToPoint.part_bytes(size)
        segment = self._meet(
            "messages",
            lambda: _kernels.Segment.create_region(part, size),
            lambda offer: _kernels.Segment.open_region(offer, part, size),
        )
        return _kernels.Region(segment, part, size)

    def must_leave(self) -> bool:
        """Return whether a rank has made a call; if not, those that make one later learn that this one has left."""
        with suppress(RuntimeError, PeerLost):  # the store has ended, with the process that served it
            return not self._decide("group", _LEFT + b"%d" % self._rank).startswith(_LEFT)
        return False

    def _decide(self, what: str, said: bytes) -> bytes:
        """Return what the first rank has said."""
        key = f"{self._key}.{what}.maker"
        self._store.decide(key, said)
        first = self._store.decided(key)
        assert first is not None, "a rank has stored it"
        return first

    def _meet(
        self,
        what: str,
        make: Callable[[], _kernels.Segment],
        open_offered: Callable[[bytes], _kernels.Segment],
    ) -> _kernels.Segment:
        """Return memory that the first rank makes, and the others open."""
        first = self._decide(what, b"%d" % self._rank)
        maker = int(first.removeprefix(_LEFT))
        key = f"{self._key}.{what}.offer"
        if first.startswith(_LEFT):
            raise PeerLost(f"{self._describe(maker)} has left the group")
        if maker == self._rank:
            try:
                segment = make()
            except SegmentError as error:
                self._store.set(key, _FAILED + str(error).encode()[:1000])
                raise
            self._store.set(key, segment.offer())
            return segment
        offer = self._offer_of(maker, key)
        if offer.startswith(_FAILED):
            text = offer.removeprefix(_FAILED).decode(errors="replace")
            raise SegmentError(f"no memory for a group of {len(self._processes)} ranks: rank {maker}: {text}")
        try:
            return open_offered(offer)
        except SegmentError as error:
            raise PeerLost(f"{self._describe(maker)} has ended, or left the group: {error}") from error

    def _offer_of(self, maker: int, key: str) -> bytes:
        give_up_at = time.monotonic() + self._timeout_s
        while (offer := self._store.get(key)) is None:
            if not _kernels.is_alive(*self._processes[maker], 0):
                raise PeerLost(f"{self._describe(maker)} has ended")
            if time.monotonic() > give_up_at:
                raise PeerLost(
                    f"{self._describe(maker)} has not made the memory in {self._timeout_s:g} s: Timed out"
                )
            time.sleep(_POLL_INTERVAL_S)
        return offer

    def _describe(self, rank: int) -> str:
        return f"rank {rank} (process {self._processes[rank][0]})"


class Member(Protocol):
    """A rank's part in a group."""

    #: Makes calls from addresses, as `_kernels.Call` does.
    calls: Any

    def queue(self) -> Any:
        """Return the queue of calls, as `_kernels.CallQueue`."""

    def messages(self) -> Messages:
        """Return the messages between two ranks."""

    def end(self, reason: str) -> None:
        """End pending calls on all ranks, and those that follow."""

    def leave(self) -> None:
        """Leave the group once pending calls have ended; in a fork do nothing."""

    def abandon(self) -> None:
        """Leave what is pending, in a process that ends; in a fork do nothing."""


class Membership:
    """A rank's part in a group of one host: joined by its first call, on whatever thread.

    Args:
        source: Where the group comes from.
        completer: What completes futures.
    """

    calls = _kernels.Call

    def __init__(self, source: Source, completer: Completer) -> None:
        self._source = source
        self._completer = completer
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._is_left = False
        self._group: _kernels.Group | None = None
        self._queue: _kernels.CallQueue | None = None
        self._messages: Messages | None = None

    def group(self) -> _kernels.Group:
        """Return the group.

        Raises:
            BackendLost: the rank that makes its memory was lost, or a rank has left.
            SegmentError: there is no shared memory; the text names the rank.
            ConfigError: this rank has left.
            ForkedError: this is a fork.
        """
        # Before the lock, which a thread may have held when the process was forked.
        check_process(self._pid, "this group")
        with self._lock:
            if self._is_left:
                raise ConfigError("the group is closed")
            if self._group is None:
                try:
                    self._group = self._source.join()
                except Exception as error:
                    raise error_of(error) from None
            return self._group

    def queue(self) -> _kernels.CallQueue:
        """Return the queue of calls; raises as `group`."""
        group = self.group()
        with self._lock:
            self._queue = self._queue or _kernels.CallQueue(group)
            return self._queue

    def messages(self) -> Messages:
        """Return the messages; raises as `group`."""
        group = self.group()
        with self._lock:
            if self._messages is None:
                try:
                    self._messages = Messages(
                        _kernels.PointToPoint(group, self._source.share()), self._completer
                    )
                except Exception as error:
                    raise error_of(error) from None
            return self._messages

    def end(self, reason: str) -> None:
        """End pending calls on all ranks, and those that follow; it takes no lock. Does nothing if this rank made none."""
        if self._group is not None:
            self._group.end(reason)

    def leave(self) -> None:
        """Leave the group once pending calls have ended; in a fork do nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            # A rank that has not used the group tells those that wait for it.
            if self._group is None and self._source.must_leave():
                with suppress(SegmentError, dist.DistBackendError):
                    self.group()
            self._is_left = True
        if self._queue is not None:
            self._queue.close()
        if self._messages is not None:
            self._messages.close()
        self._completer.close()
        if self._group is not None:
            self._group.close()

    def abandon(self) -> None:
        """Leave what is pending, in a process that ends; in a fork do nothing."""
        if os.getpid() != self._pid:
            return
        if self._queue is not None:
            self._queue.abandon()
        if self._messages is not None:
            self._messages.abandon()
        self._completer.close()
