"""Engines for an epoch: what carries its gradients."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore, Store

from ...collectives import (
    HierarchicalStrategy,
    Schedule,
    ShmStrategy,
    Strategy,
    SubsetRendezvous,
    Topology,
    TorchStrategy,
    discover,
)
from ...errors import ConfigError, SegmentError
from ...trust import is_loopback
from ..job.messages import Table
from ..session.store import SessionStore
from .exchange import EpochExchange, wait_for_members

if TYPE_CHECKING:
    from ..star import StarOptions

#: Makes the strategy of an epoch: from its table, this worker's rank, and a store of its members. It raises PeerLost if
#: the epoch is over, or a member is lost. What ends its pending calls it gives to `SessionStore.when_over`, or it is the
#: strategy's `give_up`.
EngineOf = Callable[[Table, int, SessionStore], Strategy]

# A fence ends the wait for members, and all calls; only connections that are being made must end by themselves. So
# members wait for each other before that, and it takes moments.
_MEMBERS_S = 24 * 3600.0
_CONNECT_S = 5.0
# As long as the coordinator waits for answers to its pings: a cut link between two members that both reach it.
_ANSWER_S = 2.0
# Without a coordinator nothing else would end a call.
_CALL_S = 1800.0
# Measuring it would take longer than to form the group.
_SCHEDULE = Schedule(1 << 16, 1 << 18)
# Ranks of a group in shared memory, at most.
_MOST_IN_MEMORY = 64


def one_at_a_time(engine: EngineOf) -> EngineOf:
    """Return a function that makes engines as another one does, each when the one before is there or has failed.

    Two threads that make engines of gloo at once would take each other's sockets for their own.
    """
    making = threading.Lock()

    def make(table: Table, rank: int, store: SessionStore) -> Strategy:
        with making:
            return engine(table, rank, store)

    return make


def gloo_engine(table: Table, rank: int, store: SessionStore) -> Strategy:
    """Return connections of gloo among the members of an epoch.

    Raises:
        PeerLost: the epoch is over, or a member is lost.
    """
    size = len(table.members)
    wait_for_members(store, size, _MEMBERS_S)
    return _connected(table, rank, size, store, store)


def memory_engine(table: Table, rank: int, store: SessionStore, *, host: str = "") -> Strategy:
    """Return shared memory for the members of an epoch that are on one host, and gloo for hosts.

    Members share memory if they can read each other's: on one host, in one pid namespace, as one user. With one host
    there is no gloo. With one member on each, or where there is no shared memory, there is gloo alone.

    Args:
        table: Table of the epoch.
        rank: This worker's number.
        store: Store of the members.
        host: Name of this host; members that give different names share no memory.

    Raises:
        PeerLost: the epoch is over, or a member is lost.

    Example:
        >>> import functools
        >>> from softs_fast.coordination.node import WorkerNode, memory_engine
        >>> def on_socket(coordinator, state, socket):
        ...     return WorkerNode(coordinator, state, engine=functools.partial(memory_engine, host=f"socket {socket}"))
    """
    size = len(table.members)
    place = EpochExchange(store, rank, size)
    local = ShmStrategy(timeout_s=_CALL_S, schedule=_SCHEDULE)
    # From here on the calls that join the group end with the epoch, too.
    store.when_over(local.abort)
    topology = _joined(local, place, rank, host)
    if topology is None:
        return _connected(table, rank, size, PrefixStore("all", store), store)
    if len(topology.nodes) == 1:
        return local
    cross = None
    inside = topology.nodes[topology.own].index(rank)
    if inside < topology.n_slices:
        slices = PrefixStore(f"slice {inside}", store)
        try:
            cross = _connected(table, topology.own, len(topology.nodes), slices, store)
        except BaseException:
            local.close()
            raise
    return HierarchicalStrategy(local, cross).init(rank, size)


def grpc_engine(options: StarOptions | None = None) -> EngineOf:
    """Return what makes stars of the members of an epoch: through rank 0, over gRPC, which can encrypt.

    Args:
        options: addresses and credentials of this worker; None for workers of one machine and user.
    """

    def engine(table: Table, rank: int, store: SessionStore) -> Strategy:
        from ..star import Epoch, GrpcStrategy

        size = len(table.members)
        wait_for_members(store, size, _MEMBERS_S)
        strategy = GrpcStrategy(options, timeout_s=_CALL_S, name=f"epoch {table.epoch}")
        # From here on the calls that join the group end with the epoch, too.
        store.when_over(strategy.give_up)
        workers = tuple(member.worker_id for member in table.members)
        epoch = Epoch(table.boot, table.epoch, workers)
        return strategy.meet(rank, size, store, epoch, connect_timeout_s=_CONNECT_S)

    return engine


def _joined(local: ShmStrategy, place: EpochExchange, rank: int, host: str) -> Topology | None:
    """Join the group of this host, on all hosts; None, on all members, where shared memory is of no use."""
    try:
        topology = discover(place, rank, _MEMBERS_S, host=host, may_lack_memory=True)
    except ConfigError:
        # All members have found the same.
        return None
    sizes = [len(node) for node in topology.nodes]
    if max(sizes) == 1 or max(sizes) > _MOST_IN_MEMORY:
        return None
    own: Sequence[int] = topology.nodes[topology.own]
    problem = b""
    try:
        local.init(own.index(rank), len(own), SubsetRendezvous(place, own))
    except (ConfigError, SegmentError):
        # It is told after both exchanges of the group.
        problem = b"no group"
    if any(place.exchange(problem, _MEMBERS_S)):
        local.close()
        return None
    return topology


def _connected(table: Table, rank: int, size: int, keys: Store, store: SessionStore) -> TorchStrategy:
    """Connect members by gloo, and have a fence end their calls.

    Args:
        table: Table of the epoch.
        rank: Number of this worker among these members.
        size: Number of these members.
        keys: Store in which these members find each other.
        store: Store of all members.
    """
    strategy = TorchStrategy.meet(
        rank,
        size,
        keys,
        name=f"epoch {table.epoch}",
        timeout_s=_CALL_S,
        connect_timeout_s=_CONNECT_S,
        host=_reachable_host(store),
        acknowledge_timeout_s=_ANSWER_S,
    )
    store.when_over(strategy.give_up)
    return strategy


def _reachable_host(store: SessionStore) -> str | None:
    """Return the address under which other hosts reach this one; None leaves it to gloo.

    gloo takes the address of the host's name, which many systems look up as a loopback address. The address on the way to
    the coordinator is reached by all that reach each other.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return None
    own = store.own_host
    return None if is_loopback(own) else own
