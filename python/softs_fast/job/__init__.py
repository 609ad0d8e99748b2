"""A training as one program: live samples, ranks that come and go, and each sample number trained exactly once.

`JobCallback` is in the module `trainer`, because it needs transformers.
"""

from typing import TYPE_CHECKING

from ..process import lazy

if TYPE_CHECKING:
    from ..coordination.node import TrainingState
    from .checkpoints import Checkpoints
    from .job import Job
    from .live_data import LiveData
    from .step import JobStep

__all__ = ["Checkpoints", "Job", "JobStep", "LiveData", "TrainingState", "trainer"]

# Ledger and feed need no torch.
__getattr__, __dir__ = lazy(
    __name__,
    {"checkpoints": "Checkpoints", "job": "Job TrainingState", "live_data": "LiveData", "step": "JobStep"},
)
