"""The backend "softs" among ranks of several hosts: shared memory inside each host, connections between all ranks.

With the token file of the job the connections are encrypted; "softs+plain" needs none. On one host it is the backend in
shared memory. On several, large tensors go through the levels of `HierarchicalStrategy`, and all other calls from each
rank to each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

from torch.distributed import PrefixStore, Store

from softs_fast.collectives.backend import door
from softs_fast.collectives.backend.host_calls import HostCall, HostCalls, Ranks
from softs_fast.collectives.backend.host_rings import HostRings
from softs_fast.collectives.backend.messages import Messages
from softs_fast.collectives.backend.work import BackendMismatch, Completer, error_of
from softs_fast.collectives.engine_strategy import EngineStrategy
from softs_fast.collectives.host.group import MOST_TIMEOUT_S
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.collectives.levels import Levels
from softs_fast.collectives.link_engine import LinkEngine, listen
from softs_fast.collectives.nodes import Topology, discover
from softs_fast.collectives.rendezvous import (
    MAX_MESSAGE_BYTES,
    Rendezvous,
    StoreRendezvous,
    SubsetRendezvous,
    TorchStore,
    shown_in,
)
from softs_fast.collectives.serial import SerialThread
from softs_fast.errors import ConfigError, ForkedError, PeerLost, SegmentError
from softs_fast.trust import Der


def create(options: Any, _: object) -> door.SoftsBackend:
    """Return a rank's part in a new group; ranks of several hosts need the token file of the place where
    they meet, or of SOFTS_FAST_TOKEN_FILE.

    Raises:
        ConfigError: the ranks of a host cannot see each other, or are of several versions; ranks are on several hosts,
            and some of them have no token file, or another one.
        PeerLost: a rank did not come in time.
        SegmentError: no shared memory.
    """
    try:
        own = shown_in(TorchStore(options.store))
    except ConfigError as error:
        return _create(options, None, plain=False, problem=str(error))
    return _create(options, own, plain=False)


def create_plain(options: Any, _: object) -> door.SoftsBackend:
    """As `create`, without encryption and proof between hosts, on a network that is trusted."""
    return _create(options, None, plain=True)


def _create(options: Any, credentials: Der | None, *, plain: bool, problem: str = "") -> door.SoftsBackend:
    """Return a rank's part in a new group; with a problem of this rank all ranks raise it."""
    rank, size, timeout_s = options.group_rank, options.group_size, options.timeout.total_seconds()
    if door.knows_ranks(options):
        return door.create(options, None)
    store = TorchStore(options.store)
    place = StoreRendezvous(store, rank, size, "hosts")
    topology = discover(place, rank, timeout_s, may_lack_memory=True)
    _check_all(place, problem, timeout_s)
    has_way = plain or credentials is not None
    have_way = [bool(said) for said in place.exchange(b"1" if has_way else b"", timeout_s)]
    if len(topology.nodes) == 1 or not any(have_way):
        # The error of ranks on several hosts says what they need.
        backend = door.create(options, None)
        place.close()
        return backend
    if not all(have_way):
        raise ConfigError(
            f"the ranks are on {len(topology.nodes)} hosts, and rank {have_way.index(False)} has no token file; set "
            "SOFTS_FAST_TOKEN_FILE on each rank"
        )

    how: dict[str, Any] = {
        "name": "hosts",
        "timeout_s": timeout_s,
        "credentials": credentials,
        "plain": plain,
    }
    engine = LinkEngine.meet(rank, size, PrefixStore("every", options.store), **how)
    levels = None
    if size > len(topology.nodes):
        levels = _joined(topology, place, options.store, how)
    place.close()
    rings = HostRings(
        TorchStore(options.store),
        f"softs.messages.{engine.name}",
        rank,
        lambda: listen(store, "messages", host=engine.host, credentials=credentials, plain=plain),
        timeout_s,
        lambda: engine.ended,
    )

    def member(completer: Completer) -> HostsMembership:
        return HostsMembership(Ranks(engine, levels), rings, completer)

    return door.SoftsBackend(member, rank, size, options.timeout)


def _joined(topology: Topology, place: Rendezvous, store: Store, how: dict[str, Any]) -> Levels:
    """Join the group inside the host, and the one between hosts of this rank's slice."""
    own = topology.nodes[topology.own]
    inside = own.index(topology.rank)
    local = ShmStrategy(timeout_s=min(how["timeout_s"], MOST_TIMEOUT_S))
    problem = ""
    try:
        local.init(inside, len(own), SubsetRendezvous(place, own))
    except (ConfigError, SegmentError) as error:
        # It is told after both exchanges of the group.
        problem = str(error)
    _check_all(place, problem, how["timeout_s"], SegmentError)
    cross = None
    if inside < topology.n_slices:
        slices = PrefixStore(f"slice{inside}", store)
        cross = EngineStrategy(LinkEngine.meet(topology.own, len(topology.nodes), slices, **how))
    levels = Levels(local, cross, topology)
    levels.agree("init")
    return levels


