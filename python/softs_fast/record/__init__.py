"""Recordings: samples that a loader has handed out, in files of safetensors, and their replay.

| for | use |
|---|---|
| recording | `SoftDataLoader(record=...)`, or ``softs-fast record`` |
| a loader of what was recorded | `softs_fast.ReplayLoader` |
| a dataset of torch | `RecordedDataset` |
| a supplier of what was recorded | `replay_supplier`, or ``softs-fast replay`` |
| samples by number | `Recording` |

`dataset` needs torch; it is loaded on first access.
"""

from typing import TYPE_CHECKING

from ..process import lazy
from .options import RecordOptions, record_options
from .recorder import Recorder
from .recording import Recording
from .replay import replay_supplier

if TYPE_CHECKING:
    from .dataset import RecordedDataset

__all__ = ["RecordOptions", "RecordedDataset", "Recorder", "Recording", "record_options", "replay_supplier"]

__getattr__, __dir__ = lazy(__name__, {"dataset": "RecordedDataset"})
