"""Collective operations for gradients: shared memory inside a host, an existing engine (gloo, NCCL, MPI) across hosts.

`ShmStrategy` joins processes of one host, `CudaStrategy` their CUDA devices, `TorchStrategy` wraps a process group of
torch.distributed, `HierarchicalStrategy` combines the first and the last. `ddp_hook` is the communication hook for
DistributedDataParallel.
"""

from softs_fast.collectives.cuda.strategy import CudaStrategy
from softs_fast.collectives.ddp import DDPState, ddp_hook
from softs_fast.collectives.hierarchical import AllReduceStrategy, HierarchicalStrategy
from softs_fast.collectives.host.buckets import Bucket
from softs_fast.collectives.host.overlap import Overlap
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.collectives.probe import Schedule
from softs_fast.collectives.rendezvous import Rendezvous
from softs_fast.collectives.strategy import OpMetrics, ReduceOp, Strategy
from softs_fast.collectives.torch_strategy import TorchStrategy

__all__ = [
    "AllReduceStrategy",
    "Bucket",
    "CudaStrategy",
    "DDPState",
    "HierarchicalStrategy",
    "OpMetrics",
    "Overlap",
    "ReduceOp",
    "Rendezvous",
    "Schedule",
    "ShmStrategy",
    "Strategy",
    "TorchStrategy",
    "ddp_hook",
]
