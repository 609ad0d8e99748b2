"""Collectives by an engine of torch: gloo, NCCL or MPI behind a process group."""

from __future__ import annotations

from typing import Self

import torch.distributed as dist

from softs_fast.collectives.engine_strategy import EngineStrategy
from softs_fast.collectives.group_engine import GroupEngine
from softs_fast.collectives.nccl_engine import NcclEngine
from softs_fast.errors import ConfigError


class TorchStrategy(EngineStrategy):
    """A `Strategy` over a process group of torch.distributed, of any backend.

    16-bit floats are summed in 16 bits by most backends; for a mean they are divided before, as by DDP, so that the sum does
    not overflow. With more than two ranks `all_reduce` adds in the order of the backend, so that floats may differ in the
    last bits from those of `reduce_scatter`. `give_up` aborts the group, which ends its calls on all ranks with the backend
    "softs", those of FSDP2 and of others, too; with gloo it ends none.

    Args:
        process_group: The group to use, or its engine.
    """

    def __init__(self, process_group: dist.ProcessGroup | GroupEngine) -> None:
        if not isinstance(process_group, GroupEngine):
            process_group = GroupEngine.of(process_group)
        super().__init__(process_group)

    def init(self, rank: int, size: int, rendezvous: object = None) -> Self:
        """Compare rank and size with those of the group; return self.

        Args:
            rank: This process's number.
            size: Number of ranks.
            rendezvous: Not used.

        Raises:
            ConfigError: rank and size are not those of the process group.
        """
        if (self.rank, self.size) != (rank, size):
            raise ConfigError(
                f"rank {rank} of {size} does not fit the group, in which this is rank {self.rank} of {self.size}"
            )
        return self

    @classmethod
    def meet_by_nccl(
        cls, rank: int, size: int, store: dist.Store, *, name: str, timeout_s: float = 30.0
    ) -> Self:
        """Return a strategy over NCCL, of ranks that have a CUDA device each, their current one.

        Each call has ended on the device when it returns. `give_up` has torch abort the communicators, which ends the
        calls of this rank only. Tensors of the host are copied there and back.

        Args:
            rank: This process's number.
            size: Number of ranks.
            store: Store of which no key was used by another group.
            name: Name of the group, for texts.
            timeout_s: Seconds to wait for the slowest rank, also in each call.

        Raises:
            ConfigError: this torch has no NCCL, or the host no CUDA device.
            PeerLost: a rank did not join in time, or the store has ended.
        """
        return cls(NcclEngine.join(rank, size, store, name=name, timeout_s=timeout_s))
