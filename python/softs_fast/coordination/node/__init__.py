"""A worker of a job in a training process: steps that no death of a worker loses or repeats."""

from .engines import link_engine, memory_engine, nccl_engine
from .exchange import wait_for_members
from .membership import Epoch, Membership
from .training_state import Stateful, TrainingState
from .worker_node import WorkerNode
from .worker_step import Step

__all__ = [
    "Epoch",
    "Membership",
    "Stateful",
    "Step",
    "TrainingState",
    "WorkerNode",
    "link_engine",
    "memory_engine",
    "nccl_engine",
    "wait_for_members",
]
