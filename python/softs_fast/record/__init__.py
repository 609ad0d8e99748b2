"""Recordings: samples that a loader has handed out, in files of safetensors, and their replay.

| for | use |
|---|---|
| recording | `SoftDataLoader(record=...)`, or ``softs-fast record`` |
| a loader of what was recorded | `softs_fast.ReplayLoader` |
| a dataset of torch | `RecordedDataset` |
| a supplier of what was recorded | `replay_supplier`, or ``softs-fast replay`` |
| samples by number | `Recording` |
| other formats | `to_webdataset`, `to_parquet` |

`replay` needs torch; it is loaded on first access.
"""

from typing import TYPE_CHECKING

from ..process import lazy
from .exports import to_parquet, to_webdataset
from .options import RecordOptions, record_options
from .recorder import Recorder
from .recording import Recording

if TYPE_CHECKING:
    from .replay import RecordedDataset, replay_supplier

__all__ = [
    "RecordOptions",
    "RecordedDataset",
    "Recorder",
    "Recording",
    "record_options",
    "replay_supplier",
    "to_parquet",
    "to_webdataset",
]

__getattr__, __dir__ = lazy(__name__, {"replay": "RecordedDataset replay_supplier"})
