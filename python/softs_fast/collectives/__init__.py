"""Collective operations for gradients: shared memory inside a host, encrypted connections or a group of torch across hosts.

`ShmStrategy` joins processes of one host, `CudaStrategy` their CUDA devices, `LinkStrategy` those of several hosts,
`TorchStrategy` wraps a process group of torch.distributed, and `HierarchicalStrategy` combines the first with either of
the last two. `ddp_hook` is the communication hook for
DistributedDataParallel.

What other strategies and other rooms need is here, too: places where ranks meet (`as_rendezvous`, `discover`), checks
of arguments, meters, and `agreement`, a module that compares the calls of ranks.
"""

from softs_fast.collectives import agreement
from softs_fast.collectives.backend import host_backend, hosts_backend
from softs_fast.collectives.bounded_store import in_thread
from softs_fast.collectives.cuda.strategy import CudaStrategy
from softs_fast.collectives.ddp import DDPState, ddp_hook
from softs_fast.collectives.engine_strategy import EngineStrategy
from softs_fast.collectives.gradients import Gradients
from softs_fast.collectives.hierarchical import AllReduceStrategy, HierarchicalStrategy
from softs_fast.collectives.host.buckets import Bucket
from softs_fast.collectives.host.group import strategy_of_process
from softs_fast.collectives.host.overlap import Overlap
from softs_fast.collectives.host.shm_strategy import ShmStrategy
from softs_fast.collectives.link_engine import LinkEngine, Messages, listen
from softs_fast.collectives.link_store import LinkStore, StoreServer, register_places
from softs_fast.collectives.link_strategy import LinkStrategy
from softs_fast.collectives.meter import Lap, Meter
from softs_fast.collectives.nccl_engine import NcclEngine
from softs_fast.collectives.nodes import Topology, discover
from softs_fast.collectives.probe import Schedule, slowest
from softs_fast.collectives.rendezvous import (
    MAX_MESSAGE_BYTES,
    FolderStore,
    Rendezvous,
    SubsetRendezvous,
    TorchStore,
    as_rendezvous,
    shown_in,
)
from softs_fast.collectives.strategy import OpMetrics, ReduceOp, Strategy
from softs_fast.collectives.tensors import (
    DTYPE_CODES,
    RefusedByAll,
    bytes_of,
    check_parts,
    check_root,
    describe,
    name_of,
    operand,
)
from softs_fast.collectives.torch_strategy import TorchStrategy

# With this import torch knows init_method="softs://...", whichever backend the group has.
register_places()

__all__ = [
    "DTYPE_CODES",
    "MAX_MESSAGE_BYTES",
    "AllReduceStrategy",
    "Bucket",
    "CudaStrategy",
    "DDPState",
    "EngineStrategy",
    "FolderStore",
    "Gradients",
    "HierarchicalStrategy",
    "Lap",
    "LinkEngine",
    "LinkStore",
    "LinkStrategy",
    "Messages",
    "Meter",
    "NcclEngine",
    "OpMetrics",
    "Overlap",
    "ReduceOp",
    "RefusedByAll",
    "Rendezvous",
    "Schedule",
    "ShmStrategy",
    "StoreServer",
    "Strategy",
    "SubsetRendezvous",
    "Topology",
    "TorchStore",
    "TorchStrategy",
    "agreement",
    "as_rendezvous",
    "bytes_of",
    "check_parts",
    "check_root",
    "ddp_hook",
    "describe",
    "discover",
    "host_backend",
    "hosts_backend",
    "in_thread",
    "listen",
    "name_of",
    "operand",
    "shown_in",
    "slowest",
    "strategy_of_process",
]
