"""NCCL as the engine of epochs."""

from __future__ import annotations

from torch.distributed import Store

from ...collectives import NcclEngine, Strategy, TorchStrategy
from ..job.messages import Table
from .exchange import wait_for_members

__all__ = ["nccl_engine"]

# A fence ends the wait for members, and all calls. Making a communicator takes seconds on many nodes, and is a call, too.
_MEMBERS_S = 24 * 3600.0
# Without a coordinator nothing else would end a call.
_CALL_S = 1800.0


def nccl_engine(table: Table, rank: int, store: Store) -> Strategy:
    """Return connections of NCCL among the members of an epoch; `torch.cuda.set_device` has chosen the device of each.

    For `WorkerNode(engine=nccl_engine)`. A fence aborts the communicators on each member, and the next epoch makes new
    ones.

    Raises:
        ConfigError: this torch has no NCCL, or the host no CUDA device.
        PeerLost: the epoch is over, or a member is lost.
    """
    wait_for_members(store, len(table.members), _MEMBERS_S)
    engine = NcclEngine.join(rank, len(table.members), store, name=f"epoch {table.epoch}", timeout_s=_CALL_S)
    return TorchStrategy(engine)
