"""Engines for an epoch: what carries its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...collectives import (
    EngineStrategy,
    HierarchicalStrategy,
    LinkEngine,
    NcclEngine,
    Rendezvous,
    Schedule,
    ShmStrategy,
    Strategy,
    SubsetRendezvous,
    Topology,
    TorchStrategy,
    discover,
)
from ...errors import ConfigError, SegmentError
from ..job.messages import Table
from ..session.store import SessionStore
from .exchange import EpochExchange, wait_for_members

#: Makes the strategy of an epoch: from its table, this worker's rank, and a store of its members. It raises PeerLost if
#: the epoch is over, or a member is lost. What ends its pending calls it gives to `SessionStore.when_over`, or it is the
#: strategy's `give_up`.
EngineOf = Callable[[Table, int, SessionStore], Strategy]

# A fence ends the wait for members, and all calls; only connections that are being made must end by themselves. They are
# begun when all members are there, and take moments. A communicator of NCCL is made in a call.
_MEMBERS_S = 24 * 3600.0
_CONNECT_S = 5.0
# Without a coordinator nothing else would end a call.
_CALL_S = 1800.0
# Measuring it would take longer than to form the group.
_SCHEDULE = Schedule(1 << 16, 1 << 18)
# Ranks of a group in shared memory, at most.
_MOST_IN_MEMORY = 64


def link_engine(table: Table, rank: int, store: SessionStore, *, address: str | None = None) -> Strategy:
    """Return connections between all members of an epoch, encrypted if the session with the coordinator is.

    Args:
        table: Table of the epoch.
        rank: This worker's number.
        store: Store of the members.
        address: Address of this host at which the others reach it; None takes that on the way to the coordinator.

    Raises:
        PeerLost: the epoch is over, or a member is lost.
    """
    size = len(table.members)
    return _connected(table, rank, size, EpochExchange(store, rank, size), store, address)


def memory_engine(
    table: Table, rank: int, store: SessionStore, *, host: str = "", address: str | None = None
) -> Strategy:
    """Return shared memory for the members of an epoch that are on one host, and connections between hosts.

    Members share memory if they can read each other's: on one host, in one pid namespace, as one user. With one member on
    each host, or where there is no shared memory, there are the connections of `link_engine` alone.

    Args:
        table: Table of the epoch.
        rank: This worker's number.
        store: Store of the members.
        host: Name of this host; members that give different names share no memory.
        address: Address of this host at which the others reach it; None takes that on the way to the coordinator.

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
        return _connected(table, rank, size, place, store, address)
    if len(topology.nodes) == 1:
        return local
    inside = topology.nodes[topology.own].index(rank)
    try:
        cross = None
        if inside < topology.n_slices:
            slices = SubsetRendezvous(place, [node[inside] for node in topology.nodes])
            cross = _connected(table, topology.own, len(topology.nodes), slices, store, address)
        else:
            # In the exchange of those that have one.
            place.exchange(b"", _MEMBERS_S)
    except BaseException:
        local.close()
        raise
    return HierarchicalStrategy(local, cross).init(rank, size)


def nccl_engine(table: Table, rank: int, store: SessionStore) -> Strategy:
    """Return connections of NCCL among the members of an epoch; `torch.cuda.set_device` has chosen the device of each.

    For `WorkerNode(engine=nccl_engine)`. A fence aborts the communicators on each member, and the next epoch makes new
    ones.

    Raises:
        ConfigError: this torch has no NCCL, or the host no CUDA device.
        PeerLost: the epoch is over, or a member is lost.
    """
    size = len(table.members)
    wait_for_members(store, size, _MEMBERS_S)
    return TorchStrategy(NcclEngine.join(rank, size, store, name=f"epoch {table.epoch}", timeout_s=_CALL_S))


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


def _connected(
    table: Table, rank: int, size: int, place: Rendezvous, store: SessionStore, address: str | None
) -> EngineStrategy:
    """Connect members, of which `rank`, `size` and `place` tell, and have a fence end their calls."""
    engine = LinkEngine.meet(
        rank,
        size,
        place,
        name=f"epoch {table.epoch}",
        timeout_s=_CALL_S,
        connect_timeout_s=_CONNECT_S,
        # All that reach the coordinator there reach each other.
        host=address or store.own_host,
        credentials=store.credentials,
    )
    strategy = EngineStrategy(engine)
    store.when_over(strategy.give_up)
    return strategy
