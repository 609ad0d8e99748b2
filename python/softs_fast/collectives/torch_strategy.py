"""Collectives by an engine of torch: gloo, NCCL or MPI behind a process group."""

from __future__ import annotations

import torch.distributed as dist

from softs_fast.collectives.engine_strategy import EngineStrategy
from softs_fast.collectives.group_engine import GroupEngine


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
