"""Endless datasets of the samples of a product, and their DataLoader; the DataLoader of a recording; a mix of both. Needs torch.

`StreamCallback` is in the module `trainer`, because it needs transformers.
"""

from .arguments import check_at_least, whole_number
from .endless import EndlessDataset, checked_positions
from .endless_loader import EndlessDataLoader
from .mixed_loader import MixedLoader
from .numbered import NumberedBatches
from .ranks import Ranks, set_ranks_of_worker
from .readers.copying import SampleReader
from .replay_loader import ReplayLoader
from .slot_batches import Batch, make_collate_fn
from .soft_dataset import SoftIterableDataset
from .soft_loader import SoftDataLoader
from .stats import LoaderStats
from .stream_options import StreamOptions

__all__ = [
    "Batch",
    "EndlessDataLoader",
    "EndlessDataset",
    "LoaderStats",
    "MixedLoader",
    "NumberedBatches",
    "Ranks",
    "ReplayLoader",
    "SampleReader",
    "SoftDataLoader",
    "SoftIterableDataset",
    "StreamOptions",
    "check_at_least",
    "checked_positions",
    "make_collate_fn",
    "set_ranks_of_worker",
    "trainer",
    "whole_number",
]
