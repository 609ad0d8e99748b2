"""Engines for an epoch: what carries its gradients."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed import Store

from ...collectives import Strategy, TorchStrategy
from ..job.messages import Table
from .meeting import wait_for_members

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
    wait_for_members(store, size, _MEMBERS_S)
    return TorchStrategy.meet(
        rank, size, store, name=f"epoch {table.epoch}", timeout_s=_CALL_S, connect_s=_CONNECT_S
    )