def _check_all(
    place: Rendezvous, problem: str, timeout_s: float, kind: type[Exception] = ConfigError
) -> None:
    """Raise an error, on all ranks, if any of them has a problem."""
    for rank, said in enumerate(place.exchange(problem.encode()[:MAX_MESSAGE_BYTES], timeout_s)):
        if said:
            raise kind(f"rank {rank}: {said.decode(errors='replace')}")


class HostsMembership:
    """A rank's part in a group of several hosts; see `Membership`.

    Args:
        ranks: Connections of this rank.
        rings: Messages between two ranks.
        completer: What completes futures.
    """

    calls = HostCalls

    def __init__(self, ranks: Ranks, rings: HostRings, completer: Completer) -> None:
        self._ranks = ranks
        self._rings = rings
        self._completer = completer
        self._pid = os.getpid()
        self._queue = HostQueue(ranks)
        self._messages = Messages(rings, completer)

    def queue(self) -> HostQueue:
        """Return the queue of calls."""
        return self._queue

    def messages(self) -> Messages:
        """Return the messages."""
        return self._messages

    def end(self, reason: str) -> None:
        """End pending calls on all ranks, and those that follow."""
        with suppress(PeerLost, ForkedError):
            self._ranks.end(reason)

    def leave(self) -> None:
        """Leave the group once pending calls have ended; in a fork do nothing."""
        if os.getpid() != self._pid:
            return
        self._queue.close()
        self._rings.close()
        self._completer.close()
        if self._ranks.levels is not None:
            self._ranks.levels.close()
        self._ranks.engine.close()

    def abandon(self) -> None:
        """Leave what is pending, in a process that ends; in a fork do nothing."""
        if os.getpid() != self._pid:
            return
        self._ranks.engine.drain()
        self.end("the process of a rank ends")
        self._rings.abandon()
        self._completer.close()


class HostQueue:
    """The calls of a group, in the order in which they are given, on a thread that begins with the first one.

    Args:
        ranks: Connections of this rank.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._thread = SerialThread("softs-hosts")

    def submit(self, call: HostCall, timeout_s: float) -> HostOutcome:
        """Have a call made after those before it."""
        future = self._thread.submit(lambda: self._make(call, timeout_s))
        return HostOutcome(future, lambda error: self._interrupt(call, error))

    def make(self, call: HostCall, timeout_s: float) -> list[bytes]:
        """Make a call after those before it, and wait for it."""
        outcome = self.submit(call, timeout_s)
        outcome.wait()
        return outcome.differences()

    def close(self) -> None:
        """Take no more calls, and wait for those that were given."""
        self._thread.close()

    def _interrupt(self, call: HostCall, error: BaseException) -> None:
        """End the group: the thread is in the middle of a call that its caller has left."""
        self._ranks.end(f"{call.text} was interrupted by {type(error).__name__}")

    def _make(self, call: HostCall, timeout_s: float) -> None:
        engine = self._ranks.engine
        engine.timeout_s = timeout_s
        try:
            with engine.call(call.text):
                try:
                    engine.agree(call.text)
                    call.make(self._ranks)
                except ConfigError as error:
                    raise BackendMismatch(str(error)) from error
        except (ConfigError, ForkedError):
            raise
        except BaseException as error:
            # Ranks of the levels would wait for this one.
            if self._ranks.levels is not None:
                self._ranks.levels.give_up(str(error) if isinstance(error, PeerLost) else repr(error))
            raise


class HostOutcome:
    """What becomes of a call on the thread of a group; see `_kernels.Outcome`."""

    def __init__(self, future: Future[None], interrupt: Callable[[BaseException], None]) -> None:
        self._future = future
        self._interrupt = interrupt

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the call has ended; wait so long for it, without a bound if None."""
        try:
            return bool(wait([self._future], seconds).done)
        except BaseException as error:  # of a signal handler
            if seconds is None:
                self._interrupt(error)
            raise

    def differences(self) -> list[bytes]:
        """Return nothing; raise what the call raised, of different calls, too."""
        try:
            self._future.result()
        except Exception as error:
            raise error_of(error) from error
        return []


__all__ = ["create", "create_plain"]
