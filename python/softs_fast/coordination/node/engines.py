"""Engines for an epoch: what carries its gradients."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import Store

from ...collectives import Strategy, TorchStrategy
from ..job.messages import Table

if TYPE_CHECKING:
    from ..star import StarOptions

#: Makes the strategy of an epoch: from its table, this worker's rank, and a store of its members. It raises PeerLost if
#: the epoch is over, or a member is lost.
EngineOf = Callable[[Table, int, Store], Strategy]

# A fence ends the wait for members, and all calls; only connections that are being made must end by themselves. So
# members wait for each other before that, and it takes moments.
_MEMBERS_S = 24 * 3600.0
_CONNECT_S = 5.0
# Without a coordinator nothing else would end a call.
_CALL_S = 1800.0


def gloo_engine(table: Table, rank: int, store: Store) -> Strategy:
    """Return connections of gloo among the members of an epoch.

    Raises:
        PeerLost: the epoch is over, or a member is lost.
    """
    size = len(table.members)
    _wait_for_members(size, store)
    return TorchStrategy.meet(
        rank, size, store, name=f"epoch {table.epoch}", timeout_s=_CALL_S, connect_s=_CONNECT_S
    )


def grpc_engine(options: StarOptions | None = None) -> EngineOf:
    """Return what makes stars of the members of an epoch: through rank 0, over gRPC, which can encrypt.

    Args:
        options: addresses and credentials of this worker; None for workers of one machine and user.
    """

    def engine(table: Table, rank: int, store: Store) -> Strategy:
        from ..star import Epoch, GrpcStrategy

        size = len(table.members)
        _wait_for_members(size, store)
        workers = tuple(member.worker_id for member in table.members)
        epoch = Epoch(table.boot, table.epoch, workers)
        strategy = GrpcStrategy(options, timeout_s=_CALL_S, name=f"epoch {table.epoch}")
        return strategy.meet(rank, size, store, epoch, connect_s=_CONNECT_S)

    return engine


def _wait_for_members(size: int, store: Store) -> None:
    if store.add("members that are here", 1) == size:
        store.set("all are here", "")
    store.wait(["all are here"], timedelta(seconds=_MEMBERS_S))
